# Plain sends of some reads, of single messages or of batches: from frames to records of the commit log and the responses.
# What is done here is done with the same bytes by mqbroker/broker/requests/send_rules.py and mqbroker/store/commitlog.py.

cdef enum:
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    BATCH_HEAD = 20             # of a message in a batch: size 4, magic 4, CRC 4, flag 4, body length 4
    SHARED_MAX = 1024           # bytes of the properties that all messages of a batch get
    WAIT_PAIR = 12              # bytes of a separator and WAIT, at most
    ONEWAY = 2
    PAIRS_MAX = 32
    PROPERTIES_MAX = 32767
    SENDS_MAX = 512             # in one call
    OUT_BYTES = 1 << 20         # records of one call
    ANSWER_NUMBERS = 128        # bytes of the numbers in a response
    LETTERS = 26
    COPY_ROOM = 1024            # bytes kept free in a message for the properties of its copies

cdef inline int hex_digit(int c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    c |= 32
    return c - 87 if 97 <= c <= 102 else -1


cdef Py_ssize_t unescape(Span s, uint8_t *to) noexcept nogil:
    """Copy a JSON string, at most PROPERTIES_MAX bytes, with the escapes of control characters undone; -1 where it has
    others, a NUL, or is not valid UTF-8."""
    cdef uint8_t *start = to
    cdef uint8_t *room = to + PROPERTIES_MAX
    cdef Bytes p = s.p
    cdef Bytes end = s.p + s.n
    cdef uint32_t ignored = 0
    cdef Bytes stop
    cdef int high, low
    cdef bint is_ascii = True
    while p < end:
        stop = plain_end(p, end)
        if stop - p > room - to:
            return -1
        memcpy(to, p, stop - p)
        to += stop - p
        p = stop
        if p >= end:
            break
        if to >= room:
            return -1
        if p[0] == c'\\':
            if end - p < 6 or p[1] != c'u' or p[2] != c'0' or p[3] != c'0':
                return -1
            high, low = hex_digit(p[4]), hex_digit(p[5])
            if not 0 <= high <= 7 or low < 0 or not high + low:
                return -1
            to[0] = high << 4 | low
            p += 6
        elif p[0] < 0x20:
            return -1
        else:
            is_ascii = is_ascii and p[0] < 0x80
            to[0] = p[0]
            p += 1
        to += 1
    if not is_ascii and not hash_utf8(start, to - start, &ignored):
        return -1
    return to - start


cdef bint is_special(Span name) noexcept nogil:
    """Whether the broker sets a property of this name itself, or refuses it."""
    return (
        is_text(name, "CLUSTER", 7) or is_text(name, "REAL_TOPIC", 10) or is_text(name, "REAL_QID", 8)
        or is_text(name, "INNER_MULTI_DISPATCH", 20) or is_text(name, "INNER_MULTI_QUEUE_OFFSET", 24)
        or is_text(name, "TIMER_DELAY_MS", 14) or is_text(name, "TIMER_DELAY_SEC", 15)
        or is_text(name, "TIMER_DELIVER_MS", 16)
    )


cdef struct Asked:
    # What the properties of a message ask for.
    bint waits, has_wait, has_group, is_half
    int64_t delay_level         # 0 for none


cdef bint read_property(Span name, Span value, Asked *asked) noexcept nogil:
    """False where it is not plain."""
    if is_text(name, "DELAY", 5):
        return value.p[0] != c'0' and read_number(value, 9, 0x7FFFFFFF, &asked.delay_level)
    if is_text(name, "TRAN_MSG", 8):
        asked.is_half = True
        return is_text(value, "true", 4)
    if is_text(name, "PGROUP", 6):
        asked.has_group = True
    return not is_special(name)


cdef Py_ssize_t store_properties(uint8_t *text, Py_ssize_t n, Asked *asked) noexcept nogil:
    """Take WAIT and a separator at the end out of properties; returns how many bytes are left. -1 where they are not
    plain: a pair without name or value, a name that comes twice or that the broker sets itself, a delayed half
    message, one without the group of its producer."""
    cdef uint8_t *at = text
    cdef uint8_t *end = text + n
    cdef uint8_t *to = text
    cdef uint8_t *stop
    cdef uint8_t *mark
    cdef Span names[PAIRS_MAX]
    cdef Span value
    cdef Py_ssize_t size
    cdef int count = 0, i
    memset(asked, 0, sizeof(Asked))
    asked.waits = True
    if n and text[n - 1] == 2:
        end -= 1
    while at < end:
        stop = <uint8_t *> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <uint8_t *> memchr(at, 1, stop - at)
        if mark == NULL or mark == at or mark + 1 == stop or count >= PAIRS_MAX:
            return -1
        names[count].p, names[count].n = at, mark - at
        value.p, value.n = mark + 1, stop - mark - 1
        if memchr(value.p, 1, value.n) != NULL or not read_property(names[count], value, asked):
            return -1
        for i in range(count):
            if is_text(names[i], <const char *> at, mark - at):
                return -1
        if is_text(names[count], "WAIT", 4):
            if is_text(value, "false", 5):
                asked.waits = False
            elif not is_text(value, "true", 4):
                return -1
            if asked.has_wait:
                return -1
            asked.has_wait = True
        else:
            size = stop - at
            if to > text:
                to[0] = 2
                to += 1
            names[count].p = to
            if to != at:
                memmove(to, at, size)
            to += size
            count += 1
        at = stop + 1
    if asked.is_half and (asked.delay_level or not asked.has_group):
        return -1
    return to - text


cdef struct Shared:
    # The properties of a batch, which each of its messages gets.
    uint8_t text[SHARED_MAX]    # without WAIT
    Py_ssize_t n
    Span names[PAIRS_MAX]
    int count
    Asked asked


cdef bint read_shared(Span given, Shared *shared) noexcept nogil:
    """False where they are not plain."""
    cdef uint8_t *at
    cdef uint8_t *end
    cdef uint8_t *stop
    if given.n > SHARED_MAX:
        return False
    shared.n = unescape(given, shared.text)
    shared.n = store_properties(shared.text, shared.n, &shared.asked) if shared.n >= 0 else -1
    if shared.n < 0 or shared.asked.is_half or shared.asked.delay_level:
        return False
    shared.count = 0
    at, end = shared.text, shared.text + shared.n
    while at < end:
        stop = <uint8_t *> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        shared.names[shared.count].p = at
        shared.names[shared.count].n = <uint8_t *> memchr(at, 1, stop - at) - at
        shared.count += 1
        at = stop + 1
    return True


cdef inline uint8_t *put_wait(uint8_t *to, Asked *asked) noexcept nogil:
    return put(to, "WAIT\1true", 9) if asked.waits else put(to, "WAIT\1false", 10)


cdef uint8_t *put_batched(uint8_t *to, Span text, Shared *shared, Bytes cluster, Py_ssize_t cluster_n) noexcept nogil:
    """Put the properties of a message of a batch, those of the batch, and the cluster. NULL where they are not plain:
    what `store_properties` leaves, names that the batch has as well, or a delay."""
    cdef Bytes at = text.p
    cdef Bytes end = text.p + text.n
    cdef Bytes stop
    cdef Bytes mark
    cdef uint8_t *start = to
    cdef Span names[PAIRS_MAX]
    cdef Span value
    cdef Asked asked
    cdef uint32_t ignored = 0
    cdef bint has_wait = False
    cdef int count = 0, i
    memset(&asked, 0, sizeof(Asked))
    if memchr(at, 0, text.n) != NULL or not hash_utf8(at, text.n, &ignored):
        return NULL
    if text.n and at[text.n - 1] == 2:
        end -= 1
    while at < end:
        stop = <Bytes> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <Bytes> memchr(at, 1, stop - at)
        if mark == NULL or mark == at or mark + 1 == stop or count >= PAIRS_MAX:
            return NULL
        names[count].p, names[count].n = at, mark - at
        value.p, value.n = mark + 1, stop - mark - 1
        if memchr(value.p, 1, value.n) != NULL or not read_property(names[count], value, &asked):
            return NULL
        for i in range(count):
            if is_text(names[i], <const char *> at, mark - at):
                return NULL
        for i in range(shared.count):
            if is_text(shared.names[i], <const char *> at, mark - at):
                return NULL
        if to > start:
            to[0] = 2
            to += 1
        if shared.asked.has_wait and is_text(names[count], "WAIT", 4):  # the batch's counts
            to = put_wait(to, &shared.asked)
            has_wait = True
        else:
            to = put(to, <const char *> at, stop - at)
        count += 1
        at = stop + 1
    if asked.is_half or asked.delay_level:
        return NULL
    if shared.n:
        if to > start:
            to[0] = 2
            to += 1
        to = put(to, <const char *> shared.text, shared.n)
    if to > start:
        to[0] = 2
        to += 1
    to = put(to, <const char *> cluster, cluster_n)
    if shared.asked.has_wait and not has_wait:
        to[0] = 2
        to = put_wait(to + 1, &shared.asked)
    return to


cdef uint8_t *put_number(uint8_t *to, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int n = 0
    cdef uint64_t rest = <uint64_t> value
    if value < 0:
        to[0] = c'-'
        to += 1
        rest = 0 - rest
    while True:
        digits[n] = 48 + rest % 10
        rest //= 10
        n += 1
        if not rest:
            break
    while n:
        n -= 1
        to[0] = digits[n]
        to += 1
    return to


cdef inline uint8_t *put(uint8_t *to, const char *what, Py_ssize_t n) noexcept nogil:
    memcpy(to, what, n)
    return to + n


cdef inline uint8_t *put_bytes(uint8_t *to, bytes what) noexcept:
    return put(to, PyBytes_AS_STRING(what), PyBytes_GET_SIZE(what))


cdef inline bytes bytes_of(uint8_t *p, Py_ssize_t n):
    return PyBytes_FromStringAndSize(<char *> p, n)


cdef struct NewRecord:
    int64_t queue_id, sys_flag, born_ms, flag, reconsume
    Span body


cdef class Sends:
    """Makes records and responses of plain sends.

    :param code: of the sends that it takes: SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE.
    :param store_host: 8 or 20 bytes, this broker in records.
    :param id_prefix: of message ids, hexadecimal.
    :param cluster: the property that is added to each message.
    :param before_id, tail: of a response: what stands between the queue and the id, and behind the opaque.
    :param body_max: bytes of a body.
    :param always_waits: messages whose response waits for nothing (WAIT=false) are left to the caller.
    :param delayed, halves: the topic of delayed messages and the highest level; the topic of half messages and how
        many queues it has, 0 where they are left to the caller.
    :param open_queue: returns for (topic, queue id) the queue, which has `next_offset` and `is_removed`.
    :param guard: returns for (connection, access key, signature, signed content, (topic,)) whether a message may be
        sent, key and signature None where there is none; None if any may.
    """

    cdef bytes _store_host, _id_prefix, _cluster, _before_id, _tail
    cdef int64_t _code
    cdef Py_ssize_t _body_max, _answer_room
    cdef bint _always_waits
    cdef bytes _delay_topic, _half_topic
    cdef list _delay_queues, _half_queues
    cdef object _open_queue, _guard
    cdef uint8_t *_records
    cdef uint8_t *_answers
    cdef uint8_t *_marks
    cdef int64_t _next_offsets[SENDS_MAX]
    cdef Span _given[LETTERS]
    # Of the call that runs.
    cdef Py_ssize_t _records_n, _answers_n, _last
    cdef int _count, _stored    # sends, and their messages
    cdef bytes _born_host
    cdef object _connection
    cdef int64_t _now_ms, _log_end
    cdef Py_ssize_t _room
    cdef dict _topics
    cdef list _queues, _batches

    def __cinit__(
        self, int64_t code, bytes store_host, bytes id_prefix, bytes cluster, bytes before_id, bytes tail, Py_ssize_t body_max,
        bint always_waits, tuple delayed, tuple halves, open_queue, guard,
    ):
        cdef Py_ssize_t messages = SENDS_MAX if code == SEND_MESSAGE_V2 else OUT_BYTES // RECORD_MIN
        if code not in (SEND_MESSAGE_V2, SEND_BATCH_MESSAGE):
            raise ValueError(f"sends of code {code}")
        self._code = code
        self._delay_topic, self._delay_queues = delayed[0], [None] * delayed[1]
        self._half_topic, self._half_queues = halves[0], [None] * halves[1]
        if len(self._delay_topic) > TOPIC_MAX // 2 or len(self._half_topic) > TOPIC_MAX // 2:
            raise ValueError("the name of a system topic is too long")
        if len(store_host) not in (8, 20):
            raise ValueError(f"a host of {len(store_host)} bytes")
        self._store_host, self._id_prefix, self._cluster = store_host, id_prefix, cluster
        self._before_id, self._tail, self._body_max = before_id, tail, body_max
        self._always_waits, self._open_queue, self._guard = always_waits, open_queue, guard
        self._answer_room = ANSWER_NUMBERS + len(before_id) + len(id_prefix) + len(tail) + 100
        self._records = <uint8_t *> PyMem_Malloc(OUT_BYTES)
        self._answers = <uint8_t *> PyMem_Malloc(
            SENDS_MAX * self._answer_room + messages * (len(id_prefix) + ID_DIGITS + 1)
        )
        self._marks = <uint8_t *> PyMem_Malloc(messages * MARK)
        if self._records == NULL or self._answers == NULL or self._marks == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._records)
        PyMem_Free(self._answers)
        PyMem_Free(self._marks)

    def take(self, reads, dict topics, int64_t now_ms, int64_t log_end, room):
        """Take plain sends from the beginnings of some reads.

        :param reads: (bytes, where to begin in them, the connection, which has `remote_host`).
        :param topics: by name, of those that take plain sends: (number of queues, sys flag, list of their queues).
        :param now_ms: the store timestamp.
        :param log_end: where the records will stand; `room`: bytes that fit there.

        Returns None if there is none, else (for each read where it stopped and how many sends it had, the responses
        of each read, the marks of its messages, the number of all messages, the records, where the last one begins in
        them, pairs of a queue and its next offset, and of each batch of several messages the topic and their number).
        """
        cdef Py_ssize_t at, start, taken, answers_from, i
        cdef int count_from, stored_from
        cdef bytes data
        cdef list stops = [], answers = [], marks = [], numbers = []
        self._now_ms, self._log_end, self._topics = now_ms, log_end, topics
        self._room = min(OUT_BYTES, <Py_ssize_t> max(0, room))
        self._records_n = self._answers_n = self._last = 0
        self._count = self._stored = 0
        self._queues, self._batches = [], []
        try:
            for read in reads:
                data, start, connection = <tuple?> read
                check_range(data, start, PyBytes_GET_SIZE(data))
                self._connection, self._born_host = connection, connection.remote_host
                at, count_from, answers_from, stored_from = start, self._count, self._answers_n, self._stored
                while self._count < SENDS_MAX and PyBytes_GET_SIZE(self._born_host) in (8, 20):
                    taken = self._take_one(<Bytes> PyBytes_AS_STRING(data) + at, PyBytes_GET_SIZE(data) - at)
                    if not taken:
                        break
                    at += taken
                stops.append((at, self._count - count_from))
                answers.append(bytes_of(self._answers + answers_from, self._answers_n - answers_from))
                marks.append(bytes_of(self._marks + stored_from * MARK, (self._stored - stored_from) * MARK))
            if not self._count:
                return None
            for i in range(len(self._queues)):
                numbers.append((self._queues[i], self._next_offsets[i]))
            records = bytes_of(self._records, self._records_n)
            return stops, answers, marks, self._stored, records, self._last, numbers, self._batches
        finally:
            self._queues = self._batches = self._topics = self._connection = None

    cdef Py_ssize_t _take_one(self, Bytes p, Py_ssize_t n) except -1:
        """Take the frame at `p`; returns its size, 0 where it is left."""
        cdef Request r
        cdef Py_ssize_t size = read_request(p, n, &r)
        cdef Span *given = self._given
        cdef int64_t queue_id, ignored
        cdef NewRecord new
        new.reconsume = 0
        if not size or r.header.code != self._code or r.header.flag & ~ONEWAY:
            return 0
        if r.body.n > self._body_max or not by_letter(&r.header, given) or not self._has_fields():
            return 0
        if self._code == SEND_BATCH_MESSAGE and field_bytes(&r.header, "producerGroup", 13) is not None:
            return 0            # the header with long names counts
        if not (
            read_number(field(given, c'e'), 9, 0x7FFFFFFF, &queue_id)
            and read_number(field(given, c'f'), 9, 0x7FFFFFFF, &new.sys_flag)
            and read_number(field(given, c'g'), 18, 0x7FFFFFFFFFFFFFFF, &new.born_ms)
            and read_number(field(given, c'h'), 9, 0x7FFFFFFF, &new.flag)
            and read_number(field(given, c'd'), 9, 0x7FFFFFFF, &ignored)
        ):
            return 0
        if field(given, c'j').p != NULL and not read_number(field(given, c'j'), 9, 0x7FFFFFFF, &new.reconsume):
            return 0
        if self._guard is not None:
            if not is_admitted(self._guard, self._connection, &r, (span_bytes(field(given, c'b')),)):
                return 0
        new.body = r.body
        if self._code == SEND_MESSAGE_V2:
            return size if self._store(&r.header, queue_id, &new) else 0
        return size if self._store_batch(&r.header, queue_id, &new) else 0

    cdef bint _has_fields(self) noexcept:
        """Whether the fields that have no number are there and plain."""
        cdef Span *given = self._given
        cdef Span batch = field(given, c'm'), unit = field(given, c'k')
        cdef int64_t ignored
        if field(given, c'a').p == NULL or field(given, c'b').p == NULL or field(given, c'c').p == NULL or field(given, c'i').p == NULL:
            return False
        if batch.p != NULL and not is_text(batch, "false", 5):
            if self._code == SEND_MESSAGE_V2 or not is_text(batch, "true", 4):
                return False
        if unit.p != NULL and not (is_text(unit, "false", 5) or is_text(unit, "true", 4)):
            return False
        return field(given, c'l').p == NULL or read_number(field(given, c'l'), 9, 0x7FFFFFFF, &ignored)

    cdef bint _store(self, Header *h, int64_t queue_id, NewRecord *new) except -1:
        cdef Span *given = self._given
        cdef Span topic = field(given, c'b')
        cdef Py_ssize_t head = self._head_size()
        cdef Py_ssize_t cluster_n = PyBytes_GET_SIZE(self._cluster), n, size
        cdef uint8_t *properties
        cdef Asked asked
        cdef int number
        # The most that it can take; escapes only become shorter.
        size = head + new.body.n + TAIL_MIN + topic.n + min(field(given, c'i').n, <Py_ssize_t> PROPERTIES_MAX) + 1 + cluster_n
        if self._records_n + size + COPY_ROOM > self._room or topic.n > TOPIC_MAX:
            return False
        properties = self._records + self._records_n + head + new.body.n + 1 + topic.n + 2
        n = unescape(field(given, c'i'), properties)
        n = store_properties(properties, n, &asked) if n >= 0 else -1
        if n < 0 or n + 1 + cluster_n + COPY_ROOM > PROPERTIES_MAX or (self._always_waits and not asked.waits):
            return False
        name = span_bytes(topic)
        queues = self._queues_of(name, queue_id, new)
        if queues is None:
            return False
        new.queue_id = queue_id
        if asked.is_half:
            new.sys_flag, new.queue_id, queues, name = new.sys_flag & ~ROLLBACK, 0, self._half_queues, self._half_topic
        elif new.sys_flag & ROLLBACK:
            return False
        elif asked.delay_level:
            new.queue_id, queues, name = asked.delay_level - 1, self._delay_queues, self._delay_topic
        if new.queue_id >= len(<list> queues):
            return False
        number = self._number(queues, name, new.queue_id)
        if n:
            properties[n] = 2
            n += 1
        put_bytes(properties + n, self._cluster)
        n += cluster_n
        if asked.is_half or asked.delay_level:
            n = put_real_target(properties + n, &asked, topic, queue_id) - properties
            memmove(properties + PyBytes_GET_SIZE(name) - topic.n, properties, n)
        size = self._put_record(self._records_n, new, name, n)
        self._number_records(h, queue_id, number, size)
        return True

    cdef bint _store_batch(self, Header *h, int64_t queue_id, NewRecord *new) except -1:
        cdef Span topic = field(self._given, c'b')
        cdef Span batch = new.body
        cdef Bytes at = batch.p
        cdef Bytes end = batch.p + batch.n
        cdef Bytes cluster = <Bytes> PyBytes_AS_STRING(self._cluster)
        cdef Py_ssize_t head = self._head_size(), cluster_n = PyBytes_GET_SIZE(self._cluster), added, n
        cdef Py_ssize_t size = 0, counted = 0   # of all: as stored, and as the limit of a send counts them
        cdef Span text
        cdef Shared shared
        cdef uint8_t *to
        cdef uint8_t *stop
        if topic.n > TOPIC_MAX or new.sys_flag & ROLLBACK or not read_shared(field(self._given, c'i'), &shared):
            return False
        if self._always_waits and not shared.asked.waits:
            return False
        name = span_bytes(topic)
        queues = self._queues_of(name, queue_id, new)
        if queues is None:
            return False
        new.queue_id = queue_id
        added = 1 + shared.n + 1 + cluster_n + WAIT_PAIR
        while at < end:
            if not read_batched(at, end, new, &text):
                return False
            n = head + new.body.n + TAIL_MIN + topic.n + text.n + added
            if self._records_n + size + n + COPY_ROOM > self._room or text.n + added + COPY_ROOM > PROPERTIES_MAX:
                return False
            to = self._records + self._records_n + size + head + new.body.n + 1 + topic.n + 2
            stop = put_batched(to, text, &shared, cluster, cluster_n)
            if stop == NULL:
                return False
            counted += RECORD_MIN + topic.n + new.body.n + (stop - to)
            if counted > self._body_max:
                return False
            size += self._put_record(self._records_n + size, new, name, stop - to)
            at = text.p + text.n
        if not size:
            return False
        n = self._stored
        self._number_records(h, queue_id, self._number(queues, name, queue_id), size)
        if self._stored - n > 1:
            self._batches.append((name, self._stored - n))
        return True

    cdef Py_ssize_t _head_size(self) noexcept:
        return HEAD_V4 - 16 + PyBytes_GET_SIZE(self._born_host) + PyBytes_GET_SIZE(self._store_host)

    cdef list _queues_of(self, bytes name, int64_t queue_id, NewRecord *new):
        """The queues of a topic, whose flags are added to those of the message; None where it or the queue is not
        among those that are taken."""
        row = self._topics.get(name)
        if row is None:
            return None
        queue_count, flags, queues = <tuple> row
        if queue_id >= <int64_t> queue_count or queue_id >= len(<list> queues):
            return None
        new.sys_flag |= <int64_t> flags
        return <list> queues

    cdef Py_ssize_t _put_record(self, Py_ssize_t at, NewRecord *new, bytes topic, Py_ssize_t properties_n) noexcept:
        """Put what stands before the properties; returns the size of the record, which has no queue offset yet."""
        cdef uint8_t *to = self._records + at
        cdef Py_ssize_t born_n = PyBytes_GET_SIZE(self._born_host), store_n = PyBytes_GET_SIZE(self._store_host)
        cdef int64_t sys_flag = new.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        cdef Py_ssize_t size = self._head_size() + new.body.n + TAIL_MIN + PyBytes_GET_SIZE(topic) + properties_n
        sys_flag |= (BORN_HOST_V6 if born_n == 20 else 0) | (STORE_HOST_V6 if store_n == 20 else 0)
        store32(to, <uint32_t> size)
        store32(to + 4, MAGIC)
        store32(to + 8, body_crc(new.body.p, new.body.n))
        store32(to + 12, <uint32_t> new.queue_id)
        store32(to + 16, <uint32_t> new.flag)
        store64(to + 28, <uint64_t> (self._log_end + at))
        store32(to + 36, <uint32_t> sys_flag)
        store64(to + 40, <uint64_t> new.born_ms)
        to = put_bytes(to + 48, self._born_host)
        store64(to, <uint64_t> self._now_ms)
        to = put_bytes(to + 8, self._store_host)
        store32(to, <uint32_t> new.reconsume)
        store64(to + 4, 0)
        store32(to + 12, <uint32_t> new.body.n)
        to = put(to + 16, <const char *> new.body.p, new.body.n)
        to[0] = <uint8_t> PyBytes_GET_SIZE(topic)
        to = put_bytes(to + 1, topic)
        to[0], to[1] = properties_n >> 8, properties_n & 0xFF
        return size

    cdef void _number_records(self, Header *h, int64_t queue_id, int number, Py_ssize_t size) noexcept:
        """Give the records of a send, `size` bytes, the next offsets of their queue, and answer it."""
        cdef Py_ssize_t first = self._records_n, end = first + size
        cdef int64_t offset = self._next_offsets[number]
        cdef uint8_t *marks = self._marks + self._stored * MARK
        cdef uint8_t *mark = marks
        while self._records_n < end:
            self._last = self._records_n
            store64(self._records + self._last + 20, <uint64_t> self._next_offsets[number])
            store32(mark, <uint32_t> h.opaque)
            store32(mark + 4, <uint32_t> h.flag)
            store32(mark + 8, <uint32_t> queue_id)
            store64(mark + 12, <uint64_t> (self._log_end + self._last))
            store64(mark + 20, <uint64_t> self._next_offsets[number])
            store32(mark + 28, 0)
            mark += MARK
            self._next_offsets[number] += 1
            self._stored += 1
            self._records_n += load32(self._records + self._last)
        store32(marks + 28, <uint32_t> ((mark - marks) // MARK))
        self._count += 1
        if not h.flag & ONEWAY:
            self._answer(h, queue_id, offset, marks, mark)

    cdef int _number(self, list queues, bytes name, Py_ssize_t queue_id) except -1:
        """The number of a message's queue among those of this call; it is opened where `queues` has it not."""
        cdef Py_ssize_t i
        queue = queues[queue_id]
        if queue is None or queue.is_removed:
            queue = queues[queue_id] = self._open_queue(name, queue_id)
        for i in range(len(self._queues)):
            if self._queues[i] is queue:
                return <int> i
        self._next_offsets[len(self._queues)] = queue.next_offset
        self._queues.append(queue)
        return <int> len(self._queues) - 1

    cdef void _answer(self, Header *h, int64_t queue_id, int64_t queue_offset, uint8_t *mark, uint8_t *end) noexcept:
        """:param mark, end: the marks of its messages."""
        cdef uint8_t *start = self._answers + self._answers_n
        cdef uint8_t *to = start + FRAME_HEAD
        cdef uint64_t offset
        cdef int i
        to = put(to, '{"code":0,"extFields":{"queueId":"', 34)
        to = put_number(to, queue_id)
        to = put_bytes(to, self._before_id)
        while True:
            offset = load64(mark + 12)
            to = put_bytes(to, self._id_prefix)
            for i in range(ID_DIGITS):
                to[i] = b"0123456789ABCDEF"[offset >> (60 - 4 * i) & 15]
            to += ID_DIGITS
            mark += MARK
            if mark >= end:
                break
            to[0] = c','
            to += 1
        to = put(to, '","queueOffset":"', 17)
        to = put_number(to, queue_offset)
        to = put(to, '"},"flag":1,"language":"PYTHON","opaque":', 41)
        to = put_number(to, h.opaque)
        to = put_bytes(to, self._tail)
        store32(start, <uint32_t> (to - start - 4))
        store32(start + 4, <uint32_t> (to - start - FRAME_HEAD))
        self._answers_n += to - start


cdef bint read_batched(Bytes at, Bytes end, NewRecord *new, Span *properties) noexcept nogil:
    """Read a message of a batch; False where its sizes are wrong."""
    cdef int64_t size, body_n
    if end - at < BATCH_HEAD + 2:
        return False
    size, body_n = <int32_t> load32(at), <int32_t> load32(at + 16)
    if body_n < 0 or body_n > end - at - BATCH_HEAD - 2:
        return False
    new.flag = <int32_t> load32(at + 12)
    new.body.p, new.body.n = at + BATCH_HEAD, body_n
    at += BATCH_HEAD + body_n
    properties.p, properties.n = at + 2, at[0] << 8 | at[1]
    if properties.n > PROPERTIES_MAX or properties.n > end - properties.p:
        return False
    return size == BATCH_HEAD + body_n + 2 + properties.n


cdef uint8_t *put_real_target(uint8_t *to, Asked *asked, Span topic, int64_t queue_id) noexcept nogil:
    """The properties that a message in a system topic has more."""
    if asked.has_wait:
        to[0] = 2
        to = put_wait(to + 1, asked)
    to = put(to, "\2REAL_TOPIC\1", 12)
    to = put(to, <const char *> topic.p, topic.n)
    to = put(to, "\2REAL_QID\1", 10)
    return put_number(to, queue_id)


cdef enum:
    # Opaque 4, flag 4, queue id 4, physical offset 8, queue offset 8; messages of the send 4, 0 in all but the first.
    MARK = 32
    ID_DIGITS = 16              # of the offset in a message id


cdef inline Span field(Span *fields, int letter) noexcept nogil:
    return fields[letter - c'a']


cdef bint by_letter(Header *h, Span *fields) noexcept nogil:
    """The extFields of one letter; False where one comes twice."""
    cdef int i, letter
    memset(fields, 0, LETTERS * sizeof(Span))
    for i in range(h.fields):
        letter = h.keys[i].p[0] - c'a' if h.keys[i].n == 1 else -1
        if 0 <= letter < LETTERS:
            if fields[letter].p != NULL:
                return False
            fields[letter] = h.values[i]
    return True
