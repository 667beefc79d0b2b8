# Messages that a client has pulled, decoded when they are looked at. What is done here is done with the same outcome by
# mqbroker/client/messages.py: ReceivedMessage.of_record.

cimport cython
from cpython.object cimport PyObject, PyTypeObject, Py_TYPE
from cpython.ref cimport Py_DECREF

cdef extern from "Python.h":
    ctypedef struct PyMemberDef:
        pass
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    PyTypeObject PyMemberDescr_Type
    int PyMember_SetOne(char *o, PyMemberDef *member, object value) except -1
    int PyObject_GenericSetAttr(object o, object name, object value) except -1
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    bint PyCoro_CheckExact(object o)
    int PyIter_Send(object o, object given, PyObject **sent) except -1
    enum:
        PYGEN_NEXT
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t n, const char *errors)

cdef enum:
    COMPRESSED = 1
    OFFSET_ID_MAX = 56
    SLOTS_MAX = 16


cdef inline str span_text(Span s):
    return PyUnicode_DecodeUTF8(<const char *> s.p, s.n, NULL)


cdef bint is_utf8(Span s) noexcept nogil:
    cdef uint32_t ignored = 0
    return is_ascii(s.p, s.n) or hash_utf8(s.p, s.n, &ignored)


cdef PyMemberDef *slot_of(type kind, str name) except NULL:
    """A slot of the objects of a class, to set it without looking for its name in each."""
    found = getattr(kind, name)
    if Py_TYPE(found) != &PyMemberDescr_Type:
        raise TypeError(f"{name} is no slot of {kind}")
    return (<PyMemberDescrObject *> found).d_member


@cython.final
cdef class Fields:
    """Sets the fields of new objects of a class with slots, given by their names, all in one call."""

    cdef type kind
    cdef int count
    cdef PyMemberDef *slots[SLOTS_MAX]

    def __init__(self, type kind not None, tuple names not None):
        cdef int i
        if len(names) > SLOTS_MAX:
            raise ValueError("too many fields")
        for i in range(len(names)):
            self.slots[i] = slot_of(kind, names[i])
        self.kind, self.count = kind, <int> len(names)

    def __call__(self, item, tuple values not None):
        cdef int i
        if not isinstance(item, self.kind) or len(values) != self.count:
            raise TypeError("not an object of the class, or not a value for each field")
        for i in range(self.count):
            PyMember_SetOne(<char *> <void *> item, self.slots[i], values[i])


def take_messages(
    bytes data not None, Py_ssize_t at, type kind, str broker_name, bytes topic, int64_t queue_id, int64_t lowest
):
    """Make a `kind` of each plain record from `at` on: not compressed, with valid text. Returns (them, where they end).

    With a `topic`, the next one must be of this queue, and its offset not below `lowest`, nor the one before it.

    Of the fields only `body` and `queue_offset` are set; `fill_message` sets the others, of a record without its body.
    """
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
    cdef Record r
    cdef Span body, asked
    cdef char *to
    cdef list found = []
    cdef PyMemberDef *undecoded = slot_of(kind, "_undecoded")
    cdef PyMemberDef *broker = slot_of(kind, "_broker_name")
    cdef PyMemberDef *body_slot = slot_of(kind, "body")
    cdef PyMemberDef *queue_offset = slot_of(kind, "queue_offset")
    check_range(data, at, n)
    if topic is not None:
        asked.p, asked.n = <Bytes> PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    while n - at >= RECORD_MIN and read_record(p + at, n - at, <int64_t> load64(p + at + 28), True, &r):
        if r.sys_flag & COMPRESSED or not is_utf8(r.properties):
            break
        if topic is not None:
            if r.queue_id != queue_id or r.queue_offset < lowest or not is_text(r.topic, <const char *> asked.p, asked.n):
                break
            lowest = r.queue_offset + 1
        body.p = p + at + head_size(r.sys_flag)
        body.n = r.topic.p - 1 - body.p
        rest = PyBytes_FromStringAndSize(NULL, r.size - body.n)
        to = PyBytes_AS_STRING(rest)
        memcpy(to, p + at, body.p - p - at)
        memcpy(to + (body.p - p - at), body.p + body.n, r.size - (body.p - p - at) - body.n)
        message = PyType_GenericAlloc(<PyTypeObject *> kind, 0)
        PyMember_SetOne(<char *> <void *> message, undecoded, rest)
        PyMember_SetOne(<char *> <void *> message, broker, broker_name)
        PyMember_SetOne(<char *> <void *> message, body_slot, span_bytes(body))
        PyMember_SetOne(<char *> <void *> message, queue_offset, r.queue_offset)
        found.append(message)
        at += r.size
    return found, at


