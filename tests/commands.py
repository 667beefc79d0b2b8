"""Whole frames, and bodies that are read in steps, read at once."""

from collections.abc import Iterable
from typing import TypeVar

from mqbroker.errors import BadFrame
from mqbroker.wire.command import Frame, FrameDecoder, RemotingCommand, decode_command
from mqbroker.wire.registration import BrokerTopics, Steps, read_registration

T = TypeVar("T")


def decode_commands(frames: list[Frame]) -> list[RemotingCommand]:
    """Read what FrameDecoder.feed returned."""
    return [decode_command(*frame) for frame in frames]


#: Opaque, code, remark, extFields in order, body.
Said = tuple[int, int, str, list[tuple[str, str]], bytes]


def said(answers: Iterable[RemotingCommand]) -> list[Said]:
    """What responses say, in the order of their opaques, to be compared with those of another way."""
    return sorted((a.opaque, a.code, a.remark or "", sorted(a.ext_fields.items()), a.body) for a in answers)


def decode_frame(data: bytes) -> RemotingCommand:
    """Read exactly one whole frame with its length. Raises BadFrame where it is more or less than that."""
    decoder = FrameDecoder()
    frames = decoder.feed(data)
    if len(frames) != 1 or decoder.pending_bytes:
        raise BadFrame(f"{len(data)} bytes hold {len(frames)} frames and {decoder.pending_bytes} bytes more")
    return decode_command(*frames[0])


def decode_registration(data: bytes, *, compressed: bool) -> BrokerTopics:
    """Read the request's body at once. Raises BadBody."""
    return finish(read_registration(data, compressed=compressed))


def finish(steps: Steps[T]) -> T:
    """Take all steps; return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
