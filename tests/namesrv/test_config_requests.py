"""The name server's settings by request: shown whole, changed where that is harmless, and kept."""

import json
from pathlib import Path

import attrs
import pytest

from mqbroker.config import show_settings
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.namesrv.conftest import Peer, System
from tests.namesrv.test_every_request import put_order, register, route


def change(peer: Peer, text: bytes | str) -> RemotingCommand:
    body = text if isinstance(text, bytes) else text.encode()
    return peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body)


def shown(peer: Peer) -> dict[str, str]:
    answer = peer.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert answer.code == ResponseCode.SUCCESS
    return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


def test_all_settings_are_shown(system: System, peer: Peer) -> None:
    assert shown(peer) == dict(line.split("=", 1) for line in show_settings(system.settings))
    assert shown(peer)["listenPort"] == "9876"


def test_a_change_counts_at_once_and_is_kept(system: System, peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("# mine\norderMessageEnable=false\n")
    put_order(peer)
    register(peer, "T")
    assert "orderTopicConf" not in json.loads(route(peer, "T").body)
    assert change(peer, "orderMessageEnable=true").code == ResponseCode.SUCCESS
    assert json.loads(route(peer, "T").body)["orderTopicConf"] == "broker-a:4"
    assert shown(peer)["orderMessageEnable"] == "true"
    assert (tmp_path / "x").read_text() == "# mine\norderMessageEnable=true\n"


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath"])
def test_paths_are_refused_as_java_refuses_them(peer: Peer, tmp_path: Path, key: str) -> None:
    answer = change(peer, f"{key}=/tmp/elsewhere\norderMessageEnable=true")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "Can not update config path")
    assert shown(peer)["orderMessageEnable"] == "false"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("key", ["listenPort", "bindAddress", "frameMaxLength", "logLevel", "nonsense"])
def test_what_may_not_be_changed_is_refused(peer: Peer, tmp_path: Path, key: str) -> None:
    answer = change(peer, f"{key}=1")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark.startswith(f"the request: {key}: it cannot be changed while the daemon runs")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("orderMessageEnable=maybe", "'maybe' is neither true nor false"),
        ("a=\\uzzzz", "hexadecimal"),
        (b"\xff", "not UTF-8"),
        (b"x" * 100_000, "65536 at most"),
    ],
)
def test_what_cannot_be_read_is_refused(peer: Peer, body: bytes | str, why: str) -> None:
    answer = change(peer, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert why in (answer.remark or "")


@pytest.mark.parametrize("body", ["", "serverWorkerThreads=16\nserverSelectorThreads=3\n"])
def test_what_has_no_effect_here_changes_nothing(peer: Peer, tmp_path: Path, body: str) -> None:
    assert change(peer, body).code == ResponseCode.SUCCESS
    assert not (tmp_path / "x").exists()


def test_a_file_that_cannot_be_written_is_told(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    answer = change(peer, "orderMessageEnable=true")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"changed until the next start only: {tmp_path / 'x'} could not be written"
    assert shown(peer)["orderMessageEnable"] == "true"


def test_settings_read_anew(system: System, peer: Peer) -> None:
    put_order(peer)
    register(peer, "T")
    wanted = attrs.evolve(
        system.settings, order_message_enable=True, product_env_name="p", config_store_path="/elsewhere"
    )
    assert sorted(system.service.adopt(wanted)) == ["configStorePath", "productEnvName"]
    assert json.loads(route(peer, "T").body)["orderTopicConf"] == "broker-a:4"
    assert shown(peer)["configStorePath"] == system.settings.config_store_path
    assert system.service.adopt(system.settings) == []
    assert "orderTopicConf" not in json.loads(route(peer, "T").body)
