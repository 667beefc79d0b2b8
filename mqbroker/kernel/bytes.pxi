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
    /* CRC-32 of zlib: eight bytes at a time by tables, or 64 by carry-less multiplication, as in Gopal and others,
       "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. */
    static uint32_t crc_by_tables(uint32_t c, const uint8_t *p, size_t n) {
      for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc_tables[7][a & 255] ^ crc_tables[6][a >> 8 & 255] ^ crc_tables[5][a >> 16 & 255]
          ^ crc_tables[4][a >> 24] ^ crc_tables[3][p[4]] ^ crc_tables[2][p[5]] ^ crc_tables[1][p[6]]
          ^ crc_tables[0][p[7]];
      }
      while (n--) c = crc_tables[0][(c ^ *p++) & 255] ^ (c >> 8);
      return c;
    }
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define HAS_FOLDING() (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
    #define LOAD(at) _mm_loadu_si128((const __m128i *)(at))
    #define FOLD(x, k, next) _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), \\
                                                         _mm_clmulepi64_si128(x, k, 0x11)), next)
    /* n: a multiple of 16, 64 at least */
    __attribute__((target("pclmul,sse4.1"))) static uint32_t crc_folded(uint32_t c, const uint8_t *p, size_t n) {
      const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
      const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
      const __m128i low_32 = _mm_set_epi32(0, -1, 0, -1);
      __m128i x = _mm_xor_si128(LOAD(p), _mm_cvtsi32_si128((int)c)), y = LOAD(p + 16), z = LOAD(p + 32), w = LOAD(p + 48);
      for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        x = FOLD(x, by_512, LOAD(p));
        y = FOLD(y, by_512, LOAD(p + 16));
        z = FOLD(z, by_512, LOAD(p + 32));
        w = FOLD(w, by_512, LOAD(p + 48));
      }
      x = FOLD(x, by_128, y);
      x = FOLD(x, by_128, z);
      x = FOLD(x, by_128, w);
      for (; n; p += 16, n -= 16) x = FOLD(x, by_128, LOAD(p));
      x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_128, 0x10));
      x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low_32), by_64, 0x00));
      y = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low_32), barrett, 0x10), low_32);
      return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, _mm_clmulepi64_si128(y, barrett, 0x00)), 1);
    }
    #else
    #define HAS_FOLDING() 0
    #define crc_folded crc_by_tables
    #endif
    static int has_folding;
    /* Java clears the sign bit. */
    static uint32_t body_crc(const uint8_t *p, size_t n) {
      uint32_t c = 0xFFFFFFFFu;
      size_t folded = has_folding && n >= 64 ? n - n % 16 : 0;
      if (folded) c = crc_folded(c, p, folded);
      return ~crc_by_tables(c, p + folded, n - folded) & 0x7FFFFFFFu;
    }
    """
    uint32_t load32(const uint8_t *p) noexcept nogil
    uint64_t load64(const uint8_t *p) noexcept nogil
    void store32(uint8_t *p, uint32_t v) noexcept nogil
    void store64(uint8_t *p, uint64_t v) noexcept nogil
    const uint8_t *is_topic_byte
    void fill_tables() noexcept nogil
    uint32_t body_crc(const uint8_t *p, size_t n) noexcept nogil
    # Whether the processor multiplies without carries.
    int HAS_FOLDING() noexcept nogil
    int has_folding

has_folding = HAS_FOLDING()
fill_tables()

ctypedef const uint8_t *Bytes


cdef struct Span:
    Bytes p
    Py_ssize_t n


cdef inline bytes span_bytes(Span s):
    return PyBytes_FromStringAndSize(<const char *> s.p, s.n)


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
        if n - i >= 4 and not load32(p + i) & 0x80808080u:  # four products that do not wait for each other
            value = 923521u * value + 29791u * p[i] + 961u * p[i + 1] + 31u * p[i + 2] + p[i + 3]
            i += 4
            continue
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
