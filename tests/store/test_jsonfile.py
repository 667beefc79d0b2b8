"""The file of a table: whole at every moment, whatever fails."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.errors import MQError, StoreDamaged
from mqbroker.store.jsonfile import PIECES_PER_TURN, JsonFile
from mqbroker.store.os_disk import OsDisk, replace_file
from mqbroker.store.worker import InlineWorker
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged, log_kept


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "config" / "table.json")


@pytest.fixture
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def good(data: bytes) -> bytes:
    if not data.startswith(b"good"):
        raise MQError("not good")
    return data


def fired(deferred: Deferred[Any]) -> list[bool]:
    found: list[Any] = []
    deferred.addCallback(found.append)
    return found


def test_there_is_nothing_at_first(path: str) -> None:
    assert JsonFile(path, InlineWorker(), OsDisk()).load(good) is None


def test_what_is_saved_is_loaded(path: str) -> None:
    file = JsonFile(path, InlineWorker(), OsDisk())
    assert fired(file.save(lambda: b"good 1")) == [True]
    assert file.load(good) == b"good 1"
    assert not os.path.exists(path + ".bak")
    assert fired(file.save(lambda: b"good 2")) == [True]
    assert (read(path), read(path + ".bak")) == (b"good 2", b"good 1")
    assert sorted(os.listdir(os.path.dirname(path))) == ["table.json", "table.json.bak"]


@pytest.mark.parametrize("damage", ["missing", "damaged", "empty"])
def test_the_former_content_is_used_where_the_file_is_bad(path: str, logged: Logged, damage: str) -> None:
    file = JsonFile(path, InlineWorker(), OsDisk())
    file.save(lambda: b"good 1")
    file.save(lambda: b"good 2")
    if damage == "missing":
        os.unlink(path)
    else:
        with open(path, "wb") as out:
            out.write(b"\0\0" if damage == "damaged" else b"")
    assert file.load(good) == b"good 1"
    assert f"{path}.bak is used instead of {path}" in logged.lines


def test_a_damaged_file_does_not_take_the_place_of_the_former(path: str) -> None:
    file = JsonFile(path, InlineWorker(), OsDisk())
    file.save(lambda: b"good 1")
    file.save(lambda: b"good 2")
    with open(path, "wb") as out:
        out.write(b"rot")
    file = JsonFile(path, InlineWorker(), OsDisk())
    assert file.load(good) == b"good 1"
    assert fired(file.save(lambda: b"good 3")) == [True]
    assert [read(path + end) for end in ("", ".bak", ".damaged")] == [b"good 3", b"good 1", b"rot"]
    assert fired(file.save(lambda: b"good 4")) == [True]
    assert [read(path + end) for end in ("", ".bak", ".damaged")] == [b"good 4", b"good 3", b"rot"]


def test_where_nothing_can_be_read_it_is_an_error_with_the_path(path: str, logged: Logged) -> None:
    file = JsonFile(path, InlineWorker(), OsDisk())
    file.save(lambda: b"bad 1")
    file.save(lambda: b"bad 2")
    with pytest.raises(StoreDamaged) as caught:
        file.load(good)
    assert caught.value.path == path
    assert "not good" in str(caught.value)
    assert f"{path} cannot be read: not good" in logged.lines


def test_saves_during_a_write_are_one_write_of_the_last(path: str) -> None:
    worker, asked = SteppedWorker(at_once=False), []
    file = JsonFile(path, worker, OsDisk())

    def content(name: int) -> Callable[[], bytes]:
        return lambda: asked.append(name) or b"good %d" % name

    done = [fired(file.save(content(n))) for n in range(5)]
    assert asked == [0]
    worker.step()
    assert read(path) == b"good 0"
    assert asked == [0, 4]
    worker.step()
    assert worker.waiting == []
    assert read(path) == b"good 4"
    assert done == [[True]] * 5
    assert fired(file.save(content(9))) == []
    worker.step()
    assert read(path) == b"good 9"


def test_content_is_taken_when_the_write_begins(path: str) -> None:
    worker, value = SteppedWorker(at_once=False), [b"good early"]
    file = JsonFile(path, worker, OsDisk())
    file.save(lambda: value[0])
    file.save(lambda: value[0])
    value[0] = b"good late"
    worker.step()
    worker.step()
    assert read(path) == b"good late"


def test_a_failed_write_leaves_what_was_and_is_told(path: str, logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    file = JsonFile(path, InlineWorker(), OsDisk())
    file.save(lambda: b"good 1")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert fired(file.save(lambda: b"good 2")) == [False]
    assert file.load(good) == b"good 1"
    assert f"{path} could not be written: [Errno 28] No space left on device" in logged.lines
    assert fired(file.save(lambda: b"good 3")) == [True]
    assert file.load(good) == b"good 3"


def test_what_could_not_be_written_is_written_when_it_is_tried_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SteppedWorker(at_once=False)
    file = JsonFile(path, worker, OsDisk())
    file.retry()
    assert worker.waiting == []
    file.save(lambda: b"good 1")
    saved = fired(file.saved())

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        worker.step()
    assert saved == [False]
    assert file.saved() is None
    assert not os.path.exists(path)
    file.retry()
    file.retry()
    worker.step()
    assert file.load(good) == b"good 1"
    file.retry()
    assert worker.waiting == []


def test_one_that_waited_hears_of_the_write_that_had_its_content(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SteppedWorker(at_once=False)
    file = JsonFile(path, worker, OsDisk())
    first, second = fired(file.save(lambda: b"good 1")), fired(file.save(lambda: b"good 2"))
    worker.step()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    worker.step()
    assert second == [False]
    assert first != []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    assert fired(JsonFile(str(tmp_path / "config" / "t.json"), InlineWorker(), OsDisk()).save(lambda: b"good")) == [
        False
    ]


class Killed(BaseException):
    pass


def no_links(number: int) -> Callable[[str, str], None]:
    def link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source)

    return link


STEPS = ["fsync", "replace", "unlink", "open"]


@pytest.mark.parametrize(("step", "links"), [("link", True), *itertools.product(STEPS, [True, False])])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_step_the_file_is_whole(
    path: str, monkeypatch: pytest.MonkeyPatch, step: str, count: int, after: bool, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links(errno.EPERM))
    for n in (1, 2):
        replace_file(path, b"good %d" % n)
    real, calls = getattr(os, step), [0]

    def dying(*args: int | str, **kwargs: Any) -> int | None:
        calls[0] += 1
        if calls[0] == count:
            if after:
                real(*args, **kwargs)
            raise Killed
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, step, dying)
        try:
            replace_file(path, b"good 3")
        except Killed:
            pass
        else:
            assert calls[0] < count
    assert read(path) in (b"good 2", b"good 3")  # never missing, never half
    assert read(path + ".bak") in (b"good 1", b"good 2")
    replace_file(path, b"good 4")  # and what the dead one left is in nobody's way
    assert (read(path), read(path + ".bak")[:4]) == (b"good 4", b"good")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links(path: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "link", no_links(number))
    replace_file(path, b"good 1")
    os.chmod(path, 0o640)
    replace_file(path, b"good 2")
    assert (read(path), read(path + ".bak")) == (b"good 2", b"good 1")
    assert [mode_of(each) for each in (path, path + ".bak")] == [0o640, 0o640]


def mode_of(path: str | Path) -> int:
    return os.stat(path).st_mode & 0o777


def test_a_new_file_is_for_its_user_alone_and_another_for_whom_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "config" / "t.json")
    replace_file(path, b"good 1")
    assert [mode_of(each) for each in (path, tmp_path / "new" / "config", tmp_path / "new")] == [0o600, 0o700, 0o700]
    os.chmod(path, 0o644)
    replace_file(path, b"good 2")
    assert mode_of(path) == 0o644


def test_another_error_than_that_there_are_no_links_is_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(path, b"good 1")
    monkeypatch.setattr(os, "link", no_links(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(path, b"good 2")
    assert read(path) == b"good 1"


def test_what_is_renamed_is_on_the_disk_and_then_its_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(path, b"good 1")
    done = []
    fsync, replace = os.fsync, os.replace

    def syncing(fd: int) -> None:
        fsync(fd)
        done.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))

    def replacing(old: str, new: str) -> None:
        replace(old, new)
        done.append(("rename", new))

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    replace_file(path, b"good 2")
    assert done == [
        ("sync", path + ".tmp"),
        ("rename", path + ".bak"),
        ("rename", path),
        ("sync", os.path.dirname(path)),
    ]


class Turns(list[Callable[[], object]]):
    """What waits for the reactor's next turn."""

    def go_round(self) -> None:
        self.pop(0)()