cdef bint has_escapes(Header *h) noexcept nogil:
    """Whether a value of the extFields has escapes, or more than ASCII."""
    cdef int i
    for i in range(h.fields):
        if plain_end(h.values[i].p, h.values[i].p + h.values[i].n) != h.values[i].p + h.values[i].n:
            return True
    return False


def take_responses(bytes data not None, Py_ssize_t at, type kind, dict languages, int other):
    """Make a `kind`, a command, of each response from `at` on whose frame is whole and plain, as mqbroker/wire/command.py:
    decode_command does. `languages`: numbers by names, `other` that of any other name. Returns (them, where they
    end)."""
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data), size
    cdef Request r
    cdef Header *h = &r.header
    cdef list found = []
    cdef dict fields
    cdef int i
    check_range(data, at, n)
    while n - at >= FRAME_HEAD and load32(p + at) <= FRAME_MAX:
        size = read_request(p + at, n - at, &r)
        if not size or not h.flag & 1 or has_escapes(h):
            break
        fields = {}
        for i in range(h.fields):
            fields[span_text(h.keys[i])] = span_text(h.values[i])
        command = PyType_GenericAlloc(<PyTypeObject *> kind, 0)
        PyObject_GenericSetAttr(command, "code", h.code)
        PyObject_GenericSetAttr(command, "ext_fields", fields)
        PyObject_GenericSetAttr(command, "body", span_bytes(r.body))
        PyObject_GenericSetAttr(command, "remark", span_text(h.remark) if h.remark.p != NULL else None)
        PyObject_GenericSetAttr(command, "opaque", h.opaque)
        PyObject_GenericSetAttr(command, "flag", h.flag)
        PyObject_GenericSetAttr(command, "language", languages.get(span_text(h.language), other))
        PyObject_GenericSetAttr(command, "version", h.version)
        PyObject_GenericSetAttr(command, "serialize_type", 0)
        found.append(command)
        at += size
    return found, at


cdef enum:
    # As mqbroker/client/listener_calls.py: Outcome.
    STOPPED
    RETURNED
    ENDED
    SUSPENDED
    RAISED


def call_listener(
    list messages, Py_ssize_t at, Py_ssize_t end, object listener, object caller, object call, object now_s, double until
):
    """See mqbroker/client/listener_calls.py."""
    cdef Py_ssize_t consumed = 0
    cdef PyObject *sent
    cdef int outcome
    while 0 <= at < end and at < len(messages) and not caller.is_over and <double> now_s() < until:
        message = messages[at]
        at += 1
        if message is None:
            continue
        call.message = message
        outcome = RETURNED
        try:
            result = listener(message)
            if PyCoro_CheckExact(result):
                sent = NULL
                outcome = PyIter_Send(result, None, &sent)
                if outcome == PYGEN_NEXT:
                    outcome, result = SUSPENDED, (result, <object> sent)
                else:
                    outcome, result = ENDED, <object> sent
                Py_DECREF(<object> sent)
        except BaseException as error:
            return at, consumed, RAISED, error
        if result is not None:
            return at, consumed, outcome, result
        if at <= len(messages):
            messages[at - 1] = None
        consumed += 1
    return at, consumed, STOPPED, None


