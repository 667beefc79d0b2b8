# The end of the commit log, where encoded records are copied.
# What is done here is done with the same bytes by mqbroker/store/commitlog.py.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer

cdef extern from *:
    """
    /* The compiler keeps what is stored before it before what is stored behind it. */
    #define KEEP_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    """
    void KEEP_ORDER() noexcept nogil

cdef enum:
    COMMIT_BYTES = 8            # stored last
    QUEUED_BYTES = 1 << 24      # that may wait for the dispatcher


cdef class LogTail:
    """See `mqbroker.kernel`."""

    cdef public int64_t end, last_timestamp_ms
    cdef public int64_t _base, _limit, _readied_to, _readied_until, _next_wanted_at
    cdef public object _buffer, _transient, dispatch_queue, run_type
    cdef public dict _refusals
    cdef public list on_dispatchable, on_growth, _unstored

    def next_place(self, int64_t now_ms):
        if self._unstored:
            self._take_back_numbers()
        return max(now_ms, self.last_timestamp_ms), self.end, 0 if self._refusals else self._limit - self.end

    def append_encoded(self, bytes data not None, count, int64_t last, int64_t now, list numbers not None):
        cdef int64_t begin = self.end, n = PyBytes_GET_SIZE(data), start = begin - self._base, stop = start + n
        cdef Py_buffer to
        cdef const char *p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t i
        queue = self.dispatch_queue
        was_empty = not queue
        if (
            self._refusals or self._transient is not None or not PyObject_CheckBuffer(self._buffer)
            or n < COMMIT_BYTES or start < 0 or stop > self._readied_to or now >= self._readied_until
            or begin + n > self._next_wanted_at or (not was_empty and begin - <int64_t> queue[0].start > QUEUED_BYTES)
        ):
            self.append_unready(data, count, last, now, numbers)
            return
        run = self.run_type(begin, begin + n, count, begin + last, now, data, None, now)
        PyObject_GetBuffer(self._buffer, &to, PyBUF_WRITABLE)
        try:
            if stop > to.len:
                raise ValueError(f"{n} bytes at {start} of a segment of {to.len}")
            if was_empty:
                for listener in self.on_dispatchable:
                    listener()
            queue.append(run)
            # Nothing can fail from here on: no object is made before the queues have their numbers.
            memcpy(<char *> to.buf + start + COMMIT_BYTES, p + COMMIT_BYTES, n - COMMIT_BYTES)
            KEEP_ORDER()
            memcpy(<char *> to.buf + start, p, COMMIT_BYTES)
        finally:
            PyBuffer_Release(&to)
        self.end = begin + n
        self.last_timestamp_ms = max(self.last_timestamp_ms, now)
        for i in range(len(numbers)):
            consume_queue, next_offset = <tuple> numbers[i]
            consume_queue.next_offset = next_offset
        for listener in self.on_growth:
            listener()
