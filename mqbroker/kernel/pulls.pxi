# Pulls of messages that are in memory: which pull a frame is, and the messages of consume queue entries.
# What is done here is done with the same outcome by mqbroker/broker/requests/pull_message.py and
# mqbroker/store/checked_reader.py.

cdef enum:
    PULL_MESSAGE = 11
    COMMIT_OFFSET = 1           # in the sysFlag of a pull
    SUBSCRIPTION = 4
    KEY_MAX = 1024
    RECORDS_OF_PULL_MAX = 1024
    PULLED_BYTES_MAX = 1 << 24
    READ_AT_ONCE = 1 << 20      # of the log, also what lies between the messages
    CODES_MAX = 64
    PULL_FIELDS = 11
    FOUND_HEAD_MAX = 512        # bytes of a response before the messages


cdef struct PullFields:
    # In the order of their names in the table below.
    Span given[PULL_FIELDS]

cdef struct FieldName:
    const char *text
    Py_ssize_t n

cdef enum:
    GROUP
    TOPIC
    QUEUE_ID
    SUB_VERSION
    SUBSCRIBED
    EXPRESSION_TYPE
    QUEUE_OFFSET
    MAX_MSG_NUMS
    SYS_FLAG
    COMMITTED
    SUSPEND_MS

cdef FieldName[PULL_FIELDS] pull_fields = [
    FieldName("consumerGroup", 13), FieldName("topic", 5), FieldName("queueId", 7), FieldName("subVersion", 10),
    FieldName("subscription", 12), FieldName("expressionType", 14), FieldName("queueOffset", 11),
    FieldName("maxMsgNums", 10), FieldName("sysFlag", 7), FieldName("commitOffset", 12),
    FieldName("suspendTimeoutMillis", 20),
]


cdef bint read_pull_fields(Header *h, PullFields *found) noexcept nogil:
    """False where one comes twice or is missing; subscription and expressionType may be."""
    cdef int i, k
    memset(found, 0, sizeof(PullFields))
    for i in range(h.fields):
        for k in range(PULL_FIELDS):
            if is_text(h.keys[i], pull_fields[k].text, pull_fields[k].n):
                if found.given[k].p != NULL:
                    return False
                found.given[k] = h.values[i]
                break
    for k in range(PULL_FIELDS):
        if found.given[k].p == NULL and k != SUBSCRIBED and k != EXPRESSION_TYPE:
            return False
    return True


cdef struct Pull:
    int64_t offset, most, committed     # committed is -1 where the pull commits no offset
    int64_t opaque


cdef Py_ssize_t read_pull(
    Bytes p, Py_ssize_t n, Request *r, PullFields *f, Pull *pull, uint8_t *key, Py_ssize_t *key_n
) noexcept nogil:
    """Read the pull at `p`, and what makes pulls alike into `key`; returns the size of its frame, 0 where it is left."""
    cdef uint8_t *to = key
    cdef int64_t sys_flag, ignored
    cdef int k
    cdef Py_ssize_t size = read_request(p, n, r)
    if not size or r.header.code != PULL_MESSAGE or r.header.flag or not read_pull_fields(&r.header, f):
        return 0
    if not (
        read_number(f.given[QUEUE_OFFSET], 18, 0x7FFFFFFFFFFFFFFF, &pull.offset)
        and read_number(f.given[MAX_MSG_NUMS], 9, 0x7FFFFFFF, &pull.most)
        and read_number(f.given[SYS_FLAG], 9, 0x7FFFFFFF, &sys_flag)
        and read_number(f.given[COMMITTED], 18, 0x7FFFFFFFFFFFFFFF, &pull.committed)
        and read_number(f.given[SUSPEND_MS], 18, 0x7FFFFFFFFFFFFFFF, &ignored)
    ):
        return 0
    pull.opaque = r.header.opaque
    if not sys_flag & COMMIT_OFFSET:
        pull.committed = -1
    to[0] = c'1' if sys_flag & SUBSCRIPTION else c'0'
    to += 1
    for k in range(QUEUE_OFFSET):
        if to - key + f.given[k].n + 2 > KEY_MAX:
            return 0
        to[0] = 0
        to += 1
        if f.given[k].p == NULL:
            to[0] = 1
            to += 1
        else:
            to = put(to, <const char *> f.given[k].p, f.given[k].n)
    key_n[0] = to - key
    return size


