"""Which stores of shards a start would leave without anybody who serves them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbroker.config import BrokerSettings, load_broker_settings
from mqbroker.daemons.shard_stores import check_shard_stores, shards_in
from mqbroker.errors import MQError

Make = Callable[..., BrokerSettings]


@pytest.fixture
def of(tmp_path: Path) -> Make:
    def make(shards: int, **given: object) -> BrokerSettings:
        settings = {"storePathRootDir": tmp_path / "store", "shards": shards} | given
        return load_broker_settings(overrides=[(key, str(value)) for key, value in settings.items()])

    return make


def make_log(directory: Path, *segments: bytes) -> str:
    directory.mkdir(parents=True)
    for number, content in enumerate(segments):
        (directory / f"{number * 4096:020d}").write_bytes(content.ljust(4096, b"\0"))
    return str(directory)


RECORD = b"\0\0\0\x80\xda\xa3\x20\xa7"


def test_nothing_is_left_where_there_is_nothing(of: Make, tmp_path: Path) -> None:
    assert check_shard_stores(of(1)) == []
    make_log(tmp_path / "store" / "commitlog", RECORD)
    make_log(tmp_path / "store" / "shard-1" / "commitlog")
    make_log(tmp_path / "store" / "shard-2" / "commitlog", b"", b"")
    (tmp_path / "store" / "shard-3").write_text("a file")
    (tmp_path / "store" / "shard-4" / "config").mkdir(parents=True)
    assert check_shard_stores(of(1)) == []


def test_messages_that_nobody_would_serve_prevent_a_start(of: Make, tmp_path: Path) -> None:
    logs = [make_log(tmp_path / "store" / f"shard-{shard}" / "commitlog", RECORD, b"") for shard in (1, 2, 3)]
    assert check_shard_stores(of(4)) == []
    with pytest.raises(MQError) as caught:
        check_shard_stores(of(2))
    assert str(caught.value) == (
        f"shards=2, and there are messages of others: {logs[1]}, {logs[2]}; set shards=4 to serve them, or "
        "unservedShardsEnable=true to start without them"
    )
    with pytest.raises(MQError, match=r"shards=1, .*shard-1/commitlog, .*set shards=4"):
        check_shard_stores(of(1))


def test_they_are_left_where_that_is_meant(of: Make, tmp_path: Path) -> None:
    log = make_log(tmp_path / "store" / "shard-1" / "commitlog", RECORD)
    [warning] = check_shard_stores(of(1, unservedShardsEnable="true"))
    assert warning == f"shards=1, and there are messages of others: {log}, which are not served"


def test_logs_that_are_not_in_the_directory_of_the_store(of: Make, tmp_path: Path) -> None:
    path = tmp_path / "fast" / "log"
    make_log(path, RECORD)
    log = make_log(tmp_path / "fast" / "log-shard-2", RECORD)
    make_log(tmp_path / "fast" / "log-shard-2-copy", RECORD)
    make_log(tmp_path / "fast" / "log-shard-02", RECORD)
    with pytest.raises(MQError, match=f"messages of others: {log}; set shards=3"):
        check_shard_stores(of(2, storePathCommitLog=path))
    assert check_shard_stores(of(3, storePathCommitLog=path)) == []


def test_a_disk_that_is_mounted_at_the_log_has_no_room_beside_it(
    of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "mounted")
    monkeypatch.setattr(os.path, "ismount", lambda asked: asked == path)
    assert check_shard_stores(of(1, storePathCommitLog=path)) == []
    with pytest.raises(MQError, match="is where a disk is mounted"):
        check_shard_stores(of(2, storePathCommitLog=path))


def test_the_shards_that_have_a_directory(tmp_path: Path) -> None:
    for name in ("shard-2", "shard-1", "shard-0", "shard-01", "shard-x", "shard-", "xshard-3"):
        (tmp_path / name).mkdir()
    assert shards_in(str(tmp_path)) == [1, 2]
    assert shards_in(str(tmp_path / "missing")) == []
