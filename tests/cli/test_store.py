"""`mq store`: what it prints, how it ends, and that it leaves a broker's directory alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from mqbroker.cli.progress import ProgressLine, size_text
from mqbroker.store.checkpoint import Checkpoint, encode_checkpoint
from mqbroker.store.layout import lock_file, lock_holder
from tests.store.harness import golden_messages, unpack_golden
from tests.store.offline.stores import flip, picture


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack_golden("store-clean", tmp_path)


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["store", *map(str, args)], prog_name="mq")
    return result.exit_code, result.stdout, result.stderr


def damage(root: Path) -> None:
    flip(root / "commitlog" / f"{0:020d}", golden_messages()[100]["offset"] + 89)


def test_a_whole_store_is_clean(root: Path) -> None:
    before = picture(root)
    code, out, err = run("check", root)
    assert (code, err) == (0, "")
    assert "records    343" in out
    assert "result     clean" in out
    assert picture(root) == before


def test_damage_is_told_with_place_and_advice(root: Path) -> None:
    damage(root)
    code, out, _ = run("check", root)
    assert code == 1
    assert "damaged log" in out
    assert "body CRC differs" in out
    assert "mq store repair --fence" in out
    assert "1 messages lost" in out


def test_programs_get_json(root: Path) -> None:
    damage(root)
    code, out, _ = run("check", root, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["clean"] is False
    assert found["totals"]["records"] == 342
    assert {"kind", "severity", "path", "offset", "what", "advice", "messages_lost"} == set(found["findings"][0])


def test_a_store_that_is_open_is_refused_with_the_process(root: Path) -> None:
    lock = lock_file(str(root / "lock"))
    before = picture(root)
    try:
        for command in (("check",), ("repair",), ("repair", "--write")):
            code, out, err = run(command[0], root, *command[1:])
            assert (code, out) == (1, "")
            assert f"process {os.getpid()} has it open" in err
        code, out, _ = run("check", root, "--live")
        assert code == 0
        assert f"process {os.getpid()} has it open" in out
    finally:
        lock.release()
    assert picture(root) == before
    assert lock_holder(str(root / "lock")) == ""


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("check",), 2, "Missing argument"),
        (("check", "/no/such/directory"), 2, "does not exist"),
        (("check", __file__), 1, "not a directory"),
        (("check", Path(__file__).parent), 1, "storePathRootDir"),
        (("repair", Path(__file__).parent, "--write"), 1, "storePathRootDir"),
        (("dump", Path(__file__).parent), 1, "storePathRootDir"),
    ],
)
def test_what_is_no_store_is_told(args: tuple[object, ...], code: int, says: str) -> None:
    found, out, err = run(*args)
    assert (found, out) == (code, "")
    assert says in err
    assert "Traceback" not in err
    assert not (Path(__file__).parent / "lock").exists()


def test_sizes_come_from_the_settings(root: Path, tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(f"storePathRootDir={root}\nmappedFileSizeCommitLog=131072\nmappedFileSizeConsumeQueue=2000\n"
                        "maxHashSlotNum=100\nmaxIndexNum=400\n")  # fmt: skip
    assert run("check", root, "-c", settings)[0] == 0
    settings.write_text(f"storePathRootDir={root}\n")
    code, out, _ = run("check", root, "-c", settings)
    assert code == 1
    assert "where a segment has 1073741824" in out


def test_a_log_elsewhere_is_named(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    assert run("check", root)[0] == 1
    assert run("check", root, "--commitlog", tmp_path / "log")[0] == 0


def test_a_repair_is_told_first_and_done_when_asked_for(root: Path) -> None:
    damage(root)
    before = picture(root)
    code, out, _ = run("repair", root, "--fence")
    assert code == 1
    assert "to do: fence bytes" in out
    assert "add --write" in out
    assert picture(root) == before
    code, out, _ = run("repair", root, "--fence", "--write")
    assert code == 0
    assert "done: fence bytes" in out
    assert "can be deleted once" in out
    assert run("check", root)[0] == 0
    assert run("repair", root)[:2] == (0, run("repair", root)[1])
    assert "nothing to do" in run("repair", root)[1]
    assert json.loads(run("repair", root, "--json")[1])["repair"]["steps"] == []


def test_messages_are_printed_one_a_line(root: Path) -> None:
    code, out, _ = run("dump", root)
    lines = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert [int(cells[0]) for cells in lines] == [message["offset"] for message in golden_messages()]
    assert {len(cells) for cells in lines} == {9}
    assert lines[0][1:8] == ["Auto_x1vdv_17", "1", "0", "2026-11-21 10:05:15.243 UTC", "212", "TagA", "k0"]


def test_messages_are_chosen(root: Path) -> None:
    topic = "T_x1vdv_40"
    assert len(run("dump", root, "--topic", topic)[1].splitlines()) == 100
    found = run("dump", root, "--topic", topic, "--queue", 0, "--from", 10, "--to", 13)[1]
    assert [line.split("\t")[3] for line in found.splitlines()] == ["10", "11", "12"]
    assert len(run("dump", root, "--max", 7)[1].splitlines()) == 7
    assert run("dump", root, "--topic", "NOSUCH")[1:] == (
        "",
        "no such message is there; --queues lists the topics and the offsets of their queues\n",
    )
    messages = golden_messages()
    start, end = messages[50]["offset"] + 1, messages[60]["offset"]
    found = run("dump", root, "--from", start, "--to", end)[1]
    assert [int(line.split("\t")[0]) for line in found.splitlines()] == [m["offset"] for m in messages[51:60]]
    for name in ("UNIQ_KEY", "KEYS"):
        key = messages[0]["properties"][name]
        assert run("dump", root, "--key", key)[1].splitlines()[0].split("\t")[0] == "0"


def test_messages_as_json_have_all_fields(root: Path) -> None:
    found = [json.loads(line) for line in run("dump", root, "--json")[1].splitlines()]
    for message, expected in zip(found, golden_messages(), strict=True):
        assert message["properties"] == expected["properties"]
        assert (message["topic"], message["queue_offset"]) == (expected["topic"], expected["queue_offset"])
        assert message["born_host"] == expected["born_host"]
        assert ("body" in message) != ("body_base64" in message)


def test_damage_is_passed_over_and_told_beside(root: Path) -> None:
    damage(root)
    code, out, err = run("dump", root)
    assert (code, len(out.splitlines())) == (0, 342)
    assert "hold no record" in err


def test_queues_index_and_checkpoint_are_listed(root: Path) -> None:
    queues = [json.loads(line) for line in run("dump", root, "--queues", "--json")[1].splitlines()]
    assert len(queues) == 21
    assert {"topic": "T_x1vdv_40", "queue_id": 0, "min_offset": 0, "max_offset": 100} in queues
    assert run("dump", root, "--queues")[1].startswith("topic\tqueue_id\tmin_offset\tmax_offset\n")
    counts = [json.loads(line)["count"] for line in run("dump", root, "--index", "--json")[1].splitlines()]
    assert counts == [400, 72]
    checkpoint = json.loads(run("dump", root, "--checkpoint", "--json")[1])
    assert checkpoint["log_ms"] > 0
    assert (checkpoint["queues_count"], checkpoint["queues_next_offsets_sum"]) == (None, None)  # as Java's has none
    (root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(1, 2, 3, 4, 5, 6, tally=(7, 89))))
    names, cells = (line.split("\t") for line in run("dump", root, "--checkpoint")[1].splitlines())
    assert names[-2:] == ["queues_count", "queues_next_offsets_sum"]
    assert cells[-2:] == ["7", "89"]


def test_a_reader_that_goes_away_is_no_error(root: Path) -> None:
    shown = subprocess.run(
        f"{sys.executable} -m mqbroker.cli store dump {root} --json | head -1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert len(shown.stdout.splitlines()) == 1
    assert shown.stderr == ""


def test_ctrl_c_ends_a_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: ProgressLine, done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(ProgressLine, "at", interrupted)
    try:
        assert run("check", root)[0] == 130
    finally:
        signal.signal(signal.SIGINT, before)


class Stream:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.written = ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> None:
        self.written += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = Stream(is_terminal)
    line = ProgressLine("checking", stream)  # type: ignore[arg-type]
    for second in range(1, 11):
        for _ in range(100):
            line.at(second * 1024**3, 20 * 1024**3)
        now[0] += 1
    line.close()
    assert "checking: 50 %, 10.0 GiB of 20.0 GiB" in stream.written.replace("\x1b[K", "") or not is_terminal
    assert stream.written.count("checking") == (9 if is_terminal else 1)
    assert stream.written.endswith("\r\x1b[K" if is_terminal else "/s\n")


def test_sizes_have_units() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 * 1024**3)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


def test_the_stores_of_other_shards_are_named(root: Path, tmp_path: Path) -> None:
    shard = root / "shard-1"
    unpack_golden("store-clean", tmp_path / "other").rename(shard)
    before = picture(root)
    code, out, _ = run("check", root)
    assert code == 0
    assert out.splitlines()[-1] == f"not read   {shard}: stores of other shards, to be checked one by one"
    code, out, _ = run("check", root, "--json")
    assert (code, json.loads(out)["other_shards"]) == (0, [str(shard)])
    code, out, _ = run("check", shard)
    assert (code, "not read" in out) == (0, False)
    assert picture(root) == before
    code, out, _ = run("repair", root)
    assert (code, "shard" in out) == (0, False)


def test_the_settings_are_those_of_the_shard_whose_directory_is_given(root: Path, tmp_path: Path) -> None:
    shard = root / "shard-2"
    unpack_golden("store-clean", tmp_path / "other").rename(shard)
    (shard / "commitlog").rename(tmp_path / "log-shard-2")
    (root / "commitlog").rename(tmp_path / "log")
    conf = tmp_path / "broker.conf"
    sizes = "mappedFileSizeCommitLog=131072\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
    conf.write_text(f"storePathRootDir={root}\nstorePathCommitLog={tmp_path}/log\nshards=3\n{sizes}")
    flip(tmp_path / "log-shard-2" / f"{0:020d}", golden_messages()[100]["offset"] + 89)
    assert run("check", root, "-c", conf)[0] == 0
    code, out, _ = run("check", shard, "-c", conf)
    assert (code, "body CRC differs" in out) == (1, True)
