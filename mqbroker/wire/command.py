"""RemotingCommand: one request or response, in either of its two header encodings, and the frames that carry them.

    4 bytes  length of all that follows
    1 byte   serialize type of the header (0 JSON, 1 ROCKETMQ)
    3 bytes  header length
    n bytes  header, then the body up to the end of the frame

Source: NettyDecoder, RemotingCommand and RocketMQSerializable of 4.9.7. Input is untrusted until checked here: lengths,
types, ranges, the number of fields; an invalid header is a BadFrame, on which the connection is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

import attrs

from mqbroker.errors import BadFrame
from mqbroker.kernel import compiled
from mqbroker.wire import strict_json
from mqbroker.wire.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from mqbroker.wire.headers import Header, encode_header

#: The bound of a Java peer (`com.rocketmq.remoting.frameMaxLength`).
FRAME_BYTES_MAX = 16 * 1024 * 1024
#: Properties, the longest text of a header, are 32 kB at most: 196 kB if JSON escapes each byte. Java peers allow a
#: header of 16 MB, which takes seconds to parse. Only the response to a batch is longer: it has an id of each message.
HEADER_BYTES_MAX = 256 * 1024
#: Bytes of such a response for each byte of the batch: ids have 57 in IPv6, messages 22 or more.
_ANSWER_TO_BATCH = 3
#: Limits of a JSON header above HEADER_BYTES_MAX, because parsing time grows with the number of values: such a response
#: has two dozen, and no list. (A binary one is limited by EXT_FIELDS_MAX.)
_LONG_HEADER_QUOTES_MAX, _LONG_HEADER_OBJECTS_MAX = 256, 4

JSON = 0
ROCKETMQ = 1

Frame = tuple[int, bytes, bytes]

_LENGTHS = struct.Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF


class FrameDecoder:
    """Splits a stream into frames; buffers an incomplete one, never more than `frame_bytes_max`."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = HEADER_BYTES_MAX
        self._pending = bytearray()
        self._wanted = 8

    def expect_answer(self, request: RemotingCommand) -> None:
        """Take a header as long as the response to `request` may have, from now on."""
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            most = min(HEADER_BYTES_MAX + _ANSWER_TO_BATCH * len(request.body), _HEADER_LENGTH_MASK)
            self._header_bytes_max = max(self._header_bytes_max, most)

    @property
    def pending_bytes(self) -> int:
        """Buffered bytes of an incomplete frame."""
        return len(self._pending)

    def clear(self) -> None:
        """Drop the buffer: the stream has ended."""
        self._pending = bytearray()

    def join(self, data: bytes) -> bytes | None:
        """Take out the buffered bytes with `data` appended; the caller splits off frames and feeds the rest. None, with
        nothing changed, if they complete no frame."""
        if not self._pending:
            return data
        if len(self._pending) + len(data) < self._wanted:
            return None
        joined = bytes(self._pending) + data
        self._pending.clear()
        return joined

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, as (serialize type, header, body).

        Raises BadFrame on an invalid length; the stream cannot be used after that.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                self._check_first_length()
                return []
            data = bytes(self._pending)
            self._pending.clear()
        frames: list[Frame] = []
        at = 0
        end = len(data)
        while end - at >= 8:
            length, word = _LENGTHS.unpack_from(data, at)
            header_length = word & _HEADER_LENGTH_MASK
            if not 4 <= length <= self._frame_bytes_max:
                raise BadFrame(f"frame length {length} is not between 4 and {self._frame_bytes_max}")
            if header_length > length - 4:
                raise BadFrame(f"header length {header_length} in a frame of {length}")
            if header_length > self._header_bytes_max:
                raise BadFrame(f"header length {header_length} is above {self._header_bytes_max}")
            stop = at + 4 + length
            if stop > end:
                self._wanted = stop - at
                break
            body_at = at + 8 + header_length
            header = data[at + 8 : body_at]
            if header_length > HEADER_BYTES_MAX and word >> 24 == JSON:
                _check_long_header(header)
            frames.append((word >> 24, header, data[body_at:stop]))
            at = stop
        else:
            self._wanted = 8
        if at < end:
            self._pending += data[at:] if at else data
            self._check_first_length()
        return frames

    def _check_first_length(self) -> None:
        """Refuse an invalid length as soon as its four bytes are there, before any buffering."""
        if 4 <= len(self._pending) < 8:
            length = int.from_bytes(self._pending[:4], "big")
            if not 4 <= length <= self._frame_bytes_max:
                raise BadFrame(f"frame length {length} is not between 4 and {self._frame_bytes_max}")


