# The time, which is asked for several times in each turn.

cdef class OffsetClock:
    """See `mqbroker.kernel`."""

    cdef public object monotonic
    cdef public double ahead, fresh_until

    def __call__(self):
        cdef double now = self.monotonic()
        if now >= self.fresh_until:
            self.look(now)
        return now + self.ahead
