"""Error responses for responses that cannot be encoded and for batches of requests that failed together."""

from __future__ import annotations

from collections.abc import Sequence

from mqbroker.errors import Refused
from mqbroker.remoting.handlers import Asked, RawRequest, failure_response
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand, encode_command

#: The response when too many requests are pending.
OVERLOADED = Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")


def asked(run: Sequence[RawRequest]) -> list[Asked]:
    """The fields needed to build the responses to a run of requests."""
    return [(opaque, flag, serialize_type) for _, opaque, flag, _, serialize_type in run]


def encode_answer(answer: RemotingCommand, request: RemotingCommand) -> bytes:
    """Encode `answer`; if that fails, encode an error response, since every request must be completed."""
    try:
        return encode_command(answer)
    except Exception as error:
        return encode_command(failure_response(request, error))


def failures(run: Sequence[Asked], error: BaseException | None) -> bytes:
    """Encode the responses to a run that failed with `error`, which is logged once for all of them."""
    requests = [RemotingCommand(0, opaque=each[0], flag=each[1], serialize_type=each[2]) for each in run]
    one = failure_response(requests[0], error)
    return b"".join(
        encode_answer(RemotingCommand.response(request, one.code, one.remark), request)
        for request in requests
        if not request.is_oneway
    )
