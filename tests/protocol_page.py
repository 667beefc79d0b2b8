"""The list of docs/reference/requests.rst, from the running tables; `python -m tests.protocol_page` writes it anew."""

import tempfile
import textwrap
from pathlib import Path

from twisted.internet.testing import MemoryReactorClock

from mqbroker.client import broker_requests, producer, transactions
from mqbroker.client.broker_requests import MemberRequests
from mqbroker.config import NamesrvSettings, NettySettings
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.requests import REQUESTS, UNANSWERED, demand_of
from tests.broker.bench import Bench

Tables = tuple[HandlerTable, HandlerTable]
#: Which module of our clients answers which of a broker's requests.
OF_CLIENTS = {
    **dict.fromkeys(MemberRequests.HANDLERS, broker_requests.__name__),
    RequestCode.CHECK_TRANSACTION_STATE: transactions.__name__,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: producer.__name__,
}
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "requests.rst"
BEGIN, END = ".. the table begins\n\n", "\n.. the table ends\n"


def running_tables(folder: Path) -> Tables:
    """The handler tables of a broker and of a name server whose files are in `folder`."""
    bench = Bench(folder / "store")
    bench.close()
    settings = NamesrvSettings(
        kv_config_path=str(folder / "kv.json"),
        config_store_path=str(folder / "x"),
        server=NettySettings(listen_port=9876, bind_address="127.0.0.1"),
    )
    reactor = MemoryReactorClock()
    service = make_namesrv(settings, reactor, InlineWorker())
    assert service.startService().called
    table: HandlerTable = reactor.tcpServers[0][1]._table  # type: ignore[attr-defined]
    service.stopService()
    return bench.table, table


def who_serves(code: RequestCode, tables: Tables) -> str:
    """The words of the table for `code`: modules, or why there are none."""
    modules = [f"``{table.served_by(code)}``" for table in tables if code in table.codes]
    if code in REQUESTS and REQUESTS[code].to_clients:
        modules.append(f"sent to clients (ours: ``{OF_CLIENTS[code]}``)")
    return ", ".join(modules) or UNANSWERED[code]


def who_may_ask(code: RequestCode, tables: Tables) -> str:
    """What a broker that controls access demands; a name server demands nothing."""
    broker, namesrv = tables
    return demand_of(code).words if code in broker.codes else "everybody" if code in namesrv.codes else ""


def rows(tables: Tables) -> list[tuple[str, str, str, str]]:
    return [(str(int(code)), code.name, who_may_ask(code, tables), who_serves(code, tables)) for code in RequestCode]


def render(tables: Tables) -> str:
    """The list in reStructuredText: no table of these columns fits a page."""
    return "\n".join(_block(*row) for row in rows(tables))


def _block(code: str, name: str, who: str, by: str) -> str:
    sentences = [who, f"handled by {by}" if by.startswith("``") else by]
    text = " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences if sentence)
    return f"{code} ``{name}``\n" + textwrap.fill(text, 116, initial_indent="    ", subsequent_indent="    ") + "\n"


def page_with(table: str, page: str) -> str:
    """`page` with `table` in the place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(page_with(render(running_tables(Path(name))), PAGE.read_text()))