cdef dict properties_dict(Span s):
    cdef Bytes at = s.p
    cdef Bytes end = s.p + s.n
    cdef Bytes stop
    cdef Bytes mark
    cdef Span name, value
    cdef dict found = {}
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes> memchr(at, 1, stop - at)
        if mark != NULL and mark > at and mark + 1 < stop:
            name.p, name.n = at, mark - at
            value.p, value.n = mark + 1, stop - mark - 1
            found[span_text(name)] = span_text(value)
        at = stop + 1
    return found


cdef str offset_id(Bytes host, Py_ssize_t host_n, Bytes offset):
    cdef char digits[OFFSET_ID_MAX]
    cdef Py_ssize_t i
    cdef uint8_t byte
    for i in range(host_n + 8):
        byte = host[i] if i < host_n else offset[i - host_n]
        digits[2 * i], digits[2 * i + 1] = b"0123456789ABCDEF"[byte >> 4], b"0123456789ABCDEF"[byte & 15]
    return PyUnicode_DecodeUTF8(digits, 2 * (host_n + 8), NULL)


def fill_message(object message, bytes rest, str broker_name, object host_of, object queue_of):
    """Set the fields of a message of `take_messages` that it has not set. `host_of` a host's bytes, `queue_of` (topic,
    name of the broker, queue id)."""
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(rest)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(rest), head
    cdef Span born, store, topic, text
    cdef int32_t sys_flag
    cdef dict properties
    if n < RECORD_MIN or n < RECORD_MIN + head_size(load32(p + 36)) - HEAD_V4:
        raise ValueError("not what take_messages has left")
    sys_flag, head = <int32_t> load32(p + 36), head_size(load32(p + 36))
    topic.p, topic.n = p + head + 1, p[head]
    if head + 1 + topic.n + 2 > n:
        raise ValueError("not what take_messages has left")
    born.p, born.n = p + 48, 8 + (V6_MORE if sys_flag & BORN_HOST_V6 else 0)
    store.p, store.n = born.p + born.n + 8, 8 + (V6_MORE if sys_flag & STORE_HOST_V6 else 0)
    text.p = topic.p + topic.n + 2
    text.n = p + n - text.p
    properties = properties_dict(text)
    own_topic = span_text(topic)
    sent_to = properties.get("RETRY_TOPIC", own_topic) if is_retry(topic) else own_topic
    keys = properties.get("KEYS")
    its_id = offset_id(store.p, store.n, p + 28)
    queue = queue_of(own_topic, broker_name, <int32_t> load32(p + 12))
    PyObject_GenericSetAttr(message, "topic", sent_to)
    PyObject_GenericSetAttr(message, "tags", properties.get("TAGS"))
    PyObject_GenericSetAttr(message, "keys", () if keys is None else tuple((<str> keys).split(" ")))
    PyObject_GenericSetAttr(message, "properties", properties)
    PyObject_GenericSetAttr(message, "queue", queue)
    PyObject_GenericSetAttr(message, "commit_log_offset", <int64_t> load64(p + 28))
    PyObject_GenericSetAttr(message, "msg_id", properties.get("UNIQ_KEY", its_id))
    PyObject_GenericSetAttr(message, "offset_msg_id", its_id)
    PyObject_GenericSetAttr(message, "born_timestamp_ms", <int64_t> load64(p + 40))
    PyObject_GenericSetAttr(message, "store_timestamp_ms", <int64_t> load64(born.p + born.n))
    PyObject_GenericSetAttr(message, "born_host", host_of(span_bytes(born)))
    PyObject_GenericSetAttr(message, "store_host", host_of(span_bytes(store)))
    PyObject_GenericSetAttr(message, "reconsume_times", <int32_t> load32(store.p + store.n))
    PyObject_GenericSetAttr(message, "flag", <int32_t> load32(p + 16))
    PyObject_GenericSetAttr(message, "sys_flag", sys_flag)
    PyObject_GenericSetAttr(message, "store_size", load32(p))
    PyObject_GenericSetAttr(message, "body_error", None)


cdef inline bint is_retry(Span topic) noexcept nogil:
    return topic.n >= 7 and memcmp(topic.p, <const char *> b"%RETRY%", 7) == 0
