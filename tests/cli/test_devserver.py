"""`mq dev`: its settings, and what it says."""

import fcntl
import os
from pathlib import Path

import pytest

from mqbroker.cli.dev import _directory, remove_abandoned
from mqbroker.cli.devserver import Place, broker_settings, lock_directory, namesrv_settings, port_in_use, welcome
from mqbroker.cli.failures import Failure
from mqbroker.config import FlushDiskType


def place(directory: Path, port: int = 9876, broker_port: int = 10911, *, keeps: bool = True) -> Place:
    return Place(directory, port, broker_port, keeps)


def test_the_broker_is_small_and_on_loopback_only(tmp_path: Path) -> None:
    settings = broker_settings(place(tmp_path), 9876)
    assert settings.server.bind_address == settings.broker_ip1 == settings.broker_ip2 == "127.0.0.1"
    assert settings.namesrv_addr == ("127.0.0.1:9876",)
    assert settings.server.listen_port == 10911
    assert settings.store.mapped_file_size_commit_log == 64 * 1024 * 1024
    assert settings.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert settings.store.store_path_root_dir == str(tmp_path / "store")
    assert settings.auto_create_topic_enable
    assert settings.default_topic_queue_nums == 4


def test_the_name_server_is_on_loopback_only(tmp_path: Path) -> None:
    settings = namesrv_settings(place(tmp_path, port=0))
    assert (settings.server.bind_address, settings.server.listen_port) == ("127.0.0.1", 0)
    assert settings.kv_config_path == str(tmp_path / "namesrv" / "kvConfig.json")


def test_the_welcome_gives_commands_that_work_here(tmp_path: Path) -> None:
    text = "\n".join(welcome(place(tmp_path), 9876, 10911, 0.31))
    assert "ready in 0.3 s" in text
    assert "  mq sub hello -g demo\n" in text
    assert '  mq pub hello "hi"\n' in text
    assert str(tmp_path) in text
    elsewhere = "\n".join(welcome(place(tmp_path, keeps=False), 5000, 10911, 0.31))
    assert "mq sub hello -g demo -n 127.0.0.1:5000" in elsewhere
    assert "goes away" in elsewhere


def test_a_taken_port_comes_with_a_command_that_would_do(tmp_path: Path) -> None:
    assert "mq dev --port 9877" in port_in_use(9876, place(tmp_path)).message
    assert "mq dev --broker-port 10912" in port_in_use(10911, place(tmp_path)).message
    assert "--port 65534" in port_in_use(65535, place(tmp_path, port=65535)).message


def test_a_directory_that_cannot_be_created_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(Failure, match=r"^cannot create .*/file/data: Not a directory; .*`mq dev --data`$"),
        _directory(tmp_path / "file" / "data", memory=False),
    ):
        pass


def test_a_directory_serves_one_at_a_time(tmp_path: Path) -> None:
    lock = lock_directory(place(tmp_path))
    with pytest.raises(Failure, match=r"is locked by pid \d+") as refused:
        lock_directory(place(tmp_path))
    assert "mq dev --data" in refused.value.message
    lock.release()
    lock_directory(place(tmp_path)).release()


def test_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    with _directory(tmp_path / "unused", memory=True) as directory:
        (directory / "store").mkdir()
    assert not directory.exists()
    assert not (tmp_path / "unused").exists()


def test_directories_of_killed_processes_are_removed(tmp_path: Path) -> None:
    killed, running, new, linked, other = (
        tmp_path / name for name in ("mq-dev-a", "mq-dev-b", "mq-dev-c", "mq-dev-d", "e")
    )
    for directory in (killed, running, new, other):
        (directory / "store").mkdir(parents=True)
    linked.symlink_to(other)
    for directory in (killed, running, other):
        os.utime(directory, (0, 0))
    lock = os.open(running, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned(tmp_path)
    finally:
        os.close(lock)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "mq-dev-b", "mq-dev-c", "mq-dev-d"]
    assert (other / "store").is_dir()


def test_a_running_process_keeps_its_directory_in_memory(tmp_path: Path) -> None:
    with _directory(tmp_path / "unused", memory=True) as directory:
        (directory / "store").mkdir()
        os.utime(directory, (0, 0))
        remove_abandoned(directory.parent)
        assert (directory / "store").is_dir()


def test_a_directory_stays(tmp_path: Path) -> None:
    with _directory(tmp_path / "a" / "b", memory=False) as directory:
        pass
    assert directory.is_dir()