cdef struct Wanted:
    int64_t physical_offset, code, number       # of the entry, from the first that was looked at
    Py_ssize_t size


cdef struct Origin:
    # What messages must be; `topic` is NULL where the process has appended them itself.
    Span topic
    int64_t queue_id, queue_offset
    bint has_codes


cdef struct Place:
    # Where a pull finds its entries: the first, how many, messages and bytes at most; first and next offset of the queue.
    Py_ssize_t at, count, room
    int64_t bytes_limit, low, high


cdef bint is_whole(Bytes p, Wanted *wanted, Origin *origin) noexcept nogil:
    cdef Record r
    cdef Properties properties
    cdef uint32_t h = 0
    if origin.topic.p == NULL:
        return (
            load32(p) == <uint32_t> wanted.size and load32(p + 4) == MAGIC
            and <int64_t> load64(p + 28) == wanted.physical_offset
        )
    if not read_record(p, wanted.size, wanted.physical_offset, True, &r) or r.size != wanted.size:
        return False
    if r.queue_id != origin.queue_id or r.queue_offset != origin.queue_offset + wanted.number:
        return False
    if not is_text(r.topic, <const char *> origin.topic.p, origin.topic.n):
        return False
    if not origin.has_codes:
        return True
    read_properties(r.properties, &properties)
    return hash_utf8(properties.tag.p, properties.tag.n, &h) and wanted.code == <int32_t> h


cdef class ResidentRange:
    """Entries of a consume queue, and the part of the log with their messages, which count as resident until `until`:
    what pulls that follow each other need of the store, without a call for each. Keeps no file mapped."""

    cdef readonly object queue
    cdef object corrupt_ranges, entries, log
    cdef int64_t first, begin, end, file_end, log_base, low, high
    cdef Py_ssize_t count_max, window
    cdef int64_t bytes_max
    cdef double until

    def __init__(
        self, queue, corrupt_ranges, entries, log, first, begin, end, file_end, log_base, low, high, count_max,
        bytes_max, window, until,
    ):
        """
        :param queue: with `min_offset` and `max_offset`. `corrupt_ranges`: with `intact_from`, below which none is used.
        :param entries: weak reference to the bytes of a file of the queue, whose first entry has the offset `first`.
        :param log: weak reference to the bytes of a segment, the first of which is at `log_base`.
        :param begin: of the offsets for which this may be used, up to `end`; the file has entries up to `file_end`.
        :param low: of the bytes of the log for which this may be used, up to `high`.
        :param count_max: messages of a pull, `bytes_max` of several, and `window` of entries where some are skipped.
        """
        self.queue, self.corrupt_ranges, self.entries, self.log = queue, corrupt_ranges, entries, log
        self.first, self.begin, self.end, self.file_end = first, begin, end, file_end
        self.log_base, self.low, self.high = log_base, low, high
        self.count_max, self.bytes_max, self.window, self.until = count_max, bytes_max, window, until

    cdef object locate(self, int64_t offset, int64_t most, bint is_filtered, double now, Place *place):
        """The entries for a pull at `now`, and where to look in them; None where this cannot be used."""
        if now >= self.until or not self.begin <= offset < self.end or self.low < self.corrupt_ranges.intact_from:
            return None
        place.low, place.high = self.queue.min_offset, self.queue.max_offset
        if not place.low <= offset < place.high or (is_filtered and most > self.window):
            return None
        place.at = (offset - self.first) * ENTRY
        place.room = max(1, min(most, <int64_t> self.count_max))
        place.count = self.window if is_filtered else place.room
        place.count = min(<int64_t> place.count, min(self.file_end, place.high) - offset)
        if place.count > self.end - offset:
            return None
        place.bytes_limit = self.bytes_max
        return self.entries()


