"""Every code of the Java system is in one class, or there is a reason why not."""

import pytest

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.wire.access import ASKED_OF_CLIENTS, DEMANDS, UNANSWERED, Access, is_classified
from mqbroker.wire.codes import RequestCode


def test_no_code_is_unclassified(protocol):
    known = {int(code) for code in (*DEMANDS, *ASKED_OF_CLIENTS, *UNANSWERED)}
    assert known == set(protocol["codes"]["RequestCode"].values())


def test_what_nobody_answers_is_in_no_class():
    assert set(UNANSWERED) & (set(DEMANDS) | ASKED_OF_CLIENTS) == set()
    assert all(UNANSWERED.values())
    assert [code for code in UNANSWERED if is_classified(code)] == []


def test_what_java_keeps_to_administrators_is_theirs():
    java = {
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }  # fmt: skip
    assert {DEMANDS[code].access for code in java} == {Access.ADMIN}


@pytest.mark.parametrize("code", [0, 1, 9999, -1, *sorted(UNANSWERED)])
def test_a_code_without_a_class_gets_no_handler(code):
    table = HandlerTable()
    with pytest.raises(ValueError, match="in no class"):
        table.register(code, lambda request, connection: None)
    with pytest.raises(ValueError, match="in no class"):
        table.register_batch(code, lambda requests, connection: b"")
    assert table.codes == frozenset()


def test_the_module_of_a_handler_is_told():
    table = HandlerTable()
    table.register(RequestCode.HEART_BEAT, lambda request, connection: None)
    table.register_batch(RequestCode.PULL_MESSAGE, lambda requests, connection: b"")
    assert table.served_by(RequestCode.HEART_BEAT) == table.served_by(RequestCode.PULL_MESSAGE) == __name__
    with pytest.raises(KeyError):
        table.served_by(RequestCode.SEND_MESSAGE)
