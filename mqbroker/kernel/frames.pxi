# Frames of requests with a JSON header without spaces, as clients write it.

cdef enum:
    FRAME_HEAD = 8
    HEADER_MAX = 262144         # as mqbroker/wire/command.py: HEADER_BYTES_MAX
    FIELDS_MAX = 64
    HAS_CODE = 1
    HAS_OPAQUE = 2
    HAS_FLAG = 4
    HAS_FIELDS = 8
    HAS_ALL = 15

cdef extern from *:
    """
    /* Where what a JSON string has as it is ends, of ASCII: at a quote, a backslash, a control character or a byte of
       UTF-8. Eight bytes at a time: of those that subtractions mark, the lowest is right. */
    static inline const uint8_t *plain_end(const uint8_t *p, const uint8_t *end) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
      const uint64_t ones = 0x0101010101010101u;
      for (; end - p >= 8; p += 8) {
        uint64_t x, marks;
        memcpy(&x, p, 8);
        marks = (x - 0x20 * ones) | ((x ^ 0x22 * ones) - ones) | ((x ^ 0x5C * ones) - ones);
        marks = ((marks & ~x) | x) & (0x80 * ones);
        if (marks) return p + (__builtin_ctzll(marks) >> 3);
      }
    #endif
      while (p < end && *p >= 0x20 && *p < 0x80 && *p != 0x22 && *p != 0x5C) p++;
      return p;
    }
    """
    Bytes plain_end(Bytes p, Bytes end) noexcept nogil


cdef struct Header:
    int64_t code, opaque, flag, version
    int have, fields            # how many fields
    Span language, remark       # without quotes; of length 0 where there is none
    Span keys[FIELDS_MAX]       # of the extFields, as they stand in the JSON
    Span values[FIELDS_MAX]


cdef inline Bytes string_end(Bytes p, Bytes end) noexcept nogil:
    """Where the string from `p` on has its closing quote; NULL where it has escapes or more than ASCII."""
    p = plain_end(p, end)
    return p if p < end and p[0] == c'"' else NULL


cdef inline Bytes any_string_end(Bytes p, Bytes end) noexcept nogil:
    """As `string_end`, for any string."""
    p = plain_end(p, end)
    while p < end and p[0] != c'"':
        p = plain_end(p + (2 if p[0] == c'\\' else 1), end)
    return p if p < end else NULL


cdef Bytes read_integer(Bytes p, Bytes end, int64_t *found) noexcept nogil:
    cdef Span digits
    cdef bint is_negative = p < end and p[0] == c'-'
    p += is_negative
    digits.p = p
    while p < end and 48 <= p[0] <= 57:
        p += 1
    digits.n = p - digits.p
    if (digits.n > 1 and digits.p[0] == c'0') or not read_number(digits, 10, 0x7FFFFFFF, found):
        return NULL
    if is_negative:
        found[0] = -found[0]
    return p


cdef Bytes read_fields(Bytes p, Bytes end, Header *h) noexcept nogil:
    """extFields from behind the opening brace on; returns what follows the closing one."""
    cdef Bytes key
    cdef Bytes stop
    cdef bint has_escapes
    while h.fields < FIELDS_MAX:
        if p >= end or p[0] != c'"':
            return NULL
        key = p + 1
        stop = string_end(key, end)
        if stop == NULL or end - stop < 3 or stop[1] != c':' or stop[2] != c'"':
            return NULL
        h.keys[h.fields].p, h.keys[h.fields].n = key, stop - key
        p = stop + 3
        has_escapes = stop == key + 1 and key[0] == c'i'  # the properties of a send
        stop = any_string_end(p, end) if has_escapes else string_end(p, end)
        if stop == NULL or end - stop < 2:
            return NULL
        h.values[h.fields].p, h.values[h.fields].n = p, stop - p
        h.fields += 1
        p = stop + 1
        if p[0] == c'}':
            return p + 1
        if p[0] != c',':
            return NULL
        p += 1
    return NULL


