# Reads of many sockets in one call, and writes to many.

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

    def receive(self, list fds):
        """Read once from each of `fds`, as far as the buffer lasts; from the first at least.

        Returns the bytes of each, none where its peer has closed it; the error number where there is one, as EAGAIN.
        """
        cdef Py_ssize_t used = 0, n
        cdef list found = []
        for fd in tuple(fds):
            n = c_recv(<int> fd, self._buffer + used, READ_BYTES, MSG_DONTWAIT)
            if n < 0:
                found.append(errno)
            else:
                found.append(PyBytes_FromStringAndSize(<char *> self._buffer + used, n))
                used += n
            if used > READS_BYTES - READ_BYTES:
                break
        return found


cdef struct Piece:
    int fd
    const char *data
    Py_ssize_t n


def send_each(list fds, list pieces):
    """Send to each socket its bytes, as far as it takes them now. Returns how many bytes each took: 0 also where it
    failed."""
    cdef tuple sockets = tuple(fds), kept = tuple(pieces)  # while others run
    cdef Py_ssize_t count = len(sockets), i
    if len(kept) != count:
        raise ValueError(f"{len(kept)} pieces for {count} sockets")
    cdef Piece *each = <Piece *> PyMem_RawMalloc(max(1, count) * sizeof(Piece))
    if each == NULL:
        raise MemoryError
    try:
        for i in range(count):
            each[i].fd = <int> sockets[i]
            each[i].data = PyBytes_AS_STRING(<bytes?> kept[i])
            each[i].n = PyBytes_GET_SIZE(<bytes> kept[i])
        with nogil:
            for i in range(count):
                each[i].n = max(0, c_send(each[i].fd, each[i].data, each[i].n, MSG_DONTWAIT | MSG_NOSIGNAL))
        return [each[i].n for i in range(count)]
    finally:
        PyMem_RawFree(each)
