"""The page of log events of the levels warn and above, from the sources; `python -m tests.log_events_page` writes it.

The texts are those of the calls in mqbroker. What they mean and what to do is said here: for the modules of a family
together, and for single events beside it.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "log-events.rst"
BEGIN, END = ".. events begin\n\n", "\n.. events end\n"
LEVELS = {"warn": "warn", "warning": "warn", "error": "error", "critical": "critical", "exception": "error"}
#: Methods that get the level as their first argument: of RateLimitedLog, and of loggers.
LEVEL_FIRST = ("say", "emit", "log")
#: Functions that log what their callers give them, and so what they may log: texts and levels.
PASSED_ON: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("remoting/rate_limited_log.py", "say"): (),  # each caller's own line
    ("remoting/rate_limited_log.py", "look"): (("{what}: {n} more within a minute", "warn"),),
    ("remoting/connection.py", "_close"): (("closing {peer}: {why}", "warn"),),
}


@attrs.frozen(order=True)
class Event:
    """A line that the log may have."""

    module: str
    text: str
    level: str


@attrs.frozen
class Family:
    """Events of some modules: what they mean in common, and what to do."""

    title: str
    modules: str
    meaning: str
    todo: str
    #: How an event's text begins -> what to do about it.
    notes: dict[str, str] = attrs.field(factory=dict)


FAMILIES = (
    Family(
        "Start, reload and stop",
        r"daemons/(broker|console|daemon|plugin|process|service_manager)\.py",
        "A daemon could not start, or not take over changed settings, or did not stop cleanly.",
        "Correct the setting, file or port that the line names (:doc:`/howto/run`).",
        {
            "not reloaded": "Correct the file and send SIGHUP again. Until then the former settings stay in effect.",
            "connectionsMax=": "Raise the limit of open files of the service, or lower the setting.",
            "{program} did not stop cleanly": "Look at the errors before it: a table may not have been saved.",
        },
    ),
    Family(
        "Shards",
        r"daemons/(shard|supervisor)\.py|broker/sibling_topics\.py",
        "A process of a broker with shards ended, or does not have what the others have.",
        "The supervisor restarts a shard. If the shard ends again, the lines before its end say why "
        "(:doc:`/explanation/shards`).",
        {"topic {topic} of another shard": "Create the topic on all shards with mqadmin updateTopic and -c."},
    ),
    Family(
        "Connections and TLS",
        r"remoting/.*",
        "A port, a certificate or a connection does not work as configured.",
        "Correct the certificate or the port that the line names (:doc:`/howto/access`). Clients reconnect by "
        "themselves.",
        {
            "tls.test.mode.enable=true": "Set it to false, and name your own certificate and key.",
            "cannot listen on port {port}": "Free the port, or set vipPortEnable=false.",
            "{n} connections from the address of {peer}": "Find out what opens so many there. If that is intended, "
            "raise connectionsPerAddressMax.",
            "{n} connections are open: no more": "Find out what opens so many. If that is intended, raise "
            "connectionsMax.",
            "{n} connections are open, and no more files": "Raise the limit of open files of the service (ulimit -n).",
            "a connection is closed at once": "Raise the limit of open files of the service (ulimit -n).",
            "connections wait to be accepted": "The error says why. If too few files may be open, raise the limit.",
            "closing {peer}": "Look at the program at that address: it sends what is invalid or too large, reads no "
            "responses, or is silent. Nothing, if it is a port scan or a health check.",
            "the extension {name} failed": "Correct the extension: the line has its traceback "
            "(:doc:`/howto/extend-the-broker`).",
            "{what}: {n} more within a minute": "See the lines before it, which show the first of them.",
        },
    ),
    Family(
        "Accounts",
        r"access/.*|broker/requests/acl_requests\.py",
        "A request was refused by access control, or a file of accounts is wrong.",
        "Correct the file; it is read again within five seconds. For a refused request give the account the "
        "permission, or find out who uses the account (:doc:`/howto/access`).",
        {"{peer} may not": "Only the first refusal of an account at a host is logged."},
    ),
    Family(
        "The disk",
        r"store/(flush|disk|disk_watch|dispatch|syncs|store_files)\.py",
        "A disk is full, slow or failing. Messages may be refused, with SERVICE_NOT_AVAILABLE and the reason.",
        "Free space (:doc:`/howto/full-disk`): the broker then continues by itself. After a failed sync of the log "
        "replace the disk if it is failing, and restart the broker: until then it accepts no messages.",
        {
            "messages are refused": "Producers send to other brokers meanwhile. ``mq brokers`` shows the reason.",
            "{path}: a sync to the disk has not ended": "Look at the kernel's log and iostat: the disk may be failing.",
            "the kernel no longer accepts asynchronous "
            "syncs": "Nothing to do: a thread takes over, which costs more CPU time.",
        },
    ),
    Family(
        "Corrupt files",
        r"store/(record_verifier|entry_repair|index_file|jsonfile|checkpoint)\.py"
        r"|broker/(versioned_table|filter_table|members_file)\.py",
        "A file is corrupt. What can be rebuilt from the log is rebuilt; a table is read from its copy (.bak).",
        "Check the disk, and the store with ``mq store check`` (:doc:`/reference/mq`). Lost messages can only be "
        "restored from a backup or a slave (:doc:`/howto/back-up`).",
    ),
    Family(
        "What a start rebuilds",
        r"store/(opening|recovery|queue_rebuild|layout|log_scrub|consumequeue_ext|consumequeue_dispatcher)\.py",
        "After a crash, or when files are missing, consume queues or the index are rebuilt from the log.",
        "Nothing after a crash: no message is lost, and only the start takes longer. If it happens after a clean stop, "
        "check the disk.",
    ),
    Family(
        "Memory for the log",
        r"store/(transient|segment)\.py",
        "Memory or disk space for the next file of the log could not be prepared.",
        "Free memory or space, or raise the limit (ulimit -l). Until then appends are slower, or refused where the "
        "line says so.",
    ),
    Family(
        "Deletion of old messages",
        r"store/(retention|topic_removal)\.py",
        "Files cannot be deleted, or the disk is filling up and nothing is old enough to delete.",
        "Free space, or keep messages for a shorter time (``fileReservedTime``, :doc:`/howto/keep-messages`).",
    ),
    Family(
        "Delayed messages",
        r"broker/delay(_cursors)?\.py",
        "Delayed messages cannot be read or stored now, or one of them is invalid.",
        "Repair the disk: the messages are delivered when it works again. A message that is dropped was invalid or "
        "corrupt.",
        {"delay level {delay} has more": "None is lost: those that are late come when the ones before them are due."},
    ),
    Family(
        "Transactions",
        r"broker/transactions/.*|broker/requests/end_transaction\.py",
        "Half messages cannot be checked, or their producers do not respond.",
        "Start a producer of the group that the line names: only such a producer knows whether to commit "
        "(:doc:`/howto/transactions`).",
        {"half messages of {group}": "``RESUME_CHECK_HALF_MESSAGE`` has one checked again."},
    ),
    Family(
        "Consumer groups and sends",
        r"broker/(slow_consumers|long_polling|requests/(offset_requests|send_back|plain_sends))\.py",
        "A group consumes too slowly, or a part of one request failed.",
        "See the line.",
        {
            "[PROTECT_BROKER]": "Consume faster; mqadmin updateSubGroup enables the group again.",
            "the hot path runs in Python": "Install a C compiler, and the package again.",
            "{n} pulls of {peer} wait": "Nothing: its further pulls are answered at once. Where one connection has so "
            "many queues, use more consumers.",
            "{n} pulls wait, with heldPullsMax": "Raise heldPullsMax if so many queues are consumed.",
        },
    ),
    Family(
        "Registration at name servers",
        r"broker/name_servers\.py",
        "The broker is not in the routes of a name server: clients do not find it there.",
        "Start the name server, or correct namesrvAddr. The broker tries again by itself.",
        {"{n} topics are {size} bytes": "Nothing. With compressedRegister=true the line does not come."},
    ),
    Family(
        "Name servers",
        r"namesrv/.*",
        "A broker is silent, is drained, or registers invalid data; or a file cannot be written.",
        "Look at the log of the broker that the line names (:doc:`/explanation/namesrv`).",
        {
            "broker {addr} did not register": "It is down or cut off; its topics are gone from the routes.",
            "broker {name} {id} is now at": "Two brokers have one name and id: give each its own id.",
        },
    ),
    Family(
        "Masters and slaves",
        r"ha/(master|slave)\.py|broker/(broker_service|broker_slave|slave_synchronize|replica_store|topic_repair)\.py",
        "A slave does not follow its master, or a file or table that it needs for that cannot be read or written.",
        "See ``mq ha status``, which shows each broker and its reason. :doc:`/explanation/replication` explains what "
        "happens when logs differ.",
        {
            "topics with 0 queues": "A producer named 0 queues when a Java broker created the topic, or an "
            "administrator set it so. Give the topic queues, or delete it.",
            "a replication link from {peer} is refused": "If the slave is yours, correct haWhiteRemoteAddresses, or "
            "stop other programs that connect to the replication port.",
            "nothing that slave {peer} reports counts": "The line gives the reason. Until then no message is "
            "acknowledged because that slave has it.",
            "the replication link to {peer} is closed": "The slave connects again by itself. If that goes on, the line "
            "says why: see the log of the slave, too.",
        },
    ),
    Family(
        "Brokers that elect their master",
        r"ha/.*|broker/(broker_group|own_store)\.py",
        "A broker takes no part in its group, or a master steps down.",
        "The line gives the reason and the remedy. When a master steps down, another broker is elected if enough of "
        "them run (:doc:`/explanation/elections`, :doc:`/howto/operate-a-group`).",
        {
            "uncleanElectionEnable=true": "Messages are lost by this. Set it to false again.",
            "group {broker}: this broker is no longer the master": "If another broker was elected "
            "(``mq ha status``), nothing.",
        },
    ),
    Family(
        "Clients",
        r"client/.*",
        "A producer or consumer met an error that it handles by itself, or a listener failed.",
        "If the line has the traceback of a listener, correct the listener. Other lines end with their cause "
        "(:doc:`/reference/client`).",
        {
            "the %s %s failed%s; the %s": "An observer, RPC hook, connection listener or message filter of your "
            "program raised an error. The line ends with what happens then: the operation continues, the request "
            "fails, or the message is accepted.",
            "%s; trying again in %g s": "Periodic work failed, such as the update of a route. The line begins with "
            "the cause.",
            "keeping the last list of name servers": "Start the address server. The clients go on with the list that "
            "they have.",
            "keeping the former route of": "Start the name servers. The client goes on with the route that it has.",
            "%s: %s; trying it and the other queues": "Start the broker, or see its log. The other brokers' queues are "
            "consumed meanwhile.",
            "not balancing %s of %s": "Correct the allocation strategy, or what the line names. The consumer keeps the "
            "queues that it has.",
        },
    ),
    Family(
        "Spark",
        r"spark/.*",
        "A stream has queues whose brokers do not respond, or a write failed.",
        "Start the brokers. The next batch reads from them (:doc:`/reference/spark`).",
        {
            "mqbroker's compiled module is not there": "Install the package for the Python of the workers, if that is "
            "possible.",
            "the offsets of group %s are not committed": "Tools show the lag of the group as larger than it is. The "
            "query itself continues, and commits again with the next batch.",
            "query %s: skipped": "Messages are lost, and failOnDataLoss=false skips them.",
            "skipped: topic": "Messages are lost, and failOnDataLoss=false skips them. dataLossTo records each range.",
            "a write failed": "Correct what the error of the query says and write again. These rows are recognised "
            "if both writes have guarantee=effectively-once and the same writeId.",
            "batch %d failed": "Correct what the error of the query says and start it again with its checkpoint.",
            "all queues are read again": "Nothing.",
            "this run reads without": "The next run reads them. If they were removed for good, nothing.",
        },
    ),
)


@functools.cache
def events() -> tuple[Event, ...]:
    """All events of the levels warn and above that the sources have; tracebacks of bugs are left out."""
    found: set[Event] = set()
    for path in sorted((ROOT / "mqbroker").rglob("*.py")):
        found.update(events_of(path.read_text(), str(path.relative_to(ROOT / "mqbroker"))))
    return tuple(sorted(found))


def events_of(source: str, module: str) -> Iterator[Event]:
    """The events of a module. Raises AssertionError for a call whose level or text cannot be seen."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args:
                    yield from _of_call(call, function, module)