cdef Bytes lend_log(object read, int64_t first, Py_ssize_t size, Py_buffer *lent) except? NULL:
    """A part of the log, to be released; NULL where it is not resident."""
    cdef Py_ssize_t at = 0
    if type(read) is ResidentRange:
        if not (<ResidentRange> read).low <= first <= (<ResidentRange> read).high - size:
            return NULL
        at = first - (<ResidentRange> read).log_base
        part = (<ResidentRange> read).log()
    else:
        part = read(first, size)
    if part is None:
        return NULL
    PyObject_GetBuffer(part, lent, PyBUF_SIMPLE)
    if at < 0 or lent.len - at < size or (lent.len != size and type(read) is not ResidentRange):
        n = lent.len
        PyBuffer_Release(lent)
        raise ValueError(f"{n} bytes of the log instead of {size}")
    return <Bytes> lent.buf + at


cdef int copy_messages(object read, Wanted *wanted, Py_ssize_t count, Origin *origin, uint8_t *to) except -1:
    """Copy messages that are in a part of the log which is read at once. 0 where one is not there, or not whole."""
    cdef Py_buffer lent
    cdef int64_t first = wanted[0].physical_offset
    cdef Py_ssize_t size = wanted[count - 1].physical_offset + wanted[count - 1].size - first, i
    cdef Bytes p, part = lend_log(read, first, size, &lent)
    if part == NULL:
        return 0
    try:
        for i in range(count):
            p = part + (wanted[i].physical_offset - first)
            if not is_whole(p, &wanted[i], origin):
                return 0
            memcpy(to, p, wanted[i].size)
            to += wanted[i].size
    finally:
        PyBuffer_Release(&lent)
    return 1


cdef struct Picked:
    Wanted wanted[RECORDS_OF_PULL_MAX]
    Py_ssize_t taken, looked_at, total


cdef bint select(object entries, Py_ssize_t at, Py_ssize_t count, object codes, Py_ssize_t room, int64_t bytes_limit,
                 Picked *picked) except -1:
    """Select messages of consume queue entries; see `pick_messages`. False where an entry is not that of a message, or
    there are too many codes."""
    cdef Py_buffer lent
    cdef int64_t sought[CODES_MAX]
    cdef int code_count = -1
    picked.taken = picked.looked_at = picked.total = 0
    if codes is not None:
        if len(codes) > CODES_MAX:
            return False
        code_count = 0
        for code in tuple(codes)[:CODES_MAX]:
            sought[code_count] = code
            code_count += 1
    PyObject_GetBuffer(entries, &lent, PyBUF_SIMPLE)
    try:
        if at < 0 or count < 0 or count > (lent.len - at) // ENTRY:
            raise ValueError(f"{count} entries at byte {at} of {lent.len}")
        return select_entries(<Bytes> lent.buf + at, count, sought, code_count, room, bytes_limit, picked)
    finally:
        PyBuffer_Release(&lent)


cdef bytes messages_behind(uint8_t *head, Py_ssize_t head_n, Picked *picked, object read, object origin):
    """`head` and the messages behind it; None where one is not there, or not whole."""
    cdef Origin must
    cdef Py_ssize_t start = 0, stop
    cdef Wanted *wanted = picked.wanted
    cdef uint8_t *to
    memset(&must, 0, sizeof(Origin))
    if origin is not None:
        topic, must.queue_id, must.queue_offset, must.has_codes = origin
        must.topic.p, must.topic.n = <Bytes> PyBytes_AS_STRING(<bytes?> topic), PyBytes_GET_SIZE(<bytes> topic)
    data = PyBytes_FromStringAndSize(NULL, head_n + picked.total)
    to = <uint8_t *> PyBytes_AS_STRING(data)
    if head_n:
        to = put(to, <const char *> head, head_n)
    while start < picked.taken:
        stop = start + 1
        while (
            stop < picked.taken
            and wanted[stop].physical_offset + wanted[stop].size - wanted[start].physical_offset <= READ_AT_ONCE
        ):
            stop += 1
        if not copy_messages(read, &wanted[start], stop - start, &must, to):
            return None
        while start < stop:
            to += wanted[start].size
            start += 1
    return data


