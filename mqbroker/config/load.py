"""Loads settings: the defaults, then the file, then the environment, then options; the last one given counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import attrs

from mqbroker.config.conf_file import Given, read_conf
from mqbroker.config.fields import Note, Setting, settings_of
from mqbroker.config.host import Host
from mqbroker.config.settings import (
    BROKER_PORT,
    NAMESRV_PORT,
    BrokerSettings,
    ClientSettings,
    NamesrvSettings,
    NettySettings,
    StoreSettings,
)
from mqbroker.config.tls import TlsMode, TlsSettings, with_tls_file
from mqbroker.config.unused import NO_EFFECT, REFUSED, REFUSED_KEYS

T = TypeVar("T")
Warn = Callable[[str], None]

CONSUME_QUEUE_ENTRY_SIZE = 20
_ENVIRONMENT_PREFIX = "ROCKETMQ_"
_BROKER_PARTS: tuple[type, ...] = (BrokerSettings, NettySettings, ClientSettings, StoreSettings, TlsSettings)
_NAMESRV_PARTS: tuple[type, ...] = (NamesrvSettings, NettySettings, TlsSettings)
#: One file may serve both daemons.
_EVERYONES = {setting.key for part in (*_BROKER_PARTS, *_NAMESRV_PARTS) for setting in settings_of(part)}


def load_broker_settings(
    path: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
    *,
    environ: Mapping[str, str] | None = None,
    warn: Warn = lambda message: None,
    host: Host | None = None,
) -> BrokerSettings:
    """The broker's settings from the file at `path`, `environ` (none by default) and the `overrides` (key, value).

    `warn` hears of keys that are unknown. Raises BadSetting.
    """
    given = with_tls_file(_gather(path, overrides, environ or {}, _BROKER_PARTS, warn), warn)
    _refuse_what_is_not_here(given)
    host = host or Host.this()
    server = _build(NettySettings, given, warn, listen_port=BROKER_PORT)
    tls = _build_tls(given, warn)
    store = _build(StoreSettings, given, warn, store_path_root_dir=os.path.join(host.home, "store"))
    store = attrs.evolve(store, mapped_file_size_consume_queue=_whole_entries(store.mapped_file_size_consume_queue))
    address = host.address if server.bind_address in ("", "0.0.0.0", "::") else server.bind_address
    defaults = {
        "broker_name": host.name,
        "broker_ip1": address,
        "broker_ip2": address,
        "ha_listen_port": server.listen_port + 1 if server.listen_port else 0,
        "store": store,
        "server": server,
        "client": _build(ClientSettings, given, warn, use_tls=_uses_tls(tls, given)),
        "config_path": os.path.abspath(path) if path is not None else None,
        "tls": tls,
    }
    settings = _build(BrokerSettings, given, warn, **defaults)
    _check_ports(settings, given)
    _check_name_servers(settings, given)
    if settings.acl_enable and not settings.rocketmq_home:
        raise given["aclEnable"].bad("set rocketmqHome too: the accounts are in its conf/plain_acl.yml")
    # A master's id is 0 whatever the file says, as Java has it.
    return attrs.evolve(settings, broker_id=0)


def load_namesrv_settings(
    path: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
    *,
    environ: Mapping[str, str] | None = None,
    warn: Warn = lambda message: None,
    host: Host | None = None,
) -> NamesrvSettings:
    """The name server's settings; see `load_broker_settings`."""
    given = with_tls_file(_gather(path, overrides, environ or {}, _NAMESRV_PARTS, warn), warn)
    home = (host or Host.this()).home
    folder = os.path.join(home, "namesrv")
    settings = _build(
        NamesrvSettings,
        given,
        warn,
        kv_config_path=os.path.join(folder, "kvConfig.json"),
        config_store_path=os.path.abspath(path) if path else os.path.join(folder, "namesrv.properties"),
        server=_build(NettySettings, given, warn, listen_port=NAMESRV_PORT),
        tls=_build_tls(given, warn),
    )
    if settings.cluster_test and not settings.namesrv_addr:
        why = "it needs namesrvAddr, or NAMESRV_ADDR: the name servers to ask about topics that are not here"
        raise given["clusterTest"].bad(why)
    return settings


def is_without_effect(key: str) -> bool:
    """Whether it is a key of the Java system that is taken without a word and changes nothing here."""
    return key in NO_EFFECT


def _uses_tls(tls: TlsSettings, given: Mapping[str, Given]) -> bool:
    """Whether a daemon's own connections are encrypted where useTLS does not say, as Java has it."""
    return tls.enable if "tls.enable" in given else tls.mode is TlsMode.ENFORCING


def show_settings(settings: Any, *, important_only: bool = False) -> list[str]:
    """`key=value` lines of settings and of the parts within, such as a file could hold."""
    lines = [
        f"{setting.key}={setting.note.show(getattr(settings, setting.field))}"
        for setting in settings_of(type(settings))
        if setting.note.important or not important_only
    ]
    for field in attrs.fields(type(settings)):
        part = getattr(settings, field.name)
        if attrs.has(type(part)):
            lines += show_settings(part, important_only=important_only)
    return lines


