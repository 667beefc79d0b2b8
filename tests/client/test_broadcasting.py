"""Members that each get every message, and offsets that are kept elsewhere than at the broker."""

import logging
from pathlib import Path
from typing import Any

import pytest

from mqbroker.client import (
    BadArgument,
    BadOffsetFile,
    LocalOffsets,
    MemoryOffsets,
    MessageModel,
    MessageQueue,
    OffsetStore,
    PushOptions,
)
from mqbroker.wire.bodies import HeartbeatData
from mqbroker.wire.codes import RequestCode
from tests.client.member import Member, Q
from tests.client.world import World

BROADCASTING = MessageModel.BROADCASTING
#: As fastjson writes it.
JAVA = '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:2\n\t}\n}'


def fail(message: Any) -> None:
    raise ValueError("no")


def test_each_member_gets_every_message_and_no_broker_keeps_offsets(world: World, name_server: str) -> None:
    world.cluster.add_topic("T", queues=2)
    queues = [MessageQueue("T", broker, n) for broker in "ab" for n in range(2)]
    members = [
        Member(world, name_server, me=me, model=BROADCASTING, offset_store=MemoryOffsets()).start()
        for me in ("c1", "c2")
    ]
    for queue in queues:
        world.cluster.store(queue, f"{queue.broker_name}{queue.queue_id}".encode())
    for member in members:
        assert member.core.assigned == set(queues)
        assert sorted(member.bodies) == [b"a0", b"a1", b"b0", b"b1"]
        world.clock.advance(5)
        world.result(member.core.close())
    assert not any(world.cluster.offsets.get(("g", queue)) for queue in queues)
    assert not world.faults.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert not world.faults.asked(RequestCode.QUERY_CONSUMER_OFFSET)


def test_the_heartbeat_names_the_model_and_no_retry_topic(one_queue: World, name_server: str) -> None:
    Member(one_queue, name_server, model=BROADCASTING, offset_store=MemoryOffsets()).start()
    request = one_queue.faults.asked(RequestCode.HEART_BEAT)[0]
    (data,) = HeartbeatData.from_json(request.body).consumer_data_set
    assert data.message_model == "BROADCASTING"
    assert [s.topic for s in data.subscription_data_set] == ["T"]


def test_what_a_listener_does_not_take_is_dropped_with_one_warning(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)
    store = MemoryOffsets()
    member = Member(one_queue, name_server, listener=fail, model=BROADCASTING, offset_store=store).start()
    one_queue.clock.advance(5)
    assert member.bodies == [b"0", b"1", b"2"]
    assert one_queue.cluster.sent_back == []
    assert one_queue.result(store.committed(Q)) == 3
    assert len([r for r in caplog.records if "is dropped" in r.getMessage()]) == 1


@pytest.mark.parametrize("is_local", [False, True])
def test_a_store_has_the_offsets_of_one_group(
    one_queue: World, name_server: str, tmp_path: Path, is_local: bool
) -> None:
    store = LocalOffsets(tmp_path / "offsets.json") if is_local else MemoryOffsets()
    for n in range(2):  # one after the other
        one_queue.cluster.store(Q, b"%d" % n)
        member = Member(one_queue, name_server, model=BROADCASTING, offset_store=store).start()
        assert member.bodies == [b"%d" % n]
        one_queue.result(member.core.close())
    with pytest.raises(BadArgument, match="another one for group h: this one has the offsets of g"):
        one_queue.result(store.open("h", (name_server,)))


def test_a_member_that_was_away_goes_on_where_it_was(one_queue: World, name_server: str) -> None:
    member = Member(one_queue, name_server, model=BROADCASTING, offset_store=MemoryOffsets()).start()
    one_queue.cluster.store(Q, b"0")
    one_queue.cluster.reactor.rightNow += 140
    one_queue.clock.pump([1] * 3)
    one_queue.cluster.store(Q, b"1")
    one_queue.clock.pump([1] * 3)
    assert member.bodies == [b"0", b"1"]


