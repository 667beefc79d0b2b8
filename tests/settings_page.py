"""The pages of settings, from their definitions; `python -m tests.settings_page` writes them.

A setting's effect is the comment above its field in mqbroker/config/settings.py, ranges and units are those that its
parser checks, and Java's default comes from tests/data/settings-4.9.7.json.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Iterator, Set
from pathlib import Path

from mqbroker.config import BrokerSettings, NamesrvSettings, load_broker_settings, load_namesrv_settings, show_settings
from mqbroker.config import settings as definitions
from mqbroker.config.fields import INT_MAX, LONG_MAX, Setting, parse_addresses, parse_boolean, parse_urls, settings_of
from mqbroker.config.settings import ClientSettings, NettySettings, StoreSettings, TlsSettings
from mqbroker.config.system import Host
from mqbroker.config.unused import UNUSED
from mqbroker.namesrv.config_requests import CHANGEABLE as NAMESRV_CHANGEABLE
from tests.broker.bench import Bench

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
JAVA = json.loads((ROOT / "tests" / "data" / "settings-4.9.7.json").read_text())
BEGIN, END = ".. settings begin\n\n", "\n.. settings end\n"
#: What follows the broker's handlers, beside the parts that a bench has.
OF_THE_SERVICE = frozenset({"flushConsumerOffsetInterval", "namesrvAddr", "brokerRole", "brokerId"})
PAGES: dict[str, type] = {
    "settings-broker": BrokerSettings,
    "settings-store": StoreSettings,
    "settings-network": NettySettings,
    "settings-tls": TlsSettings,
    "settings-connections": ClientSettings,
    "settings-namesrv": NamesrvSettings,
}
SYSTEM_PROPERTIES = frozenset({"diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio", "frameMaxLength"})
#: Defaults that depend on the machine, or on which daemon it is, as text.
OF_THE_MACHINE = {
    "brokerName": "the host's name",
    "brokerIP1": "the address by which this machine reaches others",
    "brokerIP2": "brokerIP1",
    "haListenPort": "listenPort + 1",
    "listenPort": "10911 of a broker, 9876 of a name server",
    "useTLS": "tls.enable; without it, true if tls.server.mode is enforcing",
    "configStorePath": "the file of -c, or ~/namesrv/namesrv.properties",
    "storePathCommitLog": "storePathRootDir/commitlog",
}


def effects(cls: type) -> dict[str, str]:
    """The effect of each field of a settings class: the comment above it."""
    source = inspect.getsource(definitions)
    lines, classes = source.splitlines(), (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    found = {}
    for node in next(node for node in classes if node.name == cls.__name__).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            at = node.lineno - 2
            comment: list[str] = []
            while lines[at].strip().startswith("#:"):
                comment.insert(0, lines[at].strip()[2:].strip())
                at -= 1
            found[node.target.id] = " ".join(comment)
    return found


def changeable_keys() -> Set[str]:
    """The keys of a broker's settings that may be changed while it runs."""
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name) / "store")
        keys = bench.parts.live.changeable
        bench.close()
    return keys | OF_THE_SERVICE


def values(setting: Setting) -> str:
    """What a setting's value may be."""
    parse, unit = setting.note.parse, setting.note.unit
    inside = inspect.getclosurevars(parse).nonlocals
    if "low" in inside:
        low, high = setting.note.clamp or (inside["low"], inside["high"])
        unit = f" {unit}" if unit else ""
        return f"{low:,} to {high:,}{unit}" if high not in (INT_MAX, LONG_MAX) else f"{low:,} or more{unit}"
    if parse is parse_boolean:
        return "true or false"
    if "enum" in inside:
        return ", ".join(inside["enum"])
    if parse in (parse_addresses, parse_urls):
        return "addresses, separated by semicolons"
    return {"path": "a path", "log_path": "a path", "optional_path": "a path", "name": "a name"}.get(
        parse.__name__.removeprefix("parse_"), "text"
    )


def default(setting: Setting, shown: dict[str, str]) -> str:
    if setting.key in OF_THE_MACHINE:
        return OF_THE_MACHINE[setting.key]
    text = shown[setting.key].replace("/home/USER", "~")
    return f"``{text}``" if text else "empty"


