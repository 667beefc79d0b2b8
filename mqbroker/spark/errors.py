"""Errors of the data source for users. Each message says what, why, and what would be valid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import attrs

from mqbroker.client.errors import SendFailed, is_about_account
from mqbroker.errors import MQError, Refused
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import ResponseCode


@attrs.define
class BadOption(MQError):
    """An invalid option, or column of the requested schema."""

    name: str
    why: str

    def __str__(self) -> str:
        # It may quote the option, whose length is not limited.
        why = self.why
        if len(why) > _WHY_MAX:
            why = f"{why[: _WHY_MAX // 2]} ... {why[-_WHY_MAX // 4 :]}"
        return f"option {self.name[:100]}: {why}"


_WHY_MAX = 1200


class BadSchema(MQError):
    """A schema given by the user that does not fit what a message has."""


@attrs.define
class BadCheckpoint(MQError):
    """The checkpoint of a stream cannot be continued."""

    directory: str
    why: str

    def __str__(self) -> str:
        return f"checkpoint {self.directory}: {self.why}"


class Loss(Enum):
    """How messages that should be read can be lost."""

    AGED_OUT = "the broker has deleted messages that were not read yet"
    CUT_SHORT = "the queue ends before messages that were there; it was truncated, or deleted and created again"
    QUEUE_GONE = "the broker no longer has this queue; the topic was shrunk, or deleted and created again"
    NOT_DENSE = "the broker left out messages, or returned others than requested"
    RECREATED = "the message that was read last has been replaced by another; the topic was deleted and created again"
    CORRUPT = "the broker's copy of a message is corrupt"


#: How the messages may be brought back: a query that starts again then reads them.
_CHECK_FIRST = {
    Loss.CUT_SHORT: "They may be on the former master, or in a backup: look there first. ",
    Loss.CORRUPT: "A slave may have a good copy. Check the broker's store (`mq store check`). ",
    Loss.NOT_DENSE: "Check that the name server names the right broker, and the broker's store (`mq store check`). ",
}


@attrs.define
class DataLoss(MQError):
    """Messages of `queue` that must be read are lost; `details` names the offsets.

    They are those from `first` up to, but without, `resume`, where reading can continue; None if that is unknown.
    """

    loss: Loss
    queue: MessageQueue
    details: str
    first: int | None = None
    resume: int | None = None

    def __str__(self) -> str:
        q = self.queue
        return (
            f"ROCKETMQ_DATA_LOSS.{self.loss.name}: topic {q.topic}, broker {q.broker_name}, queue {q.queue_id}: "
            f"{self.loss.value} ({self.details}). {_CHECK_FIRST.get(self.loss, '')}To continue without them, start "
            "the query again with failOnDataLoss=false; a stream keeps its checkpoint"
        )


@attrs.define
class BadRow(MQError):
    """A row that cannot be a message; `row` counts from 0 in its partition."""

    partition: int
    row: int
    column: str
    why: str

    def __str__(self) -> str:
        return f"row {self.row} of partition {self.partition}, column {self.column}: {self.why}"


class NotWritten(MQError):
    """Brokers did not acknowledge rows within `retryTimeoutMs`, or not as `acks` demands."""


class NotReadable(MQError):
    """Brokers did not return the requested messages within `retryTimeoutMs`."""


@attrs.define
class NotAllowed(MQError):
    """A broker refused the account, the group, or the request itself; `what` names the queue and the offset, or the
    rows."""

    what: str
    remark: str
    todo: str

    def __str__(self) -> str:
        return f"{self.what}: refused by the broker: {self.remark}. {self.todo}"


_ACCOUNT = (
    "Check accessKey and secretKey, and the account's permissions in the broker's plain_acl.yml: a read needs SUB for "
    "the topic and for consumerGroup, a write PUB for the topic, and SUB too with guarantee=effectively-once"
)
_FORBIDDEN: dict[int, str] = {
    ResponseCode.NO_PERMISSION: "Check the permissions of topic and broker, and whether the group is enabled",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Create the group, or set consumerGroup to one that exists",
    ResponseCode.MESSAGE_ILLEGAL: "Compare the rows with maxMessageSize in the broker, and lower batchBytes",
}


def refused_for_good(error: MQError) -> Refused | None:
    """The refusal of the account that `error` is, or with which all of its attempts ended; None for other errors."""
    causes = [cause for _, _, cause in error.attempts] if isinstance(error, SendFailed) else [error]
    last = causes[-1] if causes and all(map(is_about_account, causes)) else None
    return last if isinstance(last, Refused) else None


def explained(error: MQError, what: str) -> MQError:
    """NotAllowed if a broker refused the account, the group or the request; otherwise `error` itself."""
    refused = refused_for_good(error)
    if refused is not None:
        return NotAllowed(what, refused.remark, _ACCOUNT)
    if isinstance(error, Refused):
        todo = _FORBIDDEN.get(error.code, "See the log of the broker")
        return NotAllowed(what, f"{error.remark} (code {int(error.code)})", todo)
    return error


@attrs.define
class NotOnExecutors(MQError):
    """The Python of the executors lacks a package; `python` is its path, if that is known."""

    package: str
    python: str | None = None

    def __str__(self) -> str:
        where = "" if self.python is None else f" ({self.python})"
        return (
            f"the Python of the executors{where} cannot import {self.package}: install it there with "
            "`pip install 'mqbroker[spark]'` and set PYSPARK_PYTHON to that Python, or make a zip with "
            "`python -m mqbroker.spark.bundle FILE.zip` and pass it with --py-files, or spark.addArtifact; "
            "PySpark, Arrow (pyarrow) and NumPy must be installed"
        )


@contextmanager
def needed_by_workers() -> Iterator[None]:
    """Raise NotOnExecutors if an import in a Python worker fails."""
    try:
        yield
    except ImportError as error:
        raise NotOnExecutors(error.name or str(error), sys.executable) from None


@attrs.define
class PySparkTooOld(MQError):
    """This version of PySpark has no data sources in Python."""

    version: str

    def __str__(self) -> str:
        return (
            f'the format "rocketmq" needs PySpark 4.0 or later, and this is {self.version}: use mqbroker.spark.read, '
            "mqbroker.spark.stream and mqbroker.spark.write, which need no format"
        )
