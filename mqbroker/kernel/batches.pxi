# Sends that leave together in a batch: taken, awaited by asyncio's tasks, and given their results. The general path, with
# the same outcome, is mqbroker/client/automatic_batches.py.

cimport cython
from libc.stdint cimport INT64_MAX

cdef extern from "Python.h":
    object PyMember_GetOne(const char *o, PyMemberDef *member)


cdef class Slots:
    """See `mqbroker.kernel`."""

    cdef public object _waiting
    cdef public int64_t _granted, _count, _bytes, _count_max, _bytes_max

    def __init__(self, count_max, bytes_max, waiting):
        self._count_max, self._bytes_max = min(count_max, INT64_MAX), min(bytes_max, INT64_MAX)
        self._waiting = waiting

    @property
    def is_full(self):
        return self.full()

    def acquired(self, int64_t size, int64_t count=1):
        return self.is_free(size, count) and self._occupied(size, count)

    def _occupied(self, int64_t size, int64_t count=1):
        if not self.has_room(size, count):
            return False
        self.occupy(size, count)
        return True

    cdef bint full(self) noexcept:
        return self._count >= self._count_max or self._bytes >= self._bytes_max

    cdef bint is_free(self, int64_t size, int64_t count) except -1:
        return not self._granted and not self._waiting and self.has_room(size, count)

    cdef bint has_room(self, int64_t size, int64_t count) noexcept:
        cdef int64_t after = self._count + count
        return after <= 1 or (after <= self._count_max and size <= self._bytes_max - self._bytes)

    cdef void occupy(self, int64_t size, int64_t count) noexcept:
        self._count += count
        self._bytes += size


cdef enum:
    WAITING
    DONE
    CANCELLED


@cython.freelist(1024)
cdef class Waiter:
    """A future of one send of a batch. A task of asyncio awaits it as one of its own futures; those of a batch are woken
    together, which saves a call of the loop for each. `await` returns nothing: see `result`."""

    cdef public bint _asyncio_future_blocking
    cdef object loop, callback, context, outcome
    cdef BatchResults results
    cdef Py_ssize_t index
    cdef int state

    def __init__(self, loop):
        self.loop = loop

    def get_loop(self):
        return self.loop

    def done(self):
        return self.state != WAITING

    def cancelled(self):
        return self.state == CANCELLED

    def cancel(self, msg=None):
        if self.state != WAITING:
            return False
        self.end(CANCELLED, None)
        return True

    def set_result(self, result):
        if self.state != WAITING:
            raise ValueError("the send has ended")
        self.end(DONE, result)

    def result(self):
        if self.state == WAITING:
            raise ValueError("the send has not ended")
        if self.state == CANCELLED:
            from asyncio import CancelledError

            raise CancelledError
        if self.results is not None:
            self.outcome = self.results.result_of(self.index)
            self.results = None
        return self.outcome

    def add_done_callback(self, callback, *, context=None):
        if self.state == WAITING:
            self.callback, self.context = callback, context
        else:
            self.loop.call_soon(callback, self, context=context)

    def __await__(self):
        if self.callback is not None:
            raise RuntimeError("a send is awaited twice")
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.state != WAITING:  # without a value, Cython makes no exception
            raise StopIteration
        self._asyncio_future_blocking = True
        return self

    cdef int end(self, int state, object outcome) except -1:
        self.state, self.outcome = state, outcome
        if self.callback is not None:
            self.loop.call_soon(wake_waiters, [self])
        return 0


def wake_waiters(list waiters not None):
    """Let the tasks continue that await sends which have ended, and empty the list."""
    cdef Py_ssize_t i
    cdef Waiter waiter
    for i in range(len(waiters)):
        waiter = <Waiter?> waiters[i]
        waiters[i] = None  # what it holds goes when its task has gone on
        callback, context = waiter.callback, waiter.context
        waiter.callback = waiter.context = None
        if callback is None:
            continue
        try:
            context.run(callback, waiter)
        except BaseException:  # the program ends, perhaps
            waiter.loop.call_soon(wake_waiters, waiters[i + 1:])
            raise


@cython.final
cdef class BatchResults:
    """The results of a batch's sends, made when they are looked at: a `kind` for each, as `whole` is for all, with an id
    and an offset of its own."""

    cdef list ids, offset_ids
    cdef object status, queue, offset, is_traced
    cdef type kind
    cdef PyMemberDef *slots[6]

    def __init__(self, list ids not None, list offset_ids not None, object whole, type kind not None):
        cdef int i
        if len(ids) != len(offset_ids):
            raise ValueError("not an offset id for each id")
        for i, name in enumerate(("status", "msg_id", "offset_msg_id", "queue", "queue_offset", "is_traced")):
            self.slots[i] = slot_of(kind, name)
        self.ids, self.offset_ids, self.kind = ids, offset_ids, kind
        self.status, self.queue, self.is_traced, self.offset = whole.status, whole.queue, whole.is_traced, whole.queue_offset

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, Py_ssize_t index):
        if not 0 <= index < len(self.ids):
            raise IndexError(index)
        return self.result_of(index)

    cdef object result_of(self, Py_ssize_t index):
        result = PyType_GenericAlloc(<PyTypeObject *> self.kind, 0)
        cdef char *at = <char *> <void *> result
        PyMember_SetOne(at, self.slots[0], self.status)
        PyMember_SetOne(at, self.slots[1], self.ids[index])
        PyMember_SetOne(at, self.slots[2], self.offset_ids[index])
        PyMember_SetOne(at, self.slots[3], self.queue)
        PyMember_SetOne(at, self.slots[4], self.offset + index)
        PyMember_SetOne(at, self.slots[5], self.is_traced)
        return result

    def give_to(self, list waiters not None):
        """End the wait of those who did not cancel it; the list is empty when they go on."""
        cdef Py_ssize_t i
        cdef Waiter waiter
        if len(waiters) != len(self.ids):
            raise ValueError("not a waiter for each result")
        if waiters:  # which may fail
            (<Waiter?> waiters[0]).loop.call_soon(wake_waiters, waiters)
        for i in range(len(waiters)):
            waiter = <Waiter?> waiters[i]
            if waiter.state == WAITING:
                waiter.state, waiter.results, waiter.index = DONE, self, i


