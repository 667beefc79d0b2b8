# Records of the commit log, one after another: which are whole, what enters consume queues and the index.
# The layout is that of mqbroker/wire/record.py; the rules are those of mqbroker/store.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef extern from *:
    """
    #define MAGIC 0xDAA320A7u
    """
    # Not in the enumeration: with a value beyond int, C23 makes all of its constants unsigned, in comparisons too.
    const uint32_t MAGIC

cdef enum:
    RECORD_MIN = 91
    TAIL_MIN = 3                # the lengths of topic and properties
    HEAD_V4 = 88
    V6_MORE = 12                # bytes that an IPv6 host is longer
    BORN_HOST_V6 = 1 << 4
    STORE_HOST_V6 = 1 << 5
    PREPARED = 4                # also in ROLLBACK
    ROLLBACK = 12
    TOPIC_MAX = 127
    ENTRY = 20                  # of a consume queue, and of an index file
    INDEX_HEADER = 40
    RECORDS_MAX = 4096          # in one call
    HASHES_MAX = 16400          # of one record: as many keys as 32 kB of properties have
    QUEUES_MAX = 256            # in one call, a power of two
    LEVELS_MAX = 64


cdef struct Record:
    int64_t size, queue_id, queue_offset, physical_offset, timestamp_ms
    int32_t sys_flag
    Span topic, properties


cdef inline Py_ssize_t head_size(int32_t sys_flag) noexcept nogil:
    """Bytes before the body."""
    return HEAD_V4 + (V6_MORE if sys_flag & BORN_HOST_V6 else 0) + (V6_MORE if sys_flag & STORE_HOST_V6 else 0)


cdef bint read_record(Bytes p, Py_ssize_t room, int64_t physical_offset, bint has_crc, Record *r) noexcept nogil:
    """Read a record that should stand at `physical_offset` of the log; False where none does, or none so plain."""
    cdef int64_t head, body, topic_end
    cdef int more
    if room < RECORD_MIN or load32(p + 4) != MAGIC:
        return False
    r.size = load32(p)
    if r.size < RECORD_MIN or r.size > room or <int64_t> load64(p + 28) != physical_offset:
        return False
    r.physical_offset = physical_offset
    r.queue_id = <int32_t> load32(p + 12)
    r.queue_offset = <int64_t> load64(p + 20)
    r.sys_flag = <int32_t> load32(p + 36)
    if r.queue_id < 0 or r.queue_offset < 0 or r.queue_offset > physical_offset // RECORD_MIN:
        return False
    more = V6_MORE if r.sys_flag & BORN_HOST_V6 else 0
    r.timestamp_ms = <int64_t> load64(p + 56 + more)
    head = head_size(r.sys_flag)
    if head + TAIL_MIN > r.size:
        return False
    body = <int32_t> load32(p + head - 4)
    if body < 0 or body > r.size - head - TAIL_MIN:
        return False
    topic_end = head + body + 1 + p[head + body]
    if topic_end + 2 > r.size or topic_end + 2 + (p[topic_end] << 8 | p[topic_end + 1]) != r.size:
        return False
    r.topic.p = p + head + body + 1
    r.topic.n = p[head + body]
    r.properties.p = p + topic_end + 2
    r.properties.n = r.size - topic_end - 2
    if has_crc and body and body_crc(p + head, body) != load32(p + 8):
        return False
    return is_topic(r.topic)


cdef inline bint is_topic(Span s) noexcept nogil:
    cdef Py_ssize_t i
    if s.n < 1 or s.n > TOPIC_MAX:
        return False
    for i in range(s.n):
        if not is_topic_byte[s.p[i]]:
            return False
    return True


cdef struct Properties:
    Span tag, unique_key, keys, delay
    bint names_queues           # has INNER_MULTI_DISPATCH


cdef void read_properties(Span s, Properties *found) noexcept nogil:
    """Of two pairs of one name the later counts; those without a value do not."""
    cdef Bytes at = s.p
    cdef Bytes end = s.p + s.n
    cdef Bytes stop
    cdef Bytes mark
    cdef Span name, value
    memset(found, 0, sizeof(Properties))
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes> memchr(at, 1, stop - at)
        if mark != NULL and mark + 1 < stop:
            name.p, name.n = at, mark - at
            value.p, value.n = mark + 1, stop - mark - 1
            if is_text(name, "TAGS", 4):
                found.tag = value
            elif is_text(name, "KEYS", 4):
                found.keys = value
            elif is_text(name, "DELAY", 5):
                found.delay = value
            elif is_text(name, "UNIQ_KEY", 8):
                found.unique_key = value
            elif is_text(name, "INNER_MULTI_DISPATCH", 20):
                found.names_queues = True
        at = stop + 1


