# Polls for sockets, reads of many in one call, the choice of those that are handled together, and writes to many.

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.errno cimport errno

cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t c_recv "recv"(int fd, void *to, size_t n, int flags)
    Py_ssize_t c_send "send"(int fd, const void *data, size_t n, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int c_epoll_wait "epoll_wait"(int epoll, epoll_event *events, int most, int timeout_ms)

cdef extern from "<sched.h>" nogil:
    int c_sched_yield "sched_yield"()

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec, tv_nsec
    enum:
        CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef enum:
    EVENTS_MAX = 64             # of one poll
    READ_BYTES = 1 << 18        # of one socket at a time
    READS_BYTES = 1 << 19       # of all in one call


cdef class Socket:
    """See `mqbroker.kernel`."""

    cdef public int descriptor
    cdef public bint is_free, is_reading
    cdef public object shared_reads, protocol

    def __cinit__(self):
        self.descriptor, self.is_free = -1, True


cdef class Peer:
    """See `mqbroker.kernel`."""

    cdef public object socket, from_address
    cdef public bint may_take_plain
    cdef public double last_active


def poll_until(int epoll, double until, int most):
    """Poll until something is ready, at most until `time.monotonic` is `until`, and yield the processor meanwhile.

    Returns up to `most` pairs of a descriptor and its events; none too where the poll fails, which the next one says.
    """
    cdef epoll_event events[EVENTS_MAX]
    cdef timespec now
    cdef int n = 0, i
    if most > EVENTS_MAX:
        most = EVENTS_MAX
    with nogil:
        while not n:
            clock_gettime(CLOCK_MONOTONIC, &now)
            if not now.tv_sec + now.tv_nsec * 1e-9 < until:
                break
            c_sched_yield()
            n = c_epoll_wait(epoll, events, most, 0)
    cdef list ready = []
    for i in range(n):
        ready.append((events[i].data.fd, events[i].events))
    return ready


def share_reads(list ready, dict selectables):
    """Which of those that are ready are read together.

    :param ready: pairs of a descriptor and its events, as epoll has them. `selectables`: by descriptor.

    Returns (lists of those that are only to be read and have `shared_reads`, by these; the other pairs).
    """
    cdef dict together = {}
    cdef list others = [], found = None
    known = None
    for pair in ready:
        fd, events = <tuple?> pair
        selectable = selectables.get(fd)
        if not isinstance(selectable, Socket) or (<Socket> selectable).shared_reads is None or events != EPOLLIN:
            others.append(pair)
            continue
        if (<Socket> selectable).shared_reads is not known:
            known = (<Socket> selectable).shared_reads
            found = together.setdefault(known, [])
        found.append(selectable)
    return together, others


cdef class Receiver:
    """Reads from sockets, into one buffer, which stays in the caches."""

    cdef uint8_t *_buffer

    def __cinit__(self):
        self._buffer = <uint8_t *> PyMem_RawMalloc(READS_BYTES)
        if self._buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self._buffer)

    def receive(self, list sockets, double now):
        """Read once from each `Socket` that is to be read, as far as the buffer lasts; from the first at least.

        Returns (how many sockets were looked at, the reads of a `Peer` that may have plain requests taken: bytes, 0 and
        the peer, their sockets, how many bytes came from each address, the others: the socket, and the bytes that came
        or the number of an error, 0 where the peer has closed it). These peers get `now` as `last_active`.
        """
        cdef Py_ssize_t used = 0, n, looked_at = 0
        cdef list reads = [], readers = [], others = []
        cdef dict sizes = {}
        cdef Socket socket
        cdef Peer peer
        for each in tuple(sockets):
            socket = <Socket?> each
            looked_at += 1
            if not socket.is_reading:
                continue
            n = c_recv(socket.descriptor, self._buffer + used, READ_BYTES, MSG_DONTWAIT)
            if n <= 0:
                others.append((socket, errno if n else 0))
                continue
            data = PyBytes_FromStringAndSize(<char *> self._buffer + used, n)
            used += n
            if isinstance(socket.protocol, Peer) and (<Peer> socket.protocol).may_take_plain:
                peer = <Peer> socket.protocol
                peer.last_active = now
                sizes[peer.from_address] = sizes.get(peer.from_address, 0) + n
                reads.append((data, 0, peer))
                readers.append(socket)
            else:
                others.append((socket, data))
            if used > READS_BYTES - READ_BYTES:
                break
        return looked_at, reads, readers, sizes, others