def test_a_content_in_pieces_is_gathered_in_turns(path: str) -> None:
    turns = Turns()
    file = JsonFile(path, InlineWorker(), OsDisk(), turns.append)
    taken = []

    def pieces(name: str) -> Iterator[bytes]:
        for number in range(2 * PIECES_PER_TURN + 1):
            taken.append(number)
            yield f"{name}{number};".encode()

    done = fired(file.save(lambda: pieces("a")))
    assert len(taken) == PIECES_PER_TURN
    later = fired(file.save(lambda: pieces("b")))  # once the first is written
    turns.go_round()
    assert len(taken) == 2 * PIECES_PER_TURN
    assert not os.path.exists(path)
    saved = fired(file.saved())
    turns.go_round()
    assert read(path) == b"".join(f"a{n};".encode() for n in range(2 * PIECES_PER_TURN + 1))
    assert (done, later, saved) == ([], [], [])
    while turns:
        turns.go_round()
    assert read(path).startswith(b"b0;b1;")
    assert read(path + ".bak").startswith(b"a0;a1;")
    assert (done, later, saved) == ([True], [True], [True])


def test_few_pieces_take_no_turn(path: str) -> None:
    turns = Turns()
    file = JsonFile(path, InlineWorker(), OsDisk(), turns.append)
    assert fired(file.save(lambda: iter([b"good", b" 1"]))) == [True]
    assert not turns
    assert read(path) == b"good 1"