cdef inline void check_range(bytes data, Py_ssize_t at, Py_ssize_t stop) except *:
    if not 0 <= at <= stop <= PyBytes_GET_SIZE(data):
        raise ValueError(f"bytes {at}..{stop} of {len(data)}")


def scan(bytes data not None, Py_ssize_t at, Py_ssize_t stop, int64_t offset, Py_ssize_t count, bint has_crc):
    """Count the whole records at the beginning of bytes at..stop, at most `count`, where `data` begins at `offset` of
    the log. Returns (their number, where they end in `data`, where the last one begins, newest store timestamp in ms,
    whether properties contain the byte 0)."""
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Record r
    cdef Py_ssize_t done = 0, last = at
    cdef int64_t newest_ms = 0
    cdef bint has_nul = False
    check_range(data, at, stop)
    while done < count and read_record(p + at, stop - at, offset + at, has_crc, &r):
        newest_ms = max(newest_ms, r.timestamp_ms)
        has_nul = has_nul or memchr(r.properties.p, 0, r.properties.n) != NULL
        last = at
        at += r.size
        done += 1
    return done, at, last, newest_ms, bool(has_nul)


cdef struct Row:
    int32_t queue
    int32_t size
    int64_t physical_offset, code


cdef struct Queue:
    Span topic
    int64_t queue_id, next_offset, newest_ms, bytes, code
    Py_ssize_t count
    bint is_schedule, is_mixed