def _gather(
    path: str | None,
    overrides: Iterable[tuple[str, str]],
    environ: Mapping[str, str],
    parts: tuple[type, ...],
    warn: Warn,
) -> dict[str, Given]:
    """What was given for each key, the last of each."""
    own = {setting.key for part in parts for setting in settings_of(part)}
    known = own | NO_EFFECT | REFUSED_KEYS
    given: dict[str, Given] = {}
    for item in _from_file(path):
        if item.key in given:
            warn(f"{item.where}: {item.key} is given again; this one counts, not that of line {given[item.key].line}")
        if item.key not in known | _EVERYONES:
            warn(f"{item.where}: {item.key} is not a setting and changes nothing{_did_you_mean(item.key, own)}")
        given[item.key] = item
    for item in _from_environment(environ, own):
        former = given.get(item.key)
        if former is not None and former.value != item.value:
            warn(f"{item.where} sets {item.key}{_difference(item, former)}, {former.where}")
        given[item.key] = item
    for key, value in overrides:
        given[key] = item = Given(key, value.strip(), "command line")
        if key not in known:
            raise item.bad(f"no such setting{_did_you_mean(key, own)}")
    return given


def _refuse_what_is_not_here(given: Mapping[str, Given]) -> None:
    for item in given.values():
        why = REFUSED.get((item.key, item.value.lower()))
        if why is not None:
            raise item.bad(why)


def _from_file(path: str | None) -> list[Given]:
    if path is None:
        return []
    return [Given(key, value, path, line) for key, value, line in read_conf(path)]


def _from_environment(environ: Mapping[str, str], keys: Iterable[str]) -> list[Given]:
    """ROCKETMQ_BROKER_NAME is brokerName; NAMESRV_ADDR and ROCKETMQ_HOME are as the Java system has them."""
    wanted = {f"{_ENVIRONMENT_PREFIX}{key.upper()}": key for key in keys}
    wanted |= {"NAMESRVADDR": "namesrvAddr"} if "namesrvAddr" in wanted.values() else {}
    wanted |= {"ROCKETMQ_HOME": "rocketmqHome"} if "rocketmqHome" in wanted.values() else {}
    found = []
    for name, value in sorted(environ.items()):
        folded = _folded(name)
        if folded in wanted and value.strip():
            found.append(Given(wanted[folded], value.strip(), f"environment variable {name}"))
    return found


def _difference(item: Given, former: Given) -> str:
    is_secret = "password" in item.key.lower()
    return " in place of another" if is_secret else f"={item.value} in place of {former.value!r}"


def _folded(name: str) -> str:
    if name.startswith(_ENVIRONMENT_PREFIX):
        return _ENVIRONMENT_PREFIX + name.removeprefix(_ENVIRONMENT_PREFIX).replace("_", "")
    return name.replace("_", "") if name == "NAMESRV_ADDR" else name


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    by_folded = {name.lower(): name for name in known}
    close = get_close_matches(key.lower(), by_folded, n=1, cutoff=0.7)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def _build(cls: type[T], given: Mapping[str, Given], warn: Warn, **values: Any) -> T:
    """An instance of `cls` from what was `given`; `values` are the defaults that are not the class's own."""
    for setting in settings_of(cls):
        item = given.get(setting.key)
        if item is not None:
            values[setting.field] = _value(setting, item, warn)
    return cls(**values)


def _build_tls(given: Mapping[str, Given], warn: Warn) -> TlsSettings:
    tls = _build(TlsSettings, given, warn)
    is_complete = tls.server_cert_path and tls.server_key_path
    if tls.mode is not TlsMode.DISABLED and not tls.test_mode and not is_complete:
        why = "set tls.server.certPath and tls.server.keyPath too, or tls.server.mode=disabled for no encryption"
        raise given["tls.test.mode.enable"].bad(why)
    return tls


def _value(setting: Setting, item: Given, warn: Warn) -> Any:
    try:
        value = setting.note.parse(item.value)
    except ValueError as error:
        raise item.bad(str(error)) from None
    return value if setting.note.clamp is None else _clamped(value, setting.note, item, warn)


def _clamped(value: int, note: Note, item: Given, warn: Warn) -> int:
    assert note.clamp is not None
    low, high = note.clamp
    kept = min(max(value, low), high)
    if kept != value:
        warn(f"{item.where}: {item.key}={value} is taken as {kept}: it goes from {low} to {high}")
    return kept


def _whole_entries(size: int) -> int:
    """A consume queue file holds whole entries, as in Java."""
    return -(-size // CONSUME_QUEUE_ENTRY_SIZE) * CONSUME_QUEUE_ENTRY_SIZE


def _check_ports(settings: BrokerSettings, given: Mapping[str, Given]) -> None:
    port = settings.server.listen_port
    if port and settings.ha_listen_port == port:
        raise given["haListenPort"].bad(f"{port} is the listenPort too; leave it out for {port + 1}")
    if settings.ha_listen_port > 65535:
        raise given["listenPort"].bad("65535 leaves no port above it for replication; set haListenPort too")


def _check_name_servers(settings: BrokerSettings, given: Mapping[str, Given]) -> None:
    lookup = given.get("fetchNamesrvAddrByAddressServer")
    if lookup is not None and lookup.value.lower() == "true" and not settings.namesrv_addr:
        raise lookup.bad("no address server is asked, so the broker would register nowhere; set namesrvAddr")