@pytest.mark.parametrize("at", [0, 10, PIECES_PER_TURN + 10])
def test_pieces_that_cannot_be_made_leave_the_file_as_it_was(path: str, logged: Logged, at: int) -> None:
    turns = Turns()
    file = JsonFile(path, InlineWorker(), OsDisk(), turns.append)
    file.save(lambda: b"good 1")

    def pieces() -> Iterator[bytes]:
        for number in range(2 * PIECES_PER_TURN):
            if number == at:
                raise RuntimeError("changed meanwhile")
            yield b"x"

    done = fired(file.save(pieces))
    while turns:
        turns.go_round()
    assert done == [False]
    assert read(path) == b"good 1"
    assert any("changed meanwhile" in line for line in logged.lines)
    assert fired(file.save(lambda: b"good 2")) == [True]


def test_content_that_cannot_be_made_ends_the_save_that_waited_for_it_and_no_other(path: str, logged: Logged) -> None:
    worker = SteppedWorker(at_once=False)
    file = JsonFile(path, worker, OsDisk())

    def fail() -> bytes:
        raise MemoryError("no room for it")

    assert fired(file.save(fail)) == [False]  # when it would begin at once
    for number in range(2):
        first = fired(file.save(lambda number=number: b"good %d" % number))  # type: ignore[misc]
        behind, saved = fired(file.save(fail)), fired(file.saved())
        worker.step()
        assert (behind, saved) == ([False], [False])
        assert first == [False]  # as all that are told of the last content
        assert read(path) == b"good %d" % number
        assert file.saved() is None
    assert any("no room for it" in line for line in logged.lines)
    last = fired(file.save(lambda: b"good at last"))
    worker.step()
    assert last == [True]