cdef Bytes read_member(Bytes p, Bytes end, Span key, Header *h) noexcept nogil:
    """The value of one member of the header; returns what follows it."""
    cdef Span ignored
    cdef Span *text
    cdef int have = 0
    if is_text(key, "code", 4):
        have = HAS_CODE
        p = read_integer(p, end, &h.code)
    elif is_text(key, "opaque", 6):
        have = HAS_OPAQUE
        p = read_integer(p, end, &h.opaque)
    elif is_text(key, "flag", 4):
        have = HAS_FLAG
        p = read_integer(p, end, &h.flag)
    elif is_text(key, "version", 7):
        p = read_integer(p, end, &h.version)
    elif is_text(key, "extFields", 9):
        have = HAS_FIELDS
        p = read_fields(p + 1, end, h) if p < end and p[0] == c'{' else NULL
    elif is_text(key, "language", 8) or is_text(key, "serializeTypeCurrentRPC", 23) or is_text(key, "remark", 6):
        text = &h.language if key.n == 8 else &h.remark if key.n == 6 else &ignored
        text.p = p + 1
        p = string_end(p + 1, end) if p < end and p[0] == c'"' else NULL
        text.n = p - text.p if p != NULL else 0
        p = p + 1 if p != NULL else NULL
    else:
        return NULL
    if h.have & have:
        return NULL
    h.have |= have
    return p


cdef bint read_header(Bytes p, Bytes end, Header *h) noexcept nogil:
    """Read a JSON header without spaces; False where it is not so plain."""
    cdef Span key
    cdef Bytes stop
    h.have = h.fields = h.language.n = h.remark.n = 0
    h.version, h.remark.p = 0, NULL
    if p >= end or p[0] != c'{':
        return False
    while True:
        p += 1
        if p >= end or p[0] != c'"':
            return False
        key.p = p + 1
        stop = string_end(key.p, end)
        if stop == NULL or end - stop < 2 or stop[1] != c':':
            return False
        key.n = stop - key.p
        p = read_member(stop + 2, end, key, h)
        if p == NULL or p >= end:
            return False
        if p[0] == c'}':
            return p + 1 == end and h.have == HAS_ALL
        if p[0] != c',':
            return False


cdef struct Request:
    Header header
    Span body


cdef Py_ssize_t read_request(Bytes p, Py_ssize_t n, Request *r) noexcept nogil:
    """Read the frame at `p`; returns its size, 0 where it is not whole or not so plain."""
    cdef Py_ssize_t length, head
    if n < FRAME_HEAD:
        return 0
    length, head = load32(p), load32(p + 4)
    if length < 4 or length > n - 4 or head > length - 4 or head > HEADER_MAX:  # also of another encoding than JSON
        return 0
    if not read_header(p + FRAME_HEAD, p + FRAME_HEAD + head, &r.header):
        return 0
    r.body.p, r.body.n = p + FRAME_HEAD + head, length - 4 - head
    return 4 + length


cdef inline int compare_spans(Span a, Span b) noexcept nogil:
    cdef int c = memcmp(a.p, b.p, min(a.n, b.n))
    return c if c else (a.n > b.n) - (a.n < b.n)


cdef bytes signed_content(Request *r):
    """What a signature is over: the values of the extFields in the order of their names, and the body. None where a
    name comes twice, or properties have unusual escapes."""
    cdef int order[FIELDS_MAX]
    cdef uint8_t properties[PROPERTIES_MAX]
    cdef Span value
    cdef Header *h = &r.header
    cdef Py_ssize_t size = r.body.n, properties_n = 0
    cdef uint8_t *to
    cdef int i, k, count = 0
    for i in range(h.fields):
        if is_text(h.keys[i], "Signature", 9) or is_text(h.keys[i], "_UNIQUE_KEY_QUERY", 17):
            continue
        k = count
        while k and compare_spans(h.keys[order[k - 1]], h.keys[i]) > 0:
            order[k] = order[k - 1]
            k -= 1
        if k and not compare_spans(h.keys[order[k - 1]], h.keys[i]):
            return None
        order[k] = i
        count += 1
        if is_text(h.keys[i], "i", 1):
            properties_n = unescape(h.values[i], properties)
            if properties_n < 0:
                return None
            size += properties_n
        else:
            size += h.values[i].n
    content = PyBytes_FromStringAndSize(NULL, size)
    to = <uint8_t *> PyBytes_AS_STRING(content)
    for k in range(count):
        value = h.values[order[k]]
        if is_text(h.keys[order[k]], "i", 1):
            value.p, value.n = properties, properties_n
        memcpy(to, value.p, value.n)
        to += value.n
    memcpy(to, r.body.p, r.body.n)
    return content


cdef object field_bytes(Header *h, const char *name, Py_ssize_t n):
    cdef int i
    for i in range(h.fields):
        if is_text(h.keys[i], name, n):
            return span_bytes(h.values[i])
    return None


cdef bint is_admitted(object guard, object connection, Request *r, tuple names) except -1:
    """Whether `guard` lets the sender of a request send it, about what `names` says."""
    content = signed_content(r)
    if content is None:
        return False
    key, signature = field_bytes(&r.header, "AccessKey", 9), field_bytes(&r.header, "Signature", 9)
    return guard(connection, key, signature, content, names)