def _of_call(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> Iterator[Event]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    owner = ast.unparse(call.func.value).lower() if isinstance(call.func, ast.Attribute) else ""
    suffix = ""
    if isinstance(call.func, ast.Name) and call.func.id == "Outage":
        # It logs what fails, and why.
        suffix, texts, levels = ": {why}", [*_texts(call.args[0], function)], ["error"]
    elif name in LEVELS and "log" in owner:
        texts, levels = [*_texts(call.args[0], function)], [LEVELS[name]]
    elif name in LEVEL_FIRST and len(call.args) > 1 and (name == "say" or owner.endswith("log")):
        texts, levels = [*_texts(call.args[1], function)], [*_levels(call.args[0], function)]
    else:
        return
    if texts and levels:
        known = [(text + suffix, LEVELS[level]) for text in texts for level in levels if text and level in LEVELS]
    else:
        where = f"{module}:{call.lineno}: {ast.unparse(call)}"
        assert (module, function.name) in PASSED_ON, f"{where}: its level or text is no constant: see PASSED_ON"
        known = [*PASSED_ON[module, function.name]]
    yield from (Event(module, text, level) for text, level in known)


def _levels(node: ast.expr, function: ast.AST) -> Iterator[str]:
    """The levels that an expression may have, in lower case, where these are constants or a variable gets them."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("LogLevel", "logging"):
        yield node.attr.lower()
    elif isinstance(node, ast.IfExp):
        yield from (*_levels(node.body, function), *_levels(node.orelse, function))
    elif isinstance(node, ast.Name):
        for value in _values(node, function):
            yield from _levels(value, function)


def _texts(node: ast.expr, function: ast.AST) -> Iterator[str]:
    """The texts that an expression may have, where it is a constant or a variable that gets one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{_name(part)}}}"  # type: ignore[misc]
            for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, function)
        yield from _texts(node.orelse, function)
    elif isinstance(node, ast.Name):
        for value in _values(node, function):
            yield from _texts(value, function)


