"""The table of requests: every code of the Java system has a row, or there is a reason why not."""

from typing import Any

import pytest

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.wire.access import Access
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.requests import REQUESTS, UNANSWERED, demand_of
from tests.wire.test_codes import OURS


def test_each_code_of_java_has_a_row_or_a_reason_why_not(protocol: dict[str, dict[str, Any]]) -> None:
    ours = OURS.values()
    assert sorted([*REQUESTS, *UNANSWERED]) == sorted([*protocol["codes"]["RequestCode"].values(), *ours])
    assert all(UNANSWERED.values())
    assert all(request.demand or request.to_clients for request in REQUESTS.values())


def test_what_java_keeps_to_administrators_is_theirs() -> None:
    java = {
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }  # fmt: skip
    assert {demand_of(code).access for code in java} == {Access.ADMIN}


@pytest.mark.parametrize("code", [0, 1, 9999, -1, *sorted(UNANSWERED)])
def test_a_code_without_a_row_gets_no_handler(code: int) -> None:
    table = HandlerTable()
    with pytest.raises(ValueError, match="has no row"):
        table.register(code, lambda request, connection: None)
    with pytest.raises(ValueError, match="has no row"):
        table.register_batch(code, lambda requests, connection: b"")
    assert table.codes == frozenset()


def test_the_module_of_a_handler_is_told() -> None:
    table = HandlerTable()
    table.register(RequestCode.HEART_BEAT, lambda request, connection: None)
    table.register_batch(RequestCode.PULL_MESSAGE, lambda requests, connection: b"")
    assert table.served_by(RequestCode.HEART_BEAT) == table.served_by(RequestCode.PULL_MESSAGE) == __name__
    with pytest.raises(KeyError):
        table.served_by(RequestCode.SEND_MESSAGE)
