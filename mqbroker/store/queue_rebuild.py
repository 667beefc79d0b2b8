"""Building consume queues when a store is opened: from what recovery reads of the log, or from the log once it is open.

Must never know from where on they have to be built.
"""

from __future__ import annotations

import attrs

from mqbroker.store.checkpoint_file import CheckpointFile
from mqbroker.store.commitlog import CommitLog
from mqbroker.store.consumequeue_dispatcher import ConsumeQueueDispatcher
from mqbroker.store.consumequeues import ConsumeQueues
from mqbroker.store.disk import IDisk
from mqbroker.store.dispatch import TURN_MESSAGES, Dispatcher
from mqbroker.store.logscan import Run
from mqbroker.store.turns import Progress, Steps

#: Queues are saved each so many bytes of the log: after a kill it goes on from there.
SAVE_BYTES = 1024 * 1024 * 1024


@attrs.define
class QueueRebuild:
    """Builds them. `saved`: what is in the log below is in the queues, on the disk as far as it ever will be told.
    `have_more`: some queues have had what is above from the beginning."""

    cq_dispatcher: ConsumeQueueDispatcher
    queues: ConsumeQueues
    checkpoint: CheckpointFile
    disk: IDisk
    saved: int
    have_more: bool

    def take(self, run: Run) -> None:
        """Put messages into their queues that recovery has read. Raises OSError."""
        self.cq_dispatcher.take_run(run)
        self.cq_dispatcher.write()
        self._save_sometimes(run.end)

    def catch_up(self, dispatcher: Dispatcher, commit_log: CommitLog) -> Steps[None]:
        """Have the dispatcher put all into the queues that is in the log. Raises OSError."""
        self.saved = dispatcher.offset
        while dispatcher.offset < commit_log.readable_end:
            dispatcher.dispatch(TURN_MESSAGES)
            self._save_sometimes(dispatcher.offset)
            yield Progress("consume queues are built from the log", dispatcher.offset, commit_log.readable_end)

    def _save_sometimes(self, offset: int) -> None:
        if offset - self.saved < SAVE_BYTES:
            return
        for queue in self.queues:
            queue.clear_kept()
        tally = None if self.have_more else self.queues.tally_now()
        for file in self.queues.take_unsynced():
            file.sync()
        for directory in self.queues.take_new_names():
            self.disk.sync_directory(directory)
        self.checkpoint.note_queues(offset, self.cq_dispatcher.last_timestamp_ms, tally)
        self.saved = offset
