"""Which master wrote which part of a log: the epochs of a group of brokers, each with the offset where it began.

Each epoch has one master, which notes where its log ended when it was elected, durably and before it appends. Logs
whose histories share an epoch are equal below the end of that epoch in either.
"""

from __future__ import annotations

import attrs
import orjson

from mqbroker.errors import MQError

OFFSET_MAX = 2**63 - 1
#: More elections than any group has; retention drops the epochs of deleted segments.
EPOCHS_MAX = 100_000


class BadHistory(MQError):
    """Invalid epoch history."""


@attrs.frozen
class Epoch:
    """`start`: where the log of its master ended when it was elected. `lease`: the master's in etcd, by which epochs of
    other groups, and of one that was founded anew, differ."""

    number: int
    start: int
    lease: int


@attrs.frozen
class EpochHistory:
    """The epochs of one log, in order."""

    epochs: tuple[Epoch, ...] = ()

    @property
    def last(self) -> int:
        """The newest epoch; 0 without epochs."""
        return self.epochs[-1].number if self.epochs else 0

    @property
    def lease(self) -> int:
        """The lease with which the master of the newest epoch was elected; 0 without epochs."""
        return self.epochs[-1].lease if self.epochs else 0

    def has(self, number: int, lease: int) -> bool:
        """Whether a part of the log may be of this epoch."""
        return any((epoch.number, epoch.lease) == (number, lease) for epoch in self.epochs)

    def begin(self, new: Epoch, log_min: int = 0) -> EpochHistory:
        """This history and a new epoch, without the epochs whose part of the log lies below `log_min`, and without
        those of which a power cut has left nothing. Raises BadHistory if it is not new."""
        if new.number <= self.last:
            raise BadHistory(f"epoch {new.number} cannot follow epoch {self.last}")
        epochs = (*(epoch for epoch in self.epochs if epoch.start <= new.start), new)
        ends = [epoch.start for epoch in epochs[1:]]
        kept = [epoch for epoch, end in zip(epochs, [*ends, OFFSET_MAX], strict=True) if end >= log_min]
        return EpochHistory(tuple(kept))

    def epoch_at(self, end: int) -> int:
        """The epoch of the last message in a log that ends at `end`; 0 without epochs."""
        return max((epoch.number for epoch in self.epochs if epoch.start <= end), default=0)

    def common_end(self, end: int, other: EpochHistory, other_end: int) -> int | None:
        """Below which offset this log, which ends at `end`, equals the other one; None if they share no epoch."""
        others = set(other.epochs)
        common = next((epoch for epoch in reversed(self.epochs) if epoch in others), None)
        if common is None:
            return None
        return min(self._end_of(common, end), other._end_of(common, other_end))

    def _end_of(self, epoch: Epoch, end: int) -> int:
        following = self.epochs.index(epoch) + 1
        return min(end, self.epochs[following].start) if following < len(self.epochs) else end

    def to_json(self) -> bytes:
        return orjson.dumps({"epochs": [attrs.astuple(epoch) for epoch in self.epochs]})

    @classmethod
    def from_json(cls, data: bytes) -> EpochHistory:
        """Raises BadHistory."""
        try:
            rows = orjson.loads(data)["epochs"]
            epochs = tuple(Epoch(*row) for row in rows[: EPOCHS_MAX + 1])
        except (ValueError, TypeError, KeyError) as error:
            raise BadHistory(f"it is not a history of epochs: {error!r}") from None
        last = Epoch(0, 0, 0)
        for epoch in epochs:
            if not all(type(value) is int and 0 <= value <= OFFSET_MAX for value in attrs.astuple(epoch)):
                raise BadHistory("an epoch, its start or its lease is not an integer")
            if not (last.number < epoch.number and last.start <= epoch.start):
                raise BadHistory(
                    f"epoch {epoch.number} from {epoch.start} on follows {last.number} from {last.start} on"
                )
            last = epoch
        if len(epochs) > EPOCHS_MAX:
            raise BadHistory(f"it has more than {EPOCHS_MAX} epochs")
        return cls(epochs)