def test_a_member_goes_on_from_its_file(one_queue: World, name_server: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "offsets.json"
    for n in range(3):
        one_queue.cluster.store(Q, b"%d" % n)
    first = Member(one_queue, name_server, model=BROADCASTING, offset_store=LocalOffsets(path)).start()
    one_queue.clock.advance(5)
    assert '"queueId":0' in path.read_text()
    one_queue.result(first.core.close())
    one_queue.cluster.store(Q, b"3")
    second = Member(one_queue, name_server, model=BROADCASTING, offset_store=LocalOffsets(path)).start()
    assert second.bodies == [b"3"]
    one_queue.clock.advance(5)
    assert path.with_name("offsets.json.bak").exists()


def test_a_link_that_somebody_put_beside_the_file_is_not_followed(
    one_queue: World, name_server: str, tmp_path: Path
) -> None:
    another, path = tmp_path / "another", tmp_path / "offsets.json"
    another.write_text("another's")
    path.with_name("offsets.json.tmp").symlink_to(another)
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, model=BROADCASTING, offset_store=LocalOffsets(path)).start()
    one_queue.result(member.core.close())
    assert (another.read_text(), path.is_symlink()) == ("another's", False)
    assert opened(one_queue, path) == 1


def test_the_default_file_is_that_of_a_java_consumer(
    one_queue: World, name_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, model=BROADCASTING).start()
    one_queue.result(member.core.close())
    (path,) = tmp_path.glob(".rocketmq_offsets/*@DEFAULT/g/offsets.json")
    assert path.stat().st_size > 10


def opened(world: World, path: Path) -> int | None:
    store = LocalOffsets(path)
    world.result(store.open("g", ("127.0.0.1:9876",)))
    return world.result(store.committed(Q))


def test_the_format_is_javas(world: World, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(JAVA)
    assert opened(world, path) == 2


@pytest.mark.parametrize(
    "damage", ["", '{"offsetTable":{{"brok', "[]", '{"offsetTable":{{"brokerName":"a"}:-1}}', None]
)
def test_without_a_file_that_can_be_read_the_one_beside_it_counts(
    world: World, tmp_path: Path, damage: str | None
) -> None:
    path = tmp_path / "offsets.json"
    if damage is not None:
        path.write_text(damage)
    path.with_name("offsets.json.bak").write_text(JAVA)
    assert opened(world, path) == 2


@pytest.mark.parametrize("file", ["offsets.json", "offsets.json.bak"])
def test_a_file_that_cannot_be_read_ends_the_start(
    one_queue: World, name_server: str, tmp_path: Path, file: str
) -> None:
    (tmp_path / file).write_text("{{{{")
    member = Member(one_queue, name_server, model=BROADCASTING, offset_store=LocalOffsets(tmp_path / "offsets.json"))
    with pytest.raises(BadOffsetFile, match=f"{file} cannot be used"):
        member.start()
    one_queue.result(member.core.close())


def test_a_folder_that_cannot_be_made_ends_the_start(one_queue: World, name_server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    member = Member(one_queue, name_server, offset_store=LocalOffsets(tmp_path / "file" / "offsets.json"))
    with pytest.raises(BadOffsetFile, match="name another"):
        member.start()
    one_queue.result(member.core.close())


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    one_queue: World, name_server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "folder"
    store = LocalOffsets(folder / "offsets.json")
    one_queue.cluster.store(Q, b"0")
    member = Member(one_queue, name_server, model=BROADCASTING, offset_store=store).start()
    folder.rmdir()
    one_queue.clock.pump([5] * 3)
    assert len([r for r in caplog.records if "are not saved" in r.getMessage()]) == 1
    folder.mkdir()
    one_queue.clock.advance(5)
    assert "are saved in" in caplog.text
    assert opened(one_queue, folder / "offsets.json") == 1
    one_queue.result(member.core.close())


def test_a_users_store_that_fails_does_not_end_the_commits(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(MemoryOffsets):
        tries = 0

        async def flush(self) -> None:
            self.tries += 1
            raise LookupError("no such table")

    store = Fails()
    one_queue.cluster.store(Q, b"0")
    Member(one_queue, name_server, offset_store=store).start()
    one_queue.clock.pump([5] * 3)
    assert store.tries == 3
    assert "no such table" in caplog.text


@pytest.mark.parametrize("option", [{"model": "BROADCASTING"}, {"offset_store": OffsetStore}, {"offset_store": "file"}])
def test_what_is_no_model_or_store_is_refused(option: Any) -> None:
    with pytest.raises(BadArgument):
        PushOptions(**option)