cdef class QueueEntries:
    """Makes the entries of consume queues from records.

    :param open_queue: returns for (topic, queue id) the queue, the offset of its next entry, and whether it is one of
        the schedule topic.
    :param delays_ms: of the delay levels.
    :param stops_at_named: whether records that name other queues (INNER_MULTI_DISPATCH) are left to the caller.
    """

    cdef object _open_queue
    cdef Row *_rows
    cdef Queue *_queues
    cdef int64_t _delays_ms[LEVELS_MAX]
    cdef int _levels
    cdef bint _stops_at_named, _is_running

    def __cinit__(self, open_queue, delays_ms, bint stops_at_named):
        self._open_queue, self._stops_at_named = open_queue, stops_at_named
        if len(delays_ms) > LEVELS_MAX:
            raise ValueError(f"more than {LEVELS_MAX} delay levels")
        for delay_ms in delays_ms:
            self._delays_ms[self._levels] = delay_ms
            self._levels += 1
        self._rows = <Row *> PyMem_Malloc(RECORDS_MAX * sizeof(Row))
        self._queues = <Queue *> PyMem_Malloc(QUEUES_MAX * sizeof(Queue))
        if self._rows == NULL or self._queues == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._rows)
        PyMem_Free(self._queues)

    def take(self, bytes data not None, Py_ssize_t at, Py_ssize_t stop, int64_t offset):
        """Take records from bytes at..stop, where `data` begins at `offset` of the log. Returns where it stopped, how
        many it took, and for each queue that gets entries: (queue, entries, their number, bytes of the messages, tags
        code, whether others differ from that, newest store timestamp in ms)."""
        if self._is_running:
            raise RuntimeError("it is called from within itself")
        check_range(data, at, stop)
        self._is_running = True
        try:
            return self._take(data, at, stop, offset)
        finally:
            self._is_running = False

    cdef tuple _take(self, bytes data, Py_ssize_t at, Py_ssize_t stop, int64_t offset):
        cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
        cdef Record r
        cdef Properties properties
        cdef Queue *queue
        cdef Row *row
        cdef Py_ssize_t taken = 0, rows = 0
        cdef int number
        cdef list opened = []
        cdef QueueSlots slots
        memset(&slots, 0, sizeof(slots))
        while taken < RECORDS_MAX and read_record(p + at, stop - at, offset + at, False, &r):
            if not r.sys_flag & PREPARED:
                read_properties(r.properties, &properties)
                if properties.names_queues and self._stops_at_named:
                    break
                number = self._find(&r, &slots, opened)
                if number < 0:
                    break
                queue = &self._queues[number]
                if r.queue_offset != queue.next_offset:
                    if r.queue_offset > queue.next_offset or self._stops_at_named:
                        break
                else:
                    row = &self._rows[rows]
                    if not self._make_code(queue, &r, &properties, &row.code):
                        break
                    row.queue, row.size, row.physical_offset = number, <int32_t> r.size, r.physical_offset
                    rows += 1
                    self._count(queue, row.code, &r)
            at += r.size
            taken += 1
        return at, taken, self._results(opened, rows)

    cdef int _find(self, Record *r, QueueSlots *slots, list opened) except -2:
        """The number of a record's queue; -1 where there are too many."""
        cdef uint32_t h = <uint32_t> r.queue_id * 0x9E3779B1u
        cdef Py_ssize_t i
        cdef int number
        cdef Queue *queue
        for i in range(r.topic.n):
            h = 31 * h + r.topic.p[i]
        h ^= h >> 15
        for i in range(2 * QUEUES_MAX):
            number = slots.number[(h + i) % (2 * QUEUES_MAX)] - 1
            if number < 0:
                if len(opened) >= QUEUES_MAX:
                    return -1
                break
            queue = &self._queues[number]
            if queue.queue_id == r.queue_id and is_text(queue.topic, <const char *> r.topic.p, r.topic.n):
                return number
        number = <int> len(opened)
        queue = &self._queues[number]
        memset(queue, 0, sizeof(Queue))
        found, queue.next_offset, queue.is_schedule = self._open_queue(
            span_bytes(r.topic), r.queue_id
        )
        queue.topic, queue.queue_id = r.topic, r.queue_id
        opened.append(found)
        slots.number[(h + i) % (2 * QUEUES_MAX)] = number + 1
        return number

    cdef bint _make_code(self, Queue *queue, Record *r, Properties *properties, int64_t *code) noexcept:
        """The tags code; False where it takes more than this."""
        cdef int64_t level
        cdef uint32_t h = 0
        if queue.is_schedule and properties.delay.n:
            if not read_number(properties.delay, 9, 999_999_999, &level):
                return False
            if level > 0 and self._levels:
                code[0] = <int64_t> (
                    <uint64_t> r.timestamp_ms + <uint64_t> self._delays_ms[min(level, <int64_t> self._levels) - 1]
                )
                return True
        if not hash_utf8(properties.tag.p, properties.tag.n, &h):
            return False
        code[0] = <int32_t> h
        return True

    cdef void _count(self, Queue *queue, int64_t code, Record *r) noexcept:
        if not queue.count:
            queue.code = code
        elif code != queue.code:
            queue.is_mixed = True
        queue.count += 1
        queue.bytes += r.size
        queue.next_offset += 1
        queue.newest_ms = r.timestamp_ms

    cdef list _results(self, list opened, Py_ssize_t rows):
        cdef list results = []
        cdef list packed = []
        cdef Bytes starts[QUEUES_MAX]
        cdef uint8_t *to
        cdef Queue *queue
        cdef Row *row
        cdef Py_ssize_t i
        for i in range(len(opened)):
            queue = &self._queues[i]
            entries = PyBytes_FromStringAndSize(NULL, queue.count * ENTRY)
            starts[i] = <Bytes> PyBytes_AS_STRING(entries)
            packed.append(entries)
        for i in range(rows):
            row = &self._rows[i]
            to = <uint8_t *> starts[row.queue]
            store64(to, <uint64_t> row.physical_offset)
            store32(to + 8, <uint32_t> row.size)
            store64(to + 12, <uint64_t> row.code)
            starts[row.queue] = to + ENTRY
        for i in range(len(opened)):
            queue = &self._queues[i]
            if queue.count:
                results.append((
                    opened[i], packed[i], queue.count, queue.bytes, queue.code, bool(queue.is_mixed), queue.newest_ms,
                ))
        return results


cdef struct QueueSlots:
    int number[2 * QUEUES_MAX]


cdef struct IndexFile:
    uint8_t *p
    int64_t slots, number, number_max, begin_ms, slots_used


