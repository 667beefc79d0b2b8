"""docs/reference/requests.rst has a row for each request code, and it is what the daemons' tables say."""

from pathlib import Path

import pytest

from mqbroker.wire.codes import RequestCode
from mqbroker.wire.requests import REQUESTS
from tests.protocol_page import BEGIN, END, PAGE, Tables, page_with, render, rows, running_tables


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return running_tables(Path(tmp_path_factory.mktemp("tables")))


def test_the_page_is_what_the_tables_say(tables: Tables) -> None:
    page = PAGE.read_text()
    assert page == page_with(render(tables), page), "write it anew: python -m tests.protocol_page"


def test_each_code_has_one_row() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    found = [line.split() for line in table.splitlines() if line[:1].isdigit()]
    assert found == [[str(int(code)), f"``{code.name}``"] for code in RequestCode]


def test_a_daemon_serves_each_code_that_servers_answer(tables: Tables) -> None:
    of_servers = {code for code, request in REQUESTS.items() if request.demand}
    assert of_servers == {code for table in tables for code in table.codes}


def test_each_row_says_who_serves(tables: Tables) -> None:
    assert [row for row in rows(tables) if not row[3]] == []
    by_name = {row[1]: row[2:] for row in rows(tables)}
    assert by_name["SEND_MESSAGE_V2"] == (
        "``PUB`` of the topic, and of queues it names",
        "``mqbroker.broker.requests.send_message``",
    )
    assert by_name["REGISTER_BROKER"] == ("everybody", "``mqbroker.namesrv.broker_requests``")
    assert by_name["NOTIFY_CONSUMER_IDS_CHANGED"] == (
        "",
        "sent to clients (ours: ``mqbroker.client.broker_requests``)",
    )
    assert by_name["CHECK_TRANSACTION_STATE"] == ("", "sent to clients (ours: ``mqbroker.client.transactions``)")
    assert by_name["SUSPEND_CONSUMER"] == ("", "4.9 neither sends nor answers it")