def pick_messages(
    entries, Py_ssize_t at, Py_ssize_t count, codes, Py_ssize_t room, int64_t bytes_limit, read, origin
):
    """The messages of consume queue entries, for one pull.

    :param entries: bytes of a consume queue's file, in memory; the first entry is at `at`, and `count` are looked at.
    :param codes: tags codes that are wanted; None for all messages.
    :param room: messages; at least one is taken. `bytes_limit`: of them together, if they are several.
    :param read: returns for (offset, size) these bytes of the log; None where they are not in memory.
    :param origin: None for messages that this process has appended; else (topic, queue id, queue offset of the first
        entry, whether entries have the codes of tags), by which each message is checked, and its checksum.

    Returns (how many entries were looked at, how many messages are taken, their bytes); None where that takes more
    than this: entries without messages, other messages than expected, or not in memory.
    """
    cdef Picked picked
    if not select(entries, at, count, codes, room, bytes_limit, &picked):
        return None
    messages = messages_behind(NULL, 0, &picked, read, origin)
    return None if messages is None else (picked.looked_at, picked.taken, messages)


def take_pulls(
    reads, dict plans, dict queues, dict ranges, double now, locate, commit, dict counts, bytes tail,
    Py_ssize_t pulls_max, Py_ssize_t bytes_max, guard
):
    """Take plain pulls from the beginnings of some reads: those of which `plans` has a plan, and that find something.

    :param reads: (bytes, where to begin in them, connection).
    :param plans: (queue, what `counts` knows the pull by, tags codes or None, broker to pull from next), by what makes
        pulls alike: b"1" or b"0" for whether the pull has a subscription of its own, then group, topic, queue id,
        version of the subscription, subscription and expression type, each behind a NUL; what the pull does not have is
        the byte 1.
    :param queues: the queues that there are, by their names in plans; each has the `next_offset` of its messages. `ranges`: of some, their `ResidentRange`.
    :param locate: where that does not do: returns for (queue, offset, messages at most, whether they are filtered)
        arguments of `pick_messages`: (entries, at, count, room, bytes_limit, read, origin), and the first and next
        offset of the queue; None where that takes more.
    :param commit: called with the plan and the offset that comes with a pull.
    :param counts: lists of the number of pulls, messages and bytes, and ms.
    :param tail: of a response: what stands behind the opaque.
    :param pulls_max: of one read. `bytes_max`: no more is taken once all responses together have so many.
    :param guard: as of `Sends`, with (topic, group).

    Returns (for each read where it stopped and how many pulls it had, the responses of each read); None if there is
    none.
    """
    cdef Request r
    cdef PullFields f
    cdef Pull pull
    cdef uint8_t key[KEY_MAX]
    cdef Py_ssize_t key_n, at, size, total = 0
    cdef bytes data
    cdef list stops = [], answers = [], frames
    for read in reads:
        data, at, connection = <tuple?> read
        check_range(data, at, PyBytes_GET_SIZE(data))
        frames = []
        while len(frames) < pulls_max and total < bytes_max:
            size = read_pull(
                <Bytes> PyBytes_AS_STRING(data) + at, PyBytes_GET_SIZE(data) - at, &r, &f, &pull, key, &key_n
            )
            plan = plans.get(bytes_of(key, key_n)) if size else None
            if plan is not None and guard is not None:
                names = span_bytes(f.given[TOPIC]), span_bytes(f.given[GROUP])
                plan = plan if is_admitted(guard, connection, &r, names) else None
            frame = None if plan is None else answer_pull(
                &pull, plan, queues, ranges, now, locate, commit, counts, tail
            )
            if frame is None:
                break
            at += size
            total += PyBytes_GET_SIZE(frame)
            frames.append(frame)
        stops.append((at, len(frames)))
        answers.append(frames[0] if len(frames) == 1 else b"".join(frames))
    return (stops, answers) if total else None