cdef inline void put_index_entry(IndexFile *file, uint32_t h, Record *r) noexcept nogil:
    cdef uint32_t key_hash = h if h <= 0x7FFFFFFF else (0 - h) & 0x7FFFFFFF
    cdef uint8_t *slot = file.p + INDEX_HEADER + 4 * (key_hash % <uint64_t> file.slots)
    cdef uint8_t *entry = file.p + INDEX_HEADER + 4 * file.slots + ENTRY * file.number
    cdef int64_t older = <int32_t> load32(slot), seconds = 0
    if older <= 0 or older > file.number:
        older = 0
        file.slots_used += 1
    if r.timestamp_ms > file.begin_ms:  # unsigned, as they may be more than 2**63 apart
        seconds = min((<uint64_t> r.timestamp_ms - <uint64_t> file.begin_ms) // 1000, <uint64_t> 0x7FFFFFFF)
    store32(entry, key_hash)
    store64(entry + 4, <uint64_t> r.physical_offset)
    store32(entry + 12, <uint32_t> seconds)
    store32(entry + 16, <uint32_t> older)
    store32(slot, <uint32_t> file.number)
    file.number += 1


cdef int hash_keys(Record *r, Properties *properties, uint32_t *hashes, int hashes_max) noexcept nogil:
    """The hashes of a record's keys, in order; -1 where that takes more than this."""
    cdef uint32_t prefix = 0
    cdef int n = 0
    cdef Bytes at
    cdef Bytes end
    cdef Bytes stop
    hash_utf8(r.topic.p, r.topic.n, &prefix)
    prefix = 31 * prefix + c'#'
    if properties.unique_key.n:
        hashes[n] = prefix
        if not hash_utf8(properties.unique_key.p, properties.unique_key.n, &hashes[n]):
            return -1
        n += 1
    at = properties.keys.p
    end = at + properties.keys.n
    while at < end:
        stop = <Bytes> memchr(at, c' ', end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            if n >= hashes_max:
                return -1
            hashes[n] = prefix
            if not hash_utf8(at, stop - at, &hashes[n]):
                return -1
            n += 1
        at = stop + 1
    return n


def index_keys(
    bytes data not None, Py_ssize_t at, Py_ssize_t stop, int64_t offset, file_bytes, int64_t slots, int64_t number,
    int64_t number_max, int64_t begin_ms, int64_t slots_used, int64_t resumed
):
    """Enter the keys of records in bytes at..stop into an index file, where `data` begins at `offset` of the log.

    :param file_bytes: the file, writable, with blocks behind its entries up to `number_max`, which is not used.
    :param number: of the next entry; above 1.
    :param resumed: a record at this offset of the log is left to the caller.

    Returns where it stopped, the number of the next entry, the slots used, and offset and store timestamp in ms of the
    last record that was entered, -1 without one. Stops at a record whose keys do not all fit.
    """
    cdef Bytes p = <Bytes> PyBytes_AS_STRING(data)
    cdef Py_buffer lent
    cdef IndexFile file
    cdef Record r
    cdef Properties properties
    cdef uint32_t hashes[HASHES_MAX]
    cdef int64_t last = -1, last_ms = -1
    cdef int n, i
    check_range(data, at, stop)
    PyObject_GetBuffer(file_bytes, &lent, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        # Each by itself first: what they take together may be more than 64 bits hold.
        if not (
            0 < slots <= lent.len and 1 < number <= number_max <= lent.len
            and INDEX_HEADER + 4 * slots + ENTRY * number_max <= lent.len
        ):
            raise ValueError(f"entries {number} to {number_max} with {slots} slots in a file of {lent.len} bytes")
        file.p, file.slots, file.number, file.number_max = <uint8_t *> lent.buf, slots, number, number_max
        file.begin_ms, file.slots_used = begin_ms, slots_used
        while read_record(p + at, stop - at, offset + at, False, &r) and r.physical_offset != resumed:
            if r.sys_flag & ROLLBACK != ROLLBACK:
                read_properties(r.properties, &properties)
                n = hash_keys(&r, &properties, hashes, HASHES_MAX)
                if n < 0 or file.number + n > file.number_max:
                    break
                for i in range(n):
                    put_index_entry(&file, hashes[i], &r)
                if n:
                    last, last_ms = r.physical_offset, r.timestamp_ms
            at += r.size
    finally:
        PyBuffer_Release(&lent)
    return at, file.number, file.slots_used, last, last_ms