def _check_long_header(header: bytes) -> None:
    """Raises BadFrame."""
    is_flat = header.count(b"{") <= _LONG_HEADER_OBJECTS_MAX and b"[" not in header
    if not is_flat or header.count(b'"') > _LONG_HEADER_QUOTES_MAX:
        raise BadFrame(f"a header of {len(header)} bytes is not that of a response to a batch")


def encode_frame(
    serialize_type: int, header: bytes, body: bytes = b"", header_bytes_max: int = HEADER_BYTES_MAX
) -> bytes:
    """Return one frame. Raises BadFrame on a header that peers would refuse because of its length."""
    if len(header) > header_bytes_max:
        raise BadFrame(f"header of {len(header)} bytes, {header_bytes_max} at most")
    return _LENGTHS.pack(4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

#: No command of 4.9 has more than a few dozen.
EXT_FIELDS_MAX = 1024

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_LANGUAGE_NAMES = {language.value: language.name for language in LanguageCode}
_LANGUAGES = {language.name: language.value for language in LanguageCode}
_OTHER_LANGUAGE = LanguageCode.OTHER.value

_FIXED = struct.Struct(">hbhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


@attrs.define
class RemotingCommand:
    """A request or a response. `ext_fields` maps names to text; `language` is a LanguageCode."""

    code: int
    ext_fields: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    @classmethod
    def request(cls, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Make a request; the sender sets its opaque."""
        return cls(code, encode_header(header) if header is not None else {}, body)

    @classmethod
    def response(
        cls,
        request: RemotingCommand,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        header: Header | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Make the response to `request`, in its header encoding."""
        return cls(
            code,
            encode_header(header) if header is not None else {},
            body,
            remark,
            opaque=request.opaque,
            flag=RESPONSE_FLAG,
            serialize_type=request.serialize_type,
        )

    def describe(self) -> str:
        """The command's name for a log line."""
        if self.is_response:
            return f"response {self.code} (opaque {self.opaque})"
        known = RequestCode._value2member_map_.get(self.code)
        return f"{known.name if known is not None else 'unknown code'} ({self.code}, opaque {self.opaque})"


def decode_command(serialize_type: int, header: bytes, body: bytes) -> RemotingCommand:
    """Decode one frame's parts. Raises BadFrame on anything but a command."""
    if serialize_type == JSON:
        return json_command(load_json_header(header), body)
    if serialize_type == ROCKETMQ:
        return _decode_binary(header, body)
    raise BadFrame(f"serialize type {serialize_type} is neither JSON (0) nor ROCKETMQ (1)")


def encode_command(
    command: RemotingCommand, opaque: int | None = None, header_bytes_max: int = HEADER_BYTES_MAX
) -> bytes:
    """Return the frame of `command`, with its own opaque or another. Raises BadFrame on a header above its bound."""
    opaque = command.opaque if opaque is None else opaque
    if command.serialize_type == ROCKETMQ:
        return encode_frame(ROCKETMQ, _encode_binary_header(command, opaque), command.body, header_bytes_max)
    return encode_frame(JSON, encode_json_header(command, opaque), command.body, header_bytes_max)


def encode_batch_answer(command: RemotingCommand) -> bytes:
    """The frame of the response to a batch, which may have a longer header than others."""
    return encode_command(command, None, _HEADER_LENGTH_MASK)


def _integer(fields: dict[str, Any], name: str, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not _INT32_MIN <= value <= _INT32_MAX:
        found = value if type(value) in (int, float) else type(value).__name__
        raise BadFrame(f"{name} of a command must be a 32-bit integer, not {found}")
    return value


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) in (int, float):
        return str(value)
    raise BadFrame(f"an extFields value must be text, not {type(value).__name__}")


def load_json_header(header: bytes) -> dict[str, Any]:
    """The members of a JSON header, unchecked. Raises BadFrame if it is not a JSON object."""
    try:
        fields = strict_json.loads(header)
    except ValueError as error:
        raise BadFrame(f"command header is not JSON: {error}") from None
    if type(fields) is not dict:
        raise BadFrame(f"command header is a JSON {type(fields).__name__}, not an object")
    return fields


def json_command(fields: dict[str, Any], body: bytes) -> RemotingCommand:
    """The command with these members of a JSON header. Raises BadFrame on anything but a command."""
    ext = fields.get("extFields") or {}
    if type(ext) is not dict or len(ext) > EXT_FIELDS_MAX:
        raise BadFrame(f"extFields must be an object of at most {EXT_FIELDS_MAX} fields")
    remark = fields.get("remark")
    if remark is not None and type(remark) is not str:
        raise BadFrame("remark must be text")
    texts = {name: value if type(value) is str else _text(value) for name, value in ext.items() if value is not None}
    code, opaque = _integer(fields, "code", 0), _integer(fields, "opaque", 0)
    flag, version = _integer(fields, "flag", 0), _integer(fields, "version", 0)
    name = fields.get("language")
    language = _LANGUAGES.get(name, _OTHER_LANGUAGE) if type(name) is str else _OTHER_LANGUAGE
    return RemotingCommand(code, texts, body, remark, opaque, flag, language, version)


def take_responses(data: bytes, at: int) -> tuple[list[RemotingCommand], int]:
    """The responses from `at` on with whole and plain frames, and where they end. Needs the compiled module."""
    assert compiled is not None
    found: tuple[list[RemotingCommand], int] = compiled.take_responses(
        data, at, RemotingCommand, _LANGUAGES, _OTHER_LANGUAGE
    )
    return found


def encode_json_header(command: RemotingCommand, opaque: int) -> bytes:
    """The JSON of a command, with this opaque."""
    fields: dict[str, Any] = {"code": int(command.code)}
    if command.ext_fields:
        fields["extFields"] = command.ext_fields
    fields["flag"] = command.flag
    fields["language"] = _LANGUAGE_NAMES.get(command.language, "OTHER")
    fields["opaque"] = opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    return strict_json.dumps(fields)


#: What follows the fields in the JSON of a request, up to its opaque and behind that.
AFTER_FIELDS = b'},"flag":'
_OPAQUE = b'"opaque":'
_header = encode_json_header(RemotingCommand(0, {"": ""}), 0).rpartition(AFTER_FIELDS)[2]
BEFORE_OPAQUE = AFTER_FIELDS + _header.partition(_OPAQUE)[0] + _OPAQUE
AFTER_OPAQUE = _header.partition(_OPAQUE + b"0")[2]


def json_head(command: RemotingCommand, without: Collection[str]) -> bytes:
    """The JSON of a request up to its last field: more fields, and `AFTER_FIELDS`, may follow."""
    fields = {name: value for name, value in command.ext_fields.items() if name not in without}
    return encode_json_header(attrs.evolve(command, ext_fields=fields), 0).rpartition(AFTER_FIELDS)[0]


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _read_text(header, at, _INT)
        (ext_length,) = _INT.unpack_from(header, at)
        at += 4
        if not 0 <= ext_length <= len(header) - at:
            raise BadFrame(f"extFields of {ext_length} bytes with {len(header) - at} left in the header")
        ext: dict[str, str] = {}
        end = at + ext_length
        pairs = 0
        while at < end:
            name, at = _read_text(header, at, _SHORT)
            value, at = _read_text(header, at, _INT)
            if name is not None and value is not None:
                ext[name] = value
            pairs += 1  # counted separately: empty and repeated names do not lengthen `ext`
            if at > end or pairs > EXT_FIELDS_MAX:
                raise BadFrame(f"extFields run over their length or are more than {EXT_FIELDS_MAX}")
    except (struct.error, UnicodeDecodeError) as error:
        raise BadFrame(f"binary command header is cut short or not UTF-8: {error}") from None
    return RemotingCommand(
        code=code,
        ext_fields=ext,
        body=body,
        remark=remark,
        opaque=opaque,
        flag=flag,
        language=language if language in _LANGUAGE_NAMES else LanguageCode.OTHER,
        version=version,
        serialize_type=ROCKETMQ,
    )


def _read_text(header: bytes, at: int, length_of: struct.Struct) -> tuple[str | None, int]:
    """Read a text after its length; length 0 means None, as in Java."""
    (length,) = length_of.unpack_from(header, at)
    at += length_of.size
    if not 0 <= length <= len(header) - at:
        raise BadFrame(f"a text of {length} bytes with {len(header) - at} left in the header")
    if not length:
        return None, at
    return header[at : at + length].decode(), at + length


def _encode_binary_header(command: RemotingCommand, opaque: int) -> bytes:
    ext = bytearray()
    for name, value in command.ext_fields.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        ext += _SHORT.pack(len(name_bytes)) + name_bytes + _INT.pack(len(value_bytes)) + value_bytes
    remark = (command.remark or "").encode()
    return b"".join(
        (
            _FIXED.pack(command.code, command.language, command.version, opaque, command.flag),
            _INT.pack(len(remark)),
            remark,
            _INT.pack(len(ext)),
            bytes(ext),
        )
    )