@cython.final
cdef class OpenBatch:
    """Messages of one topic that will leave together, and the waiters of their senders."""

    cdef readonly list messages, waiters
    cdef readonly Py_ssize_t body_bytes
    cdef Py_ssize_t size

    def __init__(self):
        self.messages, self.waiters = [], []

    def cancelled(self):
        """Take out the messages whose senders have cancelled them, and return these."""
        cdef Py_ssize_t i
        cdef list found = [], messages = [], waiters = []
        cdef Py_ssize_t found_bytes = 0
        for i in range(len(self.waiters)):
            message = self.messages[i]
            if (<Waiter> self.waiters[i]).state != WAITING:
                found.append(message)
                found_bytes += len(message.body)
            else:
                messages.append(message)
                waiters.append(self.waiters[i])
        if found:
            self.messages, self.waiters = messages, waiters
            self.body_bytes -= found_bytes
        return found


@cython.final
cdef class OpenBatches:
    """Takes messages into batches, one for each topic in `open`, and makes their waiters. `acquired` by `slots`; `full`
    is called when no further send can come.

    Takes a message only if it is a `kind`, its body has at most `body_max` bytes, and the batch has at most `bytes_max`
    with it, where `record_bytes` are counted beside topic, body, keys and properties.
    """

    cdef readonly dict open
    cdef Slots slots
    cdef object loop, full
    cdef PyTypeObject *kind
    cdef Py_ssize_t body_max, bytes_max, record_bytes
    cdef PyMemberDef *topic
    cdef PyMemberDef *body
    cdef PyMemberDef *delay_level
    cdef PyMemberDef *wait_stored
    cdef PyMemberDef *properties
    cdef PyMemberDef *keys
    cdef object held

    def __init__(
        self, object loop, Slots slots not None, object full, type kind not None, Py_ssize_t body_max,
        Py_ssize_t bytes_max, Py_ssize_t record_bytes,
    ):
        self.open, self.loop, self.slots, self.full, self.held = {}, loop, slots, full, kind
        self.kind = <PyTypeObject *> kind
        self.body_max, self.bytes_max, self.record_bytes = body_max, bytes_max, record_bytes
        self.topic, self.body = slot_of(kind, "topic"), slot_of(kind, "body")
        self.delay_level, self.wait_stored = slot_of(kind, "delay_level"), slot_of(kind, "wait_stored")
        self.properties, self.keys = slot_of(kind, "properties"), slot_of(kind, "keys")

    def take(self, message):
        """The waiter of a message that is taken, in a slot; None if it is not."""
        cdef Waiter waiter = self.put(message, False)
        if waiter is not None and self.slots.full():
            self.full()
        return waiter

    def add(self, message):
        """As `take`, of a message that has a slot; without a call of `full`."""
        return self.put(message, True)

    cdef Waiter put(self, message, bint has_slot):
        cdef const char *at = <const char *> <void *> message
        cdef OpenBatch batch
        cdef Waiter waiter
        cdef Py_ssize_t size
        if Py_TYPE(message) != self.kind:
            return None
        topic = PyMember_GetOne(at, self.topic)
        batch = self.open.get(topic)
        if batch is None:
            return None
        body = PyMember_GetOne(at, self.body)
        if type(body) is not bytes or not 0 < len(<bytes> body) <= self.body_max:
            return None
        if PyMember_GetOne(at, self.delay_level) or PyMember_GetOne(at, self.wait_stored) is not True:
            return None
        size = self.record_bytes + len(topic) + len(<bytes> body)
        properties, keys = PyMember_GetOne(at, self.properties), PyMember_GetOne(at, self.keys)
        if properties or keys:
            size += sum(map(len, keys)) + sum(map(len, properties)) + sum(map(len, properties.values()))
        if batch.messages and size > self.bytes_max - batch.size:
            return None
        if not has_slot and not self.slots.is_free(len(<bytes> body), 1):
            return None
        waiter = Waiter.__new__(Waiter)
        waiter.loop = self.loop
        batch.messages.append(message)
        try:
            batch.waiters.append(waiter)
        except MemoryError:
            del batch.messages[len(batch.messages) - 1]
            raise
        batch.size += size
        batch.body_bytes += len(<bytes> body)
        if not has_slot:
            self.slots.occupy(len(<bytes> body), 1)
        return waiter
