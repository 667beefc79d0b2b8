# What a producer sends and gets back: plain messages to frames, plain responses to results. The general path, with the
# same outcome, is mqbroker/client/send.py.

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdio cimport sprintf

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    FRAME_MAX = 16 * 1024 * 1024
    ID_MAX = 64
    JSON_PROPERTIES_MAX = 2 * PROPERTIES_MAX


cdef struct JsonText:
    uint8_t *to
    uint8_t *end
    Py_ssize_t size             # as it is without the escapes of JSON
    bint is_raw                 # without these escapes


cdef inline bint add_text(JsonText *text, const char *p, Py_ssize_t n) noexcept nogil:
    if n > text.end - text.to:
        return False
    memcpy(text.to, p, n)
    text.to += n
    return True


cdef inline bint put_escaped(JsonText *text, int separator) noexcept nogil:
    text.size += 1
    if text.is_raw:
        return add_text(text, "\1" if separator == 1 else "\2", 1)
    return add_text(text, "\\u0001" if separator == 1 else "\\u0002", 6)


cdef inline bint put_plain(JsonText *text, object value) except -1:
    """Add a text that JSON has as it is; False where it is none."""
    cdef const char *p
    cdef Py_ssize_t n
    if type(value) is not str or not PyUnicode_IS_COMPACT_ASCII(value):
        return False
    p, n = <const char *> PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value)
    if plain_end(<Bytes> p, <Bytes> p + n) != <Bytes> p + n:
        return False
    text.size += n
    return add_text(text, p, n)


cdef inline bint put_pair(JsonText *text, object name, object value) except -1:
    if text.size and not put_escaped(text, 2):
        return False
    return bool(name) and put_plain(text, name) and put_escaped(text, 1) and put_plain(text, value)


cdef bint put_properties(JsonText *text, object message, str unique_key) except -1:
    """As `wire_properties` of mqbroker/client/send.py."""
    cdef dict properties = message.properties
    cdef tuple keys = message.keys
    for name, value in properties.items():
        if not put_pair(text, name, value):
            return False
    if keys and not put_pair(text, "KEYS", " ".join(keys)):
        return False
    if not put_pair(text, "UNIQ_KEY", unique_key):
        return False
    if not put_pair(text, "WAIT", "true" if message.wait_stored else "false"):
        return False
    if message.delay_level and not put_pair(text, "DELAY", str(message.delay_level)):
        return False
    tags = message.tags
    if tags and not put_pair(text, "TAGS", tags):
        return False
    return text.size <= PROPERTIES_MAX


