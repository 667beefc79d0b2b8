"""Which topics lie where: shared by those that lie alike, changed together, bounded."""

import gc

import pytest

from mqbroker.errors import Refused
from mqbroker.namesrv import placements
from mqbroker.namesrv.placements import Placements
from mqbroker.wire.bodies import QueueData
from mqbroker.wire.registration import QueueNumbers

FOUR, EIGHT = QueueNumbers(4, 4, 6, 0), QueueNumbers(8, 8, 6, 1)


@pytest.fixture
def table():
    table = Placements()
    table.put("a", {"T": FOUR, "U": FOUR, "V": EIGHT})
    return table


def test_topics_that_lie_alike_share_one(table):
    assert table.get("T") is table.get("U")
    assert table.get("T") is not table.get("V")
    table.put("b", {"T": EIGHT})
    assert table.get("T").queues == (QueueData("a", 4, 4, 6, 0), QueueData("b", 8, 8, 6, 1))
    table.put("b", {"U": EIGHT})
    assert table.get("T") is table.get("U")


def test_what_nobody_has_is_forgotten(table):
    table.put("a", {"T": EIGHT, "U": EIGHT})
    gc.collect()
    assert len(table._shared) == 1


def test_a_topic_on_one_broker_is_replaced_in_its_place(table):
    table.put("b", {"T": FOUR})
    table.put("a", {"T": EIGHT})
    assert [queues.broker_name for queues in table.get("T").queues] == ["a", "b"]
    assert table.get("T").of("a") == QueueData("a", 8, 8, 6, 1)
    assert table.get("T").of("c") is None


def test_removing(table):
    table.put("b", {"T": FOUR})
    table.remove_from("T", ["a", "c"])
    assert table.get("T").queues == (QueueData("b", 4, 4, 6, 0),)
    table.remove_from("T", ["b"])
    table.remove_from("T", ["b"])
    assert table.get("T") is None
    table.remove("U")
    table.remove("U")
    assert table.names() == {"V"}
    table.remove_broker("b")
    table.remove_broker("a")
    assert len(table) == 0


def test_permissions(table):
    table.put("b", {"W": FOUR})
    assert table.set_permission("a", lambda perm: perm & 4) == 3
    assert {topic: [queues.perm for queues in placement.queues] for topic, placement in table} == {
        "T": [4], "U": [4], "V": [4], "W": [6],
    }  # fmt: skip
    assert table.set_permission("a", lambda perm: perm & 4) == 3
    assert table.set_permission("nobody", lambda perm: 0) == 0


def test_it_is_bounded(table, monkeypatch):
    monkeypatch.setattr(placements, "TOPICS_MAX", 4)
    table.put("b", {"T": FOUR, "U": FOUR, "W": FOUR})
    with pytest.raises(Refused, match="no room for 5 topics"):
        table.put("b", {"T": EIGHT, "X": FOUR})
    assert table.get("T").of("b").read_queue_nums == 4
    assert table.get("X") is None
