# Numbers, texts and hashes in bytes that are not trusted.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    static inline uint32_t load32(const uint8_t *p) {
      return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint64_t load64(const uint8_t *p) { return (uint64_t)load32(p) << 32 | load32(p + 4); }
    static inline void store32(uint8_t *p, uint32_t v) { p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v; }
    static inline void store64(uint8_t *p, uint64_t v) { store32(p, v >> 32); store32(p + 4, (uint32_t)v); }
    static uint32_t crc_tables[8][256];
    static uint8_t is_topic_byte[256];
    static void fill_tables(void) {
      for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc_tables[0][i] = c;
        is_topic_byte[i] = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z') || (i >= '0' && i <= '9') || i == '%'
                           || i == '|' || i == '_' || i == '-';
      }
      for (int i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
          crc_tables[t][i] = crc_tables[0][crc_tables[t - 1][i] & 255] ^ (crc_tables[t - 1][i] >> 8);
    }
    /* CRC-32 of zlib, eight bytes at a time; Java clears its sign bit. */
    static uint32_t body_crc(const uint8_t *p, size_t n) {
      uint32_t c = 0xFFFFFFFFu;
      for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc_tables[7][a & 255] ^ crc_tables[6][a >> 8 & 255] ^ crc_tables[5][a >> 16 & 255]
          ^ crc_tables[4][a >> 24] ^ crc_tables[3][p[4]] ^ crc_tables[2][p[5]] ^ crc_tables[1][p[6]]
          ^ crc_tables[0][p[7]];
      }
      while (n--) c = crc_tables[0][(c ^ *p++) & 255] ^ (c >> 8);
      return ~c & 0x7FFFFFFFu;
    }
    """
    uint32_t load32(const uint8_t *p) noexcept nogil
    uint64_t load64(const uint8_t *p) noexcept nogil
    void store32(uint8_t *p, uint32_t v) noexcept nogil
    void store64(uint8_t *p, uint64_t v) noexcept nogil
    const uint8_t *is_topic_byte
    void fill_tables() noexcept nogil
    uint32_t body_crc(const uint8_t *p, size_t n) noexcept nogil

fill_tables()

ctypedef const uint8_t *Bytes


cdef struct Span:
    Bytes p
    Py_ssize_t n


cdef inline bint is_text(Span s, const char *text, Py_ssize_t n) noexcept nogil:
    return s.n == n and memcmp(s.p, text, n) == 0


cdef inline bint read_number(Span s, Py_ssize_t digits_max, int64_t value_max, int64_t *found) noexcept nogil:
    """ASCII digits alone; False on anything else."""
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    cdef uint32_t digit
    if s.n < 1 or s.n > digits_max or digits_max > 19:
        return False
    for i in range(s.n):
        digit = <uint32_t> s.p[i] - 48
        if digit > 9:
            return False
        value = value * 10 + digit
    if value > <uint64_t> value_max:
        return False
    found[0] = <int64_t> value
    return True


cdef inline bint is_next(Bytes p, Py_ssize_t n, int low, int high) noexcept nogil:
    return n > 0 and low <= p[0] <= high


cdef bint hash_utf8(Bytes p, Py_ssize_t n, uint32_t *h) noexcept nogil:
    """Go on with Java's hash, over the UTF-16 code units of a text; False where it is not valid UTF-8."""
    cdef uint32_t value = h[0], c
    cdef Py_ssize_t i = 0
    while i < n:
        c = p[i]
        i += 1
        if c < 0x80:
            value = 31 * value + c
        elif 0xC2 <= c <= 0xDF and is_next(p + i, n - i, 0x80, 0xBF):
            value = 31 * value + ((c & 31) << 6 | (p[i] & 63))
            i += 1
        elif 0xE0 <= c <= 0xEF:
            if not is_next(p + i, n - i, 0xA0 if c == 0xE0 else 0x80, 0x9F if c == 0xED else 0xBF):
                return False
            if not is_next(p + i + 1, n - i - 1, 0x80, 0xBF):
                return False
            value = 31 * value + ((c & 15) << 12 | (p[i] & 63) << 6 | (p[i + 1] & 63))
            i += 2
        elif 0xF0 <= c <= 0xF4:
            if not is_next(p + i, n - i, 0x90 if c == 0xF0 else 0x80, 0x8F if c == 0xF4 else 0xBF):
                return False
            if not (is_next(p + i + 1, n - i - 1, 0x80, 0xBF) and is_next(p + i + 2, n - i - 2, 0x80, 0xBF)):
                return False
            c = ((c & 7) << 18 | (p[i] & 63) << 12 | (p[i + 1] & 63) << 6 | (p[i + 2] & 63)) - 0x10000
            value = 31 * value + (0xD800 | c >> 10)
            value = 31 * value + (0xDC00 | (c & 0x3FF))
            i += 3
        else:
            return False
    h[0] = value
    return True
