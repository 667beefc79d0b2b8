# Records of one queue in columns, for readers of many: where they begin, their checksums, and their properties.
# What is done here is done with the same outcome by mqbroker/spark/rows.py and decode_plain.py.

cdef enum:
    NAMES_MAX = 64              # distinct ones


def record_starts(bytes data not None):
    """Where each record begins, as int64; None where their sizes do not fill `data`."""
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(data), at = 0, count = 0
    cdef int64_t size
    starts = PyBytes_FromStringAndSize(NULL, (n // RECORD_MIN + 1) * sizeof(int64_t))
    cdef int64_t *to = <int64_t *> PyBytes_AS_STRING(starts)
    while n - at >= RECORD_MIN:
        size = <int32_t> load32(p + at)
        if size < RECORD_MIN or size > n - at:
            return None
        to[count] = at
        count += 1
        at += size
    return starts[: count * sizeof(int64_t)] if at == n else None


cdef struct Ranges:
    Py_buffer starts, ends
    int64_t *start
    int64_t *end
    Py_ssize_t count


cdef int lend(object starts, object ends, Py_ssize_t data_n, Ranges *ranges) except -1:
    """Borrow two arrays of int64, of places in `data_n` bytes."""
    cdef Py_ssize_t i
    PyObject_GetBuffer(starts, &ranges.starts, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(ends, &ranges.ends, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&ranges.starts)
        raise
    ranges.start, ranges.end = <int64_t *> ranges.starts.buf, <int64_t *> ranges.ends.buf
    ranges.count = ranges.starts.len // sizeof(int64_t)
    for i in range(ranges.count if ranges.ends.len == ranges.starts.len else 0):
        if not 0 <= ranges.start[i] <= ranges.end[i] <= data_n:
            break
    else:
        if ranges.ends.len == ranges.starts.len:
            return 0
    give_back(ranges)
    raise ValueError("places that are not in the bytes")


cdef int give_back(Ranges *ranges) except -1:
    PyBuffer_Release(&ranges.starts)
    PyBuffer_Release(&ranges.ends)
    return 0


def wrong_body(bytes data not None, starts, ends, crcs):
    """The number of the first body, from `starts` to `ends`, that does not have its checksum; -1 if all have. An empty
    one has any. All are arrays of int64."""
    cdef Ranges bodies
    cdef Py_buffer lent
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_ssize_t i, found = -1
    lend(starts, ends, PyBytes_GET_SIZE(data), &bodies)
    try:
        PyObject_GetBuffer(crcs, &lent, PyBUF_SIMPLE)
        try:
            if lent.len != bodies.starts.len:
                raise ValueError("not a checksum for each body")
            for i in range(bodies.count):
                if (
                    bodies.end[i] > bodies.start[i]
                    and body_crc(p + bodies.start[i], bodies.end[i] - bodies.start[i]) != (<int64_t *> lent.buf)[i]
                ):
                    found = i
                    break
        finally:
            PyBuffer_Release(&lent)
    finally:
        give_back(&bodies)
    return found


cdef struct Pairs:
    # Of each pair its row, the number of its name, and where its value ends.
    int32_t *rows
    int32_t *codes
    int32_t *value_ends
    uint8_t *values
    Py_ssize_t count, values_n
    Span names[NAMES_MAX]
    int name_count
    bint has_repeated


cdef bint is_ascii(Bytes p, Py_ssize_t n) noexcept nogil:
    cdef uint64_t word, bits = 0
    while n >= 8:
        memcpy(&word, p, 8)
        bits |= word
        p += 8
        n -= 8
    while n:
        bits |= p[0]
        p += 1
        n -= 1
    return not bits & 0x8080808080808080ull


cdef int name_code(Pairs *pairs, Span name, int expected) noexcept nogil:
    """The number of a name; -1 where there are too many."""
    cdef int k
    if expected < pairs.name_count and is_text(pairs.names[expected], <const char *> name.p, name.n):
        return expected
    for k in range(pairs.name_count):
        if is_text(pairs.names[k], <const char *> name.p, name.n):
            return k
    if pairs.name_count >= NAMES_MAX:
        return -1
    pairs.names[pairs.name_count] = name
    pairs.name_count += 1
    return pairs.name_count - 1


cdef bint add_pairs(Pairs *pairs, Bytes at, Bytes end, Py_ssize_t row) noexcept nogil:
    """The pairs of one message; False where that takes more than this."""
    cdef Bytes stop
    cdef Bytes mark
    cdef Span name
    cdef uint64_t seen = 0
    cdef uint32_t ignored = 0
    cdef int code = -1
    if not is_ascii(at, end - at) and not hash_utf8(at, end - at, &ignored):
        return False
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes> memchr(at, 1, stop - at)
        if mark != NULL and mark > at and mark + 1 < stop:
            name.p, name.n = at, mark - at
            code = name_code(pairs, name, code + 1)
            if code < 0:
                return False
            if seen >> code & 1:
                pairs.has_repeated = True
            seen |= <uint64_t> 1 << code
            memcpy(pairs.values + pairs.values_n, mark + 1, stop - mark - 1)
            pairs.values_n += stop - mark - 1
            pairs.rows[pairs.count], pairs.codes[pairs.count] = <int32_t> row, code
            pairs.value_ends[pairs.count] = <int32_t> pairs.values_n
            pairs.count += 1
        at = stop + 1
    return True


def read_pairs(bytes data not None, starts, ends):
    """The properties of messages, which stand from `starts` to `ends`, arrays of int64.

    Returns (row of each pair, number of its name, where its value ends, as int32; the values; the names; whether a
    message has one twice); None where a message is not UTF-8, or there are more than 64 names or 2 GiB.
    """
    cdef Ranges spans
    cdef Pairs pairs
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef list names = []
    cdef Py_ssize_t i, room = 0, size = 0
    memset(&pairs, 0, sizeof(Pairs))
    lend(starts, ends, PyBytes_GET_SIZE(data), &spans)
    try:
        for i in range(spans.count):  # a pair takes four bytes, with what separates it from the next
            room += (spans.end[i] - spans.start[i]) // 4 + 1
            size += spans.end[i] - spans.start[i]
        if size > 0x7FFFFFFF or spans.count > 0x7FFFFFFF:
            return None
        rows = PyBytes_FromStringAndSize(NULL, room * sizeof(int32_t))
        codes = PyBytes_FromStringAndSize(NULL, room * sizeof(int32_t))
        value_ends = PyBytes_FromStringAndSize(NULL, room * sizeof(int32_t))
        values = PyBytes_FromStringAndSize(NULL, size)
        pairs.rows, pairs.codes = <int32_t *> PyBytes_AS_STRING(rows), <int32_t *> PyBytes_AS_STRING(codes)
        pairs.value_ends = <int32_t *> PyBytes_AS_STRING(value_ends)
        pairs.values = <uint8_t *> PyBytes_AS_STRING(values)
        for i in range(spans.count):
            if not add_pairs(&pairs, p + spans.start[i], p + spans.end[i], i):
                return None
        for i in range(pairs.name_count):
            names.append(span_bytes(pairs.names[i]))
    finally:
        give_back(&spans)
    size = pairs.count * sizeof(int32_t)
    return rows[:size], codes[:size], value_ends[:size], values[: pairs.values_n], names, bool(pairs.has_repeated)


def properties_of(buffer, int64_t base, offsets, sizes):
    """The property bytes of each record of some `sizes` at `offsets` less `base`; none where a record is not
    consistent."""
    cdef Py_buffer lent
    cdef Bytes p
    cdef int64_t at, size, place
    cdef list found = []
    PyObject_GetBuffer(buffer, &lent, PyBUF_SIMPLE)
    try:
        p = <Bytes> lent.buf
        for offset, of_size in zip(offsets, sizes):
            at, size = <int64_t> (<uint64_t> <int64_t> offset - <uint64_t> base), of_size
            data = b""
            if 0 <= at <= lent.len - RECORD_MIN and RECORD_MIN <= size <= lent.len - at:
                place = at + head_size(<int32_t> load32(p + at + 36))
                if place <= at + size:
                    place += <int32_t> load32(p + place - 4)
                    if at <= place < at + size:
                        place += 3 + p[place]
                        if place <= at + size:
                            data = PyBytes_FromStringAndSize(<const char *> p + place, at + size - place)
            found.append(data)
    finally:
        PyBuffer_Release(&lent)
    return found


cdef bytes last_value(Bytes at, Bytes end, Bytes mark, Py_ssize_t mark_n):
    """The value of the last pair of a name that has one; empty without one. `mark`: the name and the byte 1."""
    cdef Bytes stop
    cdef Span value
    value.p, value.n = at, 0
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > mark_n and memcmp(at, mark, mark_n) == 0:
            value.p, value.n = at + mark_n, stop - at - mark_n
        at = stop + 1
    return span_bytes(value)


def values_of(messages, list marks):
    """The values of some properties of each message, by its property bytes: a tuple each, or the value alone where
    `marks` is one. `marks`: names, each with the byte 1 behind it. Empty where a message has none."""
    cdef list found = [], kept = [<bytes?> mark for mark in marks]
    cdef Bytes p
    cdef Py_ssize_t n
    for data in messages:
        p, n = <Bytes> PyBytes_AS_STRING(<bytes?> data), PyBytes_GET_SIZE(<bytes> data)
        values = []
        for mark in kept:
            values.append(last_value(p, p + n, <Bytes> PyBytes_AS_STRING(mark), PyBytes_GET_SIZE(mark)))
        found.append(values[0] if len(values) == 1 else tuple(values))
    return found
