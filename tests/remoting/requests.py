"""Requests as bytes, and handlers for them."""

from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.command import JSON, RemotingCommand, encode_command

# Any that are classified.
ECHO, BATCH, OTHER_BATCH, LATER = 10, 11, 12, 15


def echo(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
    return RemotingCommand.response(request, body=request.body)


def request(
    code: int, opaque: int = 0, body: bytes = b"", *, serialize_type: int = JSON, flag: int = 0, **ext: str
) -> bytes:
    return encode_command(RemotingCommand(code, ext, body, opaque=opaque, flag=flag, serialize_type=serialize_type))
