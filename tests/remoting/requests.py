"""Requests as bytes, and handlers for them."""

from mqbroker.wire.command import JSON, RemotingCommand, encode_command

# Any that are classified.
ECHO, BATCH, OTHER_BATCH, LATER = 10, 11, 12, 15


def echo(request, connection):
    return RemotingCommand.response(request, body=request.body)


def request(code, opaque=0, body=b"", *, serialize_type=JSON, flag=0, **ext):
    return encode_command(RemotingCommand(code, ext, body, opaque=opaque, flag=flag, serialize_type=serialize_type))