cdef struct Piece:
    int fd
    const char *data
    Py_ssize_t n


def send_each(list peers, list pieces):
    """Send to each `Peer` its bytes, as far as its socket takes them now.

    Returns what is left to be sent, as (peer, bytes, whether it goes on where the socket stopped).
    """
    cdef tuple senders = tuple(peers), kept = tuple(pieces)  # while others run
    cdef Py_ssize_t count = len(senders), i, n = 0
    cdef list left = [], direct = []
    cdef Socket socket
    if len(kept) != count:
        raise ValueError(f"{len(kept)} pieces for {count} peers")
    cdef Piece *each = <Piece *> PyMem_RawMalloc(max(1, count) * sizeof(Piece))
    if each == NULL:
        raise MemoryError
    try:
        for i in range(count):
            piece = <bytes?> kept[i]
            if not PyBytes_GET_SIZE(piece):
                continue
            socket = (<Peer?> senders[i]).socket
            if socket is None or not socket.is_free:
                left.append((senders[i], piece, False))
                continue
            each[n].fd = socket.descriptor
            each[n].data = PyBytes_AS_STRING(piece)
            each[n].n = PyBytes_GET_SIZE(piece)
            direct.append(i)
            n += 1
        with nogil:
            for i in range(n):
                each[i].n = max(0, c_send(each[i].fd, each[i].data, each[i].n, MSG_DONTWAIT | MSG_NOSIGNAL))
        for i in range(n):
            piece = kept[<Py_ssize_t> direct[i]]
            if each[i].n < PyBytes_GET_SIZE(piece):
                left.append((senders[<Py_ssize_t> direct[i]], (<bytes> piece)[each[i].n:], True))
        return left
    finally:
        PyMem_RawFree(each)


def serve_plain(list reads, take, int rounds, write_left, settle):
    """Have plain requests taken from the beginnings of some reads, and send the responses.

    :param reads: (bytes, where to begin in them, the `Peer`), of each peer another.
    :param take: gets reads; returns None where it takes nothing, else, as the first two of a tuple, (where it stopped,
        how many it took) for each read, and a list of the bytes of the responses to each.
    :param rounds: how often it is called at most, with those of which something is left.
    :param write_left: gets what `send_each` returns, if anything.
    :param settle: gets what `take` returned, and the peers, where the responses are no list.

    Returns what is left: the number of the read, and the read from where on.
    """
    cdef list left = list(enumerate(reads)), behind, stops, peers, unsent
    cdef Py_ssize_t i
    while left and rounds > 0:
        rounds -= 1
        found = take([read for _, read in left])
        if found is None:
            break
        if not isinstance(found, tuple) or len(found) < 2:
            raise TypeError("what was taken is no tuple")
        stops, answers = list(found[0]), found[1]
        peers = [peer for _, (_, _, peer) in left]
        if len(stops) != len(peers):
            raise ValueError(f"{len(stops)} stops of {len(peers)} reads")
        if isinstance(answers, list):
            unsent = send_each(peers, answers)
            if unsent:
                write_left(unsent)
        else:
            settle(found, peers)
        behind = []
        for i in range(len(peers)):
            number, (data, _, peer) = left[i]
            stop, _ = <tuple?> stops[i]
            if stop < len(<bytes?> data):
                behind.append((number, (data, stop, peer)))
        left = behind
    return left