def _values(name: ast.Name, function: ast.AST) -> Iterator[ast.expr]:
    """What a function assigns to a variable."""
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name.id for t in each.targets):
            yield each.value


def _name(part: ast.expr) -> str:
    """The last name of an expression in an f-string."""
    assert isinstance(part, ast.FormattedValue)
    return re.findall(r"[A-Za-z]\w*", ast.unparse(part.value))[-1]


def families() -> list[tuple[Family, list[Event]]]:
    """Each family with its events."""
    left, found = list(events()), []
    for family in FAMILIES:
        ours = [event for event in left if re.fullmatch(family.modules, event.module)]
        left = [event for event in left if event not in ours]
        found.append((family, ours))
    assert left == [], "a family for these modules: FAMILIES in tests/log_events_page.py"
    return found


def render() -> str:
    """The sections in reStructuredText."""
    return "\n".join(line for family, ours in families() for line in _section(family, ours))


def _section(family: Family, ours: list[Event]) -> Iterator[str]:
    yield from (family.title, "-" * len(family.title), "")
    yield from (*_wrap(f"{family.meaning} *What to do:* {family.todo}", ""), "")
    shown: set[str] = set()
    for event in ours:
        # Without how a value is formatted.
        text = re.sub(r"\{(\w+)[!:][^}]*\}", r"{\1}", re.sub(r"[`\s]+", " ", event.text).strip())
        if re.fullmatch(r"\{\w+\}(: \{\w+\})*", text):
            continue  # the text of another error
        note = next((note for start, note in family.notes.items() if event.text.startswith(start)), "")
        # A long literal breaks at blanks.
        item = f"``{event.level}`` ``{text}``{f': {note}' if note else ''}"
        if item not in shown:
            shown.add(item)
            yield from (*_wrap(item, "- ", "  "), "")


def _wrap(text: str, first: str, rest: str = "") -> list[str]:
    return textwrap.wrap(
        text, 116, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def page_with(text: str, page: str) -> str:
    """The page with the sections in their place."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(render(), PAGE.read_text()))
