"""The table of docs/reference/requests.rst, from the running tables; `python -m tests.protocol_page` writes it anew."""

import tempfile
from pathlib import Path

from twisted.internet.testing import MemoryReactorClock

from mqbroker.client.broker_requests import MemberRequests
from mqbroker.config import NamesrvSettings, NettySettings
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.remoting.handlers import HandlerTable
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.requests import REQUESTS, UNANSWERED, demand_of
from tests.broker.bench import Bench

Tables = tuple[HandlerTable, HandlerTable]
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
        ours = f" (ours: ``{MemberRequests.__module__}``)" if code in MemberRequests.HANDLERS else ""
        modules.append(f"asked of clients{ours}")
    return ", ".join(modules) or UNANSWERED[code]


def who_may_ask(code: RequestCode, tables: Tables) -> str:
    """What a broker that controls access demands; a name server demands nothing."""
    broker, namesrv = tables
    return demand_of(code).words if code in broker.codes else "everybody" if code in namesrv.codes else ""


def rows(tables: Tables) -> list[tuple[str, str, str, str]]:
    return [(str(int(code)), code.name, who_may_ask(code, tables), who_serves(code, tables)) for code in RequestCode]


def render(tables: Tables) -> str:
    """The table in reStructuredText."""
    lines = ["Code", "Name", "Who may ask", "Served by"], *rows(tables)
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    edge = "  ".join("=" * width for width in widths)
    # A cell of a simple table's first columns must not be empty.
    body = ["  ".join((cell or "\\").ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines]  # fmt: skip
    return "\n".join([edge, body[0], edge, *body[1:], edge]) + "\n"


def page_with(table: str, page: str) -> str:
    """`page` with `table` in the place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table}{END}{after}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(page_with(render(running_tables(Path(name))), PAGE.read_text()))