cdef bytes send_frame(
    object message, bytes head, str unique_key, int64_t opaque, int64_t born_ms, bytes middle, bytes tail
):
    """One frame; None where the message is not so plain."""
    cdef uint8_t properties[JSON_PROPERTIES_MAX]
    cdef char fields[128]
    cdef char number[32]
    cdef JsonText text
    cdef bytes body = message.body
    cdef Py_ssize_t fields_n, number_n, json_n, header_n, body_n = PyBytes_GET_SIZE(body)
    text.to, text.end, text.size, text.is_raw = properties, properties + JSON_PROPERTIES_MAX, 0, False
    if not put_properties(&text, message, unique_key):
        return None
    json_n = text.to - properties
    fields_n = sprintf(fields, ',"f":"0","g":"%lld","h":"%d","i":"', <long long> born_ms, <int> message.flag)
    number_n = sprintf(number, "%lld", <long long> opaque)
    header_n = PyBytes_GET_SIZE(head) + fields_n + json_n + 1 + PyBytes_GET_SIZE(middle) + number_n + PyBytes_GET_SIZE(tail)
    if header_n + body_n > FRAME_MAX - FRAME_HEAD:
        return None
    frame = PyBytes_FromStringAndSize(NULL, FRAME_HEAD + header_n + body_n)
    text.to = <uint8_t *> PyBytes_AS_STRING(frame)
    text.end = text.to + FRAME_HEAD + header_n + body_n
    store32(text.to, <uint32_t> (4 + header_n + body_n))
    store32(text.to + 4, <uint32_t> header_n)
    text.to += FRAME_HEAD
    add_text(&text, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    add_text(&text, fields, fields_n)
    add_text(&text, <const char *> properties, json_n)
    add_text(&text, '"', 1)
    add_text(&text, PyBytes_AS_STRING(middle), PyBytes_GET_SIZE(middle))
    add_text(&text, number, number_n)
    add_text(&text, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
    add_text(&text, PyBytes_AS_STRING(body), body_n)
    return frame


def encode_sends(
    list messages, list targets, list waiters, object run, int64_t opaque, int64_t born_ms, str id_prefix,
    int64_t id_number, bytes middle, bytes tail, dict pending,
):
    """The frames of a prefix of `messages` that is plain. Puts (waiter, message, queue, its id, `run`) into `pending`
    for each by its opaque, which count from `opaque` on.

    `targets`: of each message (queue, what its header has before the fields that are its own). An id that a message has
    not ends in four digits, which count from `id_number` on, behind `id_prefix`; `middle` and `tail` stand in the
    header before and behind the opaque.
    """
    cdef list frames = []
    cdef Py_ssize_t i
    if not len(messages) == len(targets) == len(waiters):
        raise ValueError("not a target and a waiter for each message")
    for i in range(len(messages)):
        message = messages[i]
        queue, head = <tuple?> targets[i]
        unique_key = message.unique_key
        if not unique_key:
            unique_key = numbered(id_prefix, id_number + i)
        frame = send_frame(message, head, unique_key, opaque + i, born_ms, middle, tail)
        if frame is None:
            break
        frames.append(frame)
        pending[opaque + i] = (waiters[i], message, queue, unique_key, run)
    return frames


def encode_batch(list messages, str id_prefix, int64_t id_number):
    """The body of a batch, and its messages' ids, as `encode_sends` makes them; None where one is not plain."""
    cdef uint8_t properties[JSON_PROPERTIES_MAX]
    cdef JsonText text
    cdef uint8_t *data = NULL
    cdef uint8_t *grown
    cdef Py_ssize_t i, body_n, size, end = 0, room = 0
    cdef bytes body
    cdef list ids = []
    try:
        for i in range(len(messages)):
            message = messages[i]
            unique_key = message.unique_key
            if not unique_key:
                unique_key = numbered(id_prefix, id_number + i)
            text.to, text.end, text.size, text.is_raw = properties, properties + JSON_PROPERTIES_MAX, 0, True
            if not put_properties(&text, message, unique_key):
                return None
            body = message.body
            body_n = PyBytes_GET_SIZE(body)
            if body_n > FRAME_MAX:
                return None
            size = 22 + body_n + text.size
            if size > room - end:
                room = 2 * (end + size)
                grown = <uint8_t *> PyMem_RawRealloc(data, room)
                if grown == NULL:
                    raise MemoryError
                data = grown
            memset(data + end, 0, 20)
            store32(data + end, <uint32_t> size)
            store32(data + end + 12, <uint32_t> <int32_t> message.flag)
            store32(data + end + 16, <uint32_t> body_n)
            memcpy(data + end + 20, PyBytes_AS_STRING(body), body_n)
            end += 20 + body_n
            data[end], data[end + 1] = <uint8_t> (text.size >> 8), <uint8_t> (text.size & 0xFF)
            memcpy(data + end + 2, properties, text.size)
            end += 2 + text.size
            ids.append(unique_key)
        return PyBytes_FromStringAndSize(<char *> data, end), ids
    finally:
        PyMem_RawFree(data)


cdef str numbered(str prefix, int64_t number):
    """The id that begins with `prefix`, and ends in the last 16 bits of `number` in four digits."""
    cdef char text[ID_MAX]
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(prefix), i
    if n > ID_MAX - 4 or not PyUnicode_IS_COMPACT_ASCII(prefix):
        raise ValueError("not the beginning of an id")
    memcpy(text, PyUnicode_1BYTE_DATA(prefix), n)
    for i in range(4):
        text[n + i] = b"0123456789ABCDEF"[number >> (12 - 4 * i) & 15]
    return PyUnicode_DecodeUTF8(text, n + 4, NULL)


cdef struct Stored:
    Span msg_id, queue_id, queue_offset
    bint is_untraced


cdef bint read_stored(Header *h, Stored *found) noexcept nogil:
    """What a response says of the message that was stored; False where it does not say all, each once."""
    cdef int i
    cdef Span *place
    memset(found, 0, sizeof(Stored))
    for i in range(h.fields):
        if is_text(h.keys[i], "msgId", 5):
            place = &found.msg_id
        elif is_text(h.keys[i], "queueId", 7):
            place = &found.queue_id
        elif is_text(h.keys[i], "queueOffset", 11):
            place = &found.queue_offset
        else:
            if is_text(h.keys[i], "TRACE_ON", 8) and is_text(h.values[i], "false", 5):
                found.is_untraced = True
            continue
        if place.p != NULL:
            return False
        place[0] = h.values[i]
    return found.msg_id.p != NULL


def take_stored(bytes data not None, dict pending, type kind, object status):
    """Read the responses at the beginning of `data` that say plainly that a message of `pending` is stored, and take it
    out of there. Returns ([(its entry, a `kind` of `status`), ...], where they end)."""
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data), at = 0, size
    cdef Request r
    cdef Stored stored
    cdef int64_t queue_id = 0, queue_offset = 0
    cdef list found = []
    while n - at >= FRAME_HEAD and load32(p + at) <= FRAME_MAX:
        size = read_request(p + at, n - at, &r)
        if not size or r.header.code or r.header.flag != 1:
            break
        if not read_stored(&r.header, &stored) or not read_number(stored.queue_id, 10, 0x7FFFFFFF, &queue_id):
            break
        if not read_number(stored.queue_offset, 19, 0x7FFFFFFFFFFFFFFF, &queue_offset):
            break
        entry = pending.get(r.header.opaque)
        if entry is None:
            break
        waiter, message, queue, unique_key, run = <tuple> entry
        if queue.queue_id != queue_id:
            break
        del pending[r.header.opaque]
        result = PyType_GenericAlloc(<PyTypeObject *> kind, 0)
        PyObject_GenericSetAttr(result, "status", status)
        PyObject_GenericSetAttr(result, "msg_id", unique_key)
        PyObject_GenericSetAttr(result, "offset_msg_id", span_text(stored.msg_id))
        PyObject_GenericSetAttr(result, "queue", queue)
        PyObject_GenericSetAttr(result, "queue_offset", queue_offset)
        PyObject_GenericSetAttr(result, "is_traced", not stored.is_untraced)
        found.append((entry, result))
        at += size
    return found, at
