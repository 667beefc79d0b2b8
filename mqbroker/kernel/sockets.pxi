# Reads of many sockets in one call, the choice of those that are handled together, and writes to many.

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.errno cimport errno

cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t c_recv "recv"(int fd, void *to, size_t n, int flags)
    Py_ssize_t c_send "send"(int fd, const void *data, size_t n, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    READ_BYTES = 1 << 18        # of one socket at a time
    READS_BYTES = 1 << 19       # of all in one call


cdef class Receiver:
    """Reads from sockets, into one buffer, which stays in the caches."""

    cdef uint8_t *_buffer

    def __cinit__(self):
        self._buffer = <uint8_t *> PyMem_RawMalloc(READS_BYTES)
        if self._buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self._buffer)

    def receive(self, list transports):
        """Read once from each socket, as far as the buffer lasts; from the first at least.

        :param transports: with `descriptor`, the socket, and `protocol`.

        Returns (how many sockets it was, the reads: bytes, 0 and the protocol of each that has sent some, their
        transports, those that sent nothing: transport and number of the error, 0 where its peer has closed it).
        """
        cdef Py_ssize_t used = 0, n
        cdef list reads = [], readers = [], others = []
        for transport in tuple(transports):
            n = c_recv(<int> transport.descriptor, self._buffer + used, READ_BYTES, MSG_DONTWAIT)
            if n <= 0:
                others.append((transport, errno if n else 0))
                continue
            reads.append((PyBytes_FromStringAndSize(<char *> self._buffer + used, n), 0, transport.protocol))
            readers.append(transport)
            used += n
            if used > READS_BYTES - READ_BYTES:
                break
        return len(reads) + len(others), reads, readers, others


def choose_plain(list reads, double now):
    """Which reads (bytes, where to begin, protocol) may begin with plain requests: those whose protocol says so by
    `may_take_plain`. Their protocols get `now` as `last_active`. Returns their numbers, and how many bytes they have
    from each address (`from_address`)."""
    cdef list numbers = []
    cdef dict sizes = {}
    cdef Py_ssize_t number
    for number in range(len(reads)):
        data, at, protocol = <tuple?> reads[number]
        if getattr(protocol, "may_take_plain", False):
            protocol.last_active = now
            address = protocol.from_address
            sizes[address] = sizes.get(address, 0) + len(<bytes?> data)
            numbers.append(number)
    return numbers, sizes


def unfinished(list reads, list stops):
    """Which of some reads have bytes behind where their requests were taken, (stop, count) each."""
    if len(reads) != len(stops):
        raise ValueError(f"{len(stops)} stops of {len(reads)} reads")
    return [i for i in range(len(reads)) if (<tuple?> stops[i])[0] < len(<bytes?> (<tuple?> reads[i])[0])]


cdef struct Piece:
    int fd
    const char *data
    Py_ssize_t n


def send_each(connections, list pieces):
    """Send to each connection its bytes, as far as its socket takes them now.

    :param connections: with `socket`, which is None where nothing may be sent directly, or has `is_free`, whether
        something may be sent now, and `descriptor`.

    Returns what is left to be sent, as (connection, bytes, whether it goes on where the socket stopped).
    """
    cdef tuple senders = tuple(connections), kept = tuple(pieces)  # while others run
    cdef Py_ssize_t count = len(senders), i, n = 0
    cdef list left = [], direct = []
    if len(kept) != count:
        raise ValueError(f"{len(kept)} pieces for {count} connections")
    cdef Piece *each = <Piece *> PyMem_RawMalloc(max(1, count) * sizeof(Piece))
    if each == NULL:
        raise MemoryError
    try:
        for i in range(count):
            piece = <bytes?> kept[i]
            if not PyBytes_GET_SIZE(piece):
                continue
            socket = senders[i].socket
            if socket is None or not socket.is_free:
                left.append((senders[i], piece, False))
                continue
            each[n].fd = <int> socket.descriptor
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