cdef bytes answer_pull(
    Pull *pull, object plan, dict queues, dict ranges, double now, object locate, object commit, dict counts, bytes tail
):
    """The response; None where the pull is left."""
    cdef Picked picked
    cdef Place place
    queue, known_by, codes, broker_id = plan
    frame = None
    known = ranges.get(queue)
    if known is not None and queues.get(queue) is (<ResidentRange?> known).queue:
        entries = (<ResidentRange> known).locate(pull.offset, pull.most, codes is not None, now, &place)
        if entries is not None:
            frame = found_response(pull, &place, entries, codes, broker_id, known, None, tail, &picked)
    if frame is None:
        found = locate(queue, pull.offset, pull.most, codes is not None)
        if found is None:
            return None
        entries, place.at, place.count, place.room, place.bytes_limit, read, origin, place.low, place.high = found
        frame = found_response(pull, &place, entries, codes, broker_id, read, origin, tail, &picked)
        if frame is None:
            return None
    if pull.offset + picked.looked_at >= place.high and queues[queue].next_offset > place.high:
        return None  # what waits for dispatch is dispatched first: the consumer may stop at the end
    if pull.committed >= 0:
        commit(plan, pull.committed)
    count = counts.get(known_by)
    if count is None:
        count = counts[known_by] = [0, 0, 0, 0]
    (<list> count)[0] += 1
    (<list> count)[1] += picked.taken
    (<list> count)[2] += picked.total
    return frame


cdef bytes found_response(
    Pull *pull, Place *place, object entries, object codes, object broker_id, object read, object origin, bytes tail,
    Picked *picked,
):
    """The response with the messages; None where there are none, or not all can be had at once."""
    cdef uint8_t head[FOUND_HEAD_MAX]
    cdef uint8_t *to = head + FRAME_HEAD
    if not select(entries, place.at, place.count, codes, place.room, place.bytes_limit, picked) or not picked.taken:
        return None
    if PyBytes_GET_SIZE(tail) > FOUND_HEAD_MAX // 2:
        raise ValueError(f"{len(tail)} bytes behind the opaque")
    to = put(to, '{"code":0,"extFields":{"suggestWhichBrokerId":"', 47)
    to = put_number(to, broker_id)
    to = put(to, '","nextBeginOffset":"', 21)
    to = put_number(to, pull.offset + picked.looked_at)
    to = put(to, '","maxOffset":"', 15)
    to = put_number(to, place.high)
    to = put(to, '","minOffset":"', 15)
    to = put_number(to, place.low)
    to = put(to, '"},"flag":1,"language":"PYTHON","opaque":', 41)
    to = put_number(to, pull.opaque)
    to = put_bytes(to, tail)
    store32(head, <uint32_t> (to - head - 4 + picked.total))
    store32(head + 4, <uint32_t> (to - head - FRAME_HEAD))
    return messages_behind(head, to - head, picked, read, origin)


cdef bint select_entries(
    Bytes p, Py_ssize_t count, int64_t *codes, int code_count, Py_ssize_t room, int64_t bytes_limit, Picked *picked
) noexcept nogil:
    """Which messages are wanted; code_count is -1 for all. A message that is not wanted ends it, too, where it would
    be too much. False where an entry is not that of a message."""
    cdef int64_t offset, code, end = 0
    cdef int32_t size
    cdef Py_ssize_t i
    cdef int k
    for i in range(count):
        if picked.taken >= room and picked.taken:
            return True
        offset, size, code = <int64_t> load64(p), <int32_t> load32(p + 8), <int64_t> load64(p + 12)
        p += ENTRY
        if size < RECORD_MIN or not end <= offset <= <int64_t> 1 << 60 or picked.total + size > PULLED_BYTES_MAX:
            return False
        if picked.taken and picked.total + size > bytes_limit:
            return True
        end = offset + size
        k = code_count
        if code_count >= 0:
            if code < -0x80000000:  # an address of an extension
                return False
            k = 0
            while k < code_count and codes[k] != code:
                k += 1
        if k != code_count or code_count < 0:
            if picked.taken >= RECORDS_OF_PULL_MAX:
                return False
            picked.wanted[picked.taken].physical_offset, picked.wanted[picked.taken].size = offset, size
            picked.wanted[picked.taken].code, picked.wanted[picked.taken].number = code, i
            picked.taken += 1
            picked.total += size
        picked.looked_at = i + 1
    return True
