"""Results of a check: a bounded number of findings, and totals."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from enum import StrEnum

import attrs

#: Maximum number of findings that are kept; the others are counted.
FINDINGS_MAX = 1000
#: Advice for files that prevent a broker's start.
FOREIGN_ADVICE = "the broker does not start with it; `mq store repair --move-foreign` moves it away"


def when(timestamp_ms: int) -> str:
    """A time in ms as text, in UTC, for any number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (OverflowError, OSError, ValueError):
        return f"{timestamp_ms} ms"


class Severity(StrEnum):
    """NOTE: nothing to do. BROKEN: needs repair, no message is lost. LOST: messages are lost."""

    NOTE = "note"
    BROKEN = "broken"
    LOST = "lost"


@attrs.frozen
class Finding:
    """One fault or note.

    kind: a machine-readable name. offset: in the file, bytes. messages_lost: as far as they can be counted. advice:
    what to do next; empty for notes.
    """

    severity: Severity
    kind: str
    path: str
    offset: int
    what: str
    advice: str = ""
    messages_lost: int = 0


class Findings:
    """Collects findings; `counts` has all, `kept` the first of each severity. `foreign`: paths that no store has."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.foreign: list[str] = []
        self.counts = dict.fromkeys(Severity, 0)
        self.kinds: Counter[str] = Counter()
        self.messages_lost = 0
        self._kept_notes = 0

    def add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        self.kinds[finding.kind] += 1
        self.messages_lost += finding.messages_lost
        if finding.severity is Severity.NOTE:  # must not displace others
            self._kept_notes += 1
            if self._kept_notes > FINDINGS_MAX:
                return
        elif len(self.kept) - min(self._kept_notes, FINDINGS_MAX) >= FINDINGS_MAX:
            return
        self.kept.append(finding)

    def note(self, kind: str, path: str, offset: int, what: str, messages_lost: int = 0) -> None:
        self.add(Finding(Severity.NOTE, kind, path, offset, what, messages_lost=messages_lost))

    def broken(self, kind: str, path: str, offset: int, what: str, advice: str) -> None:
        self.add(Finding(Severity.BROKEN, kind, path, offset, what, advice))

    def lost(self, kind: str, path: str, offset: int, what: str, advice: str, messages_lost: int = 0) -> None:
        self.add(Finding(Severity.LOST, kind, path, offset, what, advice, messages_lost))

    def foreign_file(self, path: str, why: str) -> None:
        self.foreign.append(path)
        self.broken("foreign file", path, 0, why, FOREIGN_ADVICE)

    @property
    def is_clean(self) -> bool:
        return not self.counts[Severity.BROKEN] and not self.counts[Severity.LOST]

    @property
    def left_out(self) -> int:
        return sum(self.counts.values()) - len(self.kept)


@attrs.define
class Totals:
    """Totals of a check; offsets and bytes are of the log."""

    segments: int = 0
    segment_bytes: int = 0
    log_first: int = 0
    log_end: int = 0
    records: int = 0
    record_bytes: int = 0
    damaged_bytes: int = 0
    fenced_bytes: int = 0
    topics: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
