"""Settings that are changed while a daemon runs: what a request may hold, and what becomes of the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqbroker.config import Host, load_broker_settings, load_namesrv_settings
from mqbroker.config.changes import CHANGES_BYTES_MAX, change_settings, conf_with, read_changes, rewrite_conf
from mqbroker.errors import BadSetting

HOST = Host("/home/u", "box", "192.0.2.7")


def test_a_request_is_a_properties_text() -> None:
    assert read_changes(b"a=1\n# no\nb : x\\\n  y \n\\u0061=2") == {"a": "2", "b": "xy"}
    assert read_changes(b"") == {}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"a=\\uzzzz", "four hexadecimal digits"),
        (b"\xff", "not UTF-8"),
        (b"a" * (CHANGES_BYTES_MAX + 1), f"{CHANGES_BYTES_MAX} at most"),
    ],
)
def test_a_request_that_is_none(body: bytes, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        read_changes(body)


def test_settings_of_the_parts_are_changed_too() -> None:
    settings = load_broker_settings(host=HOST)
    changes = {"brokerPermission": "4", "fileReservedTime": "9"}
    changed = change_settings(settings, changes, changes)
    assert (changed.broker_permission, changed.store.file_reserved_time_hours) == (4, 9)
    assert changed.server == settings.server
    assert settings.broker_permission == 6


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("listenPort", "1", "it cannot be changed while the daemon runs"),
        ("nonsense", "1", "it cannot be changed while the daemon runs"),
        ("orderMessageEnable", "maybe", "'maybe' is neither true nor false"),
    ],
)
def test_what_is_not_allowed_or_wrong_changes_nothing(key: str, value: str, why: str) -> None:
    settings = load_namesrv_settings(host=HOST)
    with pytest.raises(BadSetting, match=why):
        change_settings(settings, {key: value}, {"orderMessageEnable"})


def test_a_value_out_of_its_range_is_not_moved_into_it() -> None:
    settings = load_broker_settings(host=HOST)
    with pytest.raises(BadSetting, match="it goes from 10000 to 60000"):
        change_settings(settings, {"registerNameServerPeriod": "5"}, {"registerNameServerPeriod"})


def test_the_other_lines_of_the_file_stay() -> None:
    others = "# mine\r\nkey = 1\nother:x \\\n  y\n"
    changed = conf_with(f"{others}key=2\n\n! end", {"key": "3", "new": "a b"})
    assert changed == f"{others}key=3\n\n! end\nnew=a b\n"
    assert conf_with("", {"a": "\u00fc="}) == "a=\\u00fc\\=\n"
    mark = b"\xef\xbb\xbf".decode("latin-1")
    assert conf_with(f"{mark}key=1\n", {"key": "2"}) == f"{mark}key=2\n"


def test_a_file_keeps_its_permissions_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "real.conf", tmp_path / "link.conf"
    file.write_text("a=1\n")
    file.chmod(0o640)
    link.symlink_to(file)
    rewrite_conf(str(link), {"a": "2"})
    assert link.is_symlink()
    assert file.read_text() == "a=2\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.conf", "real.conf"]


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "namesrv.properties"
    rewrite_conf(str(path), {"orderMessageEnable": "true"})
    assert path.read_text() == "orderMessageEnable=true\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_several_processes_change_one_file(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("a=0\n")
    count = 20
    code = (
        "import sys\nfrom mqbroker.config.changes import rewrite_conf\n"
        f"for n in range({count}): rewrite_conf(sys.argv[1], {{sys.argv[2] + str(n): 'x'}})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(conf), name]) for name in "bcd"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = conf.read_text().splitlines()
    assert lines[0] == "a=0"
    assert sorted(lines[1:]) == sorted(f"{name}{n}=x" for name in "bcd" for n in range(count))
    assert [path.name for path in tmp_path.iterdir()] == ["broker.conf"]


def test_a_file_that_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("a=0\n")
    (tmp_path / "broker.conf.tmp").write_text("what is longer than the file\n" * 9)
    rewrite_conf(str(conf), {"a": "1"})
    assert conf.read_text() == "a=1\n"