def java_default(setting: Setting, shown: dict[str, str]) -> str | None:
    """Java's default where it differs; None where it does not, or Java has no such setting."""
    found = [part[setting.key] for part in JAVA.values() if setting.key in part]
    if not found or setting.key in OF_THE_MACHINE:
        return None
    value = found[0]["default"]
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return None if text == shown[setting.key].replace("/home/USER", "~") else text


def is_ours(setting: Setting) -> bool:
    return not any(setting.key in part for part in JAVA.values()) and not setting.key.startswith(("tls.", "rocketmq."))


def literal(text: str, linked: Set[str] = frozenset()) -> str:
    """Text with the names in it as literals: settings, values in capitals, and file names; those `linked` as links."""
    return re.sub(
        r"(?<![\w`<*])(%\w+%|\*{3}|[a-z]+[A-Z]\w+(?:=\w+)?|[A-Z]+_[A-Z_]+[A-Z]|tls\.[\w.]+\w|conf/[\w.]+\w|04;16)(?![\w`(])",
        lambda found: f":confval:`{found[1]}`" if found[1] in linked else f"``{found[1]}``",
        text,
    )


def blocks(cls: type, shown: dict[str, str], changeable: Set[str]) -> Iterator[str]:
    """A block of reStructuredText for each setting of a class that has an effect."""
    effect_of, of_brokers, linked = effects(cls), {each.key for each in settings_of(BrokerSettings)}, all_settings()
    for setting in sorted(settings_of(cls), key=lambda setting: setting.key.lower()):
        if setting.key in UNUSED:
            continue
        # What is said there of the default is shown as the default.
        sentences = [literal(re.sub(r" Default: [^.]*\.", "", effect_of[setting.field]), linked)]
        if setting.key in changeable:
            sentences.append("*May be changed while the daemon runs.*")
        if (java := java_default(setting, shown)) is not None:
            sentences.append(f"Java's default: {f'``{java}``' if java else 'empty'}.")
        if setting.key in SYSTEM_PROPERTIES:
            sentences.append("In Java it is a system property.")
        elif is_ours(setting):
            sentences.append("Java has no such setting.")
        text = textwrap.fill(" ".join(sentences), 116, break_on_hyphens=False, break_long_words=False)
        yield (
            f".. confval:: {setting.key}\n   :type: {values(setting)}\n   :default: {default(setting, shown)}\n"
            + (
                "   :no-index-entry:\n   :no-index:\n\n"
                if cls is NamesrvSettings and setting.key in of_brokers
                else "\n"
            )
            + textwrap.indent(text, "   ")
            + "\n"
        )


def render(cls: type, changeable: Set[str]) -> str:
    """The blocks of a page."""
    host = Host("/home/USER", "HOST", "192.0.2.1")
    load = load_namesrv_settings if cls is NamesrvSettings else load_broker_settings
    shown = dict(line.split("=", 1) for line in show_settings(load(host=host)))
    return "\n".join(blocks(cls, shown, NAMESRV_CHANGEABLE if cls is NamesrvSettings else changeable))


def render_unused() -> str:
    """Reasons, each with the keys that it is for."""
    by_why: dict[str, list[str]] = {}
    for key, unused in UNUSED.items():
        by_why.setdefault(unused.why, []).append(key)
    indent = "\n             "
    return "\n".join(
        f".. confval:: {indent.join(sorted(keys))}\n\n"
        + textwrap.fill(
            f"No effect here, because {literal(why, all_settings())}.",
            116,
            initial_indent="   ",
            subsequent_indent="   ",
        )
        + "\n"
        for why, keys in by_why.items()
    )


def page_with(text: str, page: str) -> str:
    """The page with the list in its place."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{text}{END}{rest.partition(END)[2]}"


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    changeable = changeable_keys()
    texts = {name: render(cls, changeable) for name, cls in PAGES.items()}
    texts["settings-without-effect"] = render_unused()
    paths = {FOLDER / f"{name}.rst": text for name, text in texts.items()}
    return {path: page_with(text, path.read_text()) for path, text in paths.items()}


def all_settings() -> set[str]:
    """The keys of all settings that have an effect."""
    return {setting.key for cls in PAGES.values() for setting in settings_of(cls)} - UNUSED.keys()


if __name__ == "__main__":
    for each, content in pages().items():
        each.write_text(content)
