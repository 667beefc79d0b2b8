"""Loads settings: given values are parsed for each component, and checked together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from mqbroker.config.conf_file import Given
from mqbroker.config.fields import Setting, SettingSpec, parse_boolean, settings_of
from mqbroker.config.settings import (
    BROKER_PORT,
    NAMESRV_PORT,
    BrokerRole,
    BrokerSettings,
    ClientSettings,
    NamesrvSettings,
    NettySettings,
    StoreSettings,
    TlsMode,
    TlsSettings,
    add_tls_file,
)
from mqbroker.config.shards import why_no_shards
from mqbroker.config.sources import Faults, Sources, Warn, doubts_about
from mqbroker.config.system import Host
from mqbroker.config.unused import REFUSED, REFUSED_KEYS, REFUSED_VALUES, UNUSED
from mqbroker.errors import BadSetting

T = TypeVar("T")

CONSUME_QUEUE_ENTRY_SIZE = 20
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

    `warn` is called with unknown keys. Raises BadSetting, or BadSettings if several are wrong.
    """
    maker = _Maker(path, overrides, environ or {}, _BROKER_PARTS, warn)
    given, faults = maker.given, maker.faults
    for item in given.values():
        faults.check(lambda item=item: _refuse_what_is_not_here(item))  # type: ignore[misc]
    host = host or Host.this()
    server = maker.make(NettySettings, listen_port=BROKER_PORT)
    tls = maker.make_tls()
    store = maker.make(StoreSettings, store_path_root_dir=os.path.join(host.home, "store"))
    store = attrs.evolve(store, mapped_file_size_consume_queue=_whole_entries(store.mapped_file_size_consume_queue))
    address = host.address if server.bind_address in ("", "0.0.0.0", "::") else server.bind_address
    settings = maker.make(
        BrokerSettings,
        broker_name=host.name,
        broker_ip1=address,
        broker_ip2=address,
        ha_listen_port=server.listen_port + 1 if server.listen_port else 0,
        store=store,
        server=server,
        client=maker.make(ClientSettings, use_tls=_uses_tls(tls, given)),
        config_path=os.path.abspath(path) if path is not None else None,
        tls=tls,
    )
    faults.check(lambda: _check_ports(settings, given), "listenPort", "haListenPort")
    faults.check(lambda: _check_name_servers(settings, given), "namesrvAddr")
    faults.check(lambda: _refuse_if(settings.why_no_slave, given, "brokerRole"), *_SLAVE_KEYS)
    faults.check(lambda: _refuse_if(settings.why_no_group, given, "etcdEndpoints"), *_GROUP_KEYS)
    faults.check(lambda: _refuse_if(why_no_shards(settings), given, "shards"), *_SHARD_KEYS)
    faults.check(lambda: _check_accounts(settings, given), "aclEnable", "rocketmqHome")
    faults.raise_any(given)
    _warn_of_unused(given, warn)
    if ":" in settings.broker_ip1 and not server.bind_address:  # without an address only IPv4 would be served
        settings = attrs.evolve(settings, server=attrs.evolve(server, bind_address="::"))
    if store.broker_role is BrokerRole.SLAVE or settings.etcd_endpoints:
        return settings
    if settings.broker_id:
        why = "a slave has brokerRole=SLAVE"
        warn(f"{given['brokerId'].where}: brokerId={settings.broker_id} is taken as 0, a master's: {why}")
    # A master's id is always 0, as in Java.
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
    maker = _Maker(path, overrides, environ or {}, _NAMESRV_PARTS, warn)
    home = (host or Host.this()).home
    folder = os.path.join(home, "namesrv")
    settings = maker.make(
        NamesrvSettings,
        kv_config_path=os.path.join(folder, "kvConfig.json"),
        config_store_path=os.path.abspath(path) if path else os.path.join(folder, "namesrv.properties"),
        server=maker.make(NettySettings, listen_port=NAMESRV_PORT),
        tls=maker.make_tls(),
    )
    maker.faults.check(lambda: _check_cluster_test(settings, maker.given), "clusterTest", "namesrvAddr")
    maker.faults.raise_any(maker.given)
    # One file may serve both daemons; what is the broker's alone is told there.
    _warn_of_unused({key: item for key, item in maker.given.items() if key.startswith("server")}, warn)
    return settings


def is_without_effect(key: str) -> bool:
    """Whether it is a key of the Java system that has no effect here."""
    return key in UNUSED and key not in _EVERYONES


def check_unused(items: Iterable[Given], faults: Faults) -> None:
    """Check values of keys without effect by the type that they have in the Java system: a slip is one there, too."""
    for item in items:
        if is_without_effect(item.key):
            try:
                UNUSED[item.key].check(item.value)
            except ValueError as error:
                faults.add(item.bad(str(error)))


def _uses_tls(tls: TlsSettings, given: Mapping[str, Given]) -> bool:
    """Default of useTLS for a daemon's own connections, as in Java."""
    return tls.enable if "tls.enable" in given else tls.mode is TlsMode.ENFORCING


def show_settings(settings: Any, *, important_only: bool = False) -> list[str]:
    """`key=value` lines of settings and of nested ones, as in a file."""
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


def values_of(settings: Any) -> dict[str, str]:
    """All settings as text, by key."""
    return dict(line.split("=", 1) for line in show_settings(settings))


def _refuse_what_is_not_here(item: Given) -> None:
    if (item.key, "true") in REFUSED and item.key not in _EVERYONES:
        try:
            parse_boolean(item.value)
        except ValueError as error:
            raise item.bad(str(error)) from None
    why = REFUSED.get((item.key, item.value.lower())) or (item.value and REFUSED_VALUES.get(item.key))
    if why:
        raise item.bad(why)


def _warn_of_unused(given: Mapping[str, Given], warn: Warn) -> None:
    """Warn once about keys without effect that have other values than the default."""
    by_why: dict[str, list[str]] = {}
    for key, item in given.items():
        unused = UNUSED.get(key)
        if unused is not None and item.value.lower() != unused.default:
            by_why.setdefault(unused.why, []).append(key)
    if by_why:
        told = "; ".join(f"{', '.join(keys)} ({why})" for why, keys in by_why.items())
        warn(f"these settings have no effect: {told}")


class _Maker:
    """Makes settings from the `given` values; errors are collected in `faults`."""

    def __init__(
        self,
        path: str | None,
        overrides: Iterable[tuple[str, str]],
        environ: Mapping[str, str],
        parts: tuple[type, ...],
        warn: Warn,
    ) -> None:
        """Raises BadSetting if the file cannot be read."""
        self.faults = Faults()
        self._warn = warn
        settings = {setting.key: setting for part in parts for setting in settings_of(part)}
        unused = UNUSED.keys() | REFUSED_KEYS
        sources = Sources(settings, settings.keys() | unused, _EVERYONES | unused, warn)
        if path is not None:
            sources.add_file(path)
        sources.add_environment(environ)
        sources.add_options(overrides, self.faults)
        self.faults.check(lambda: add_tls_file(sources, warn))
        notes = {key: setting.note for key, setting in settings.items()}
        self.given = sources.settle(lambda key, *texts: _is_same(notes.get(key), *texts))
        check_unused(self.given.values(), self.faults)
        for key, item in self.given.items():
            if key in settings:
                for doubt in doubts_about(item, settings[key].kind):
                    warn(doubt)

    def make(self, cls: type[T], **values: Any) -> T:
        """Make an instance of `cls`; `values` override the class's defaults, which also replace invalid values."""
        for setting in settings_of(cls):
            item = self.given.get(setting.key)
            if item is not None:
                try:
                    values[setting.field] = _value(setting, item, self._warn)
                except BadSetting as error:
                    self.faults.add(error)
        return cls(**values)

    def make_tls(self) -> TlsSettings:
        tls = self.make(TlsSettings)
        files = "tls.server.keyPath", "tls.server.certPath", "tls.server.mode"
        self.faults.check(lambda: _check_tls(tls, self.given), "tls.config.file", "tls.test.mode.enable", *files)
        return tls


def _is_same(note: SettingSpec | None, value: str, other: str) -> bool:
    try:
        return value == other or (note is not None and bool(note.parse(value) == note.parse(other)))
    except ValueError:
        return False


def _check_tls(tls: TlsSettings, given: Mapping[str, Given]) -> None:
    is_complete = tls.server_cert_path and tls.server_key_path
    if tls.mode is not TlsMode.DISABLED and not tls.test_mode and not is_complete:
        why = "set tls.server.certPath and tls.server.keyPath too, or tls.server.mode=disabled for no encryption"
        raise given["tls.test.mode.enable"].bad(why)


def _value(setting: Setting, item: Given, warn: Warn) -> Any:
    try:
        value = setting.note.parse(item.value)
    except ValueError as error:
        raise item.bad(str(error)) from None
    if setting.note.clamp is None:
        return value
    low, high = setting.note.clamp
    kept = min(max(value, low), high)
    if kept != value:
        warn(f"{item.where}: {item.key}={value} is taken as {kept}: it goes from {low} to {high}")
    return kept


def _whole_entries(size: int) -> int:
    """Round the size of a consume queue file to whole entries, as in Java."""
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


_SLAVE_KEYS = "brokerRole", "brokerId", "namesrvAddr", "haMasterAddress"
_GROUP_KEYS = (
    *("etcdEndpoints", "brokerRole", "brokerId", "haMasterAddress", "haListenPort", "minInSyncReplicas"),
    *("replicationFactor", "aclEnable", "tls.server.mode", "haWhiteRemoteAddresses", "haSecretFile"),
    *("etcdUsername", "etcdPasswordFile", "etcdCaFile", "etcdCertFile", "etcdKeyFile"),
)
_SHARD_KEYS = "shards", "brokerName", "listenPort", "haListenPort", "namesrvAddr", "haMasterAddress"


def _refuse_if(why: str, given: Mapping[str, Given], key: str) -> None:
    if why:
        raise given[key].bad(why)


def _check_accounts(settings: BrokerSettings, given: Mapping[str, Given]) -> None:
    if settings.acl_enable and not settings.rocketmq_home:
        raise given["aclEnable"].bad("set rocketmqHome too: the accounts are in its conf/plain_acl.yml")


def _check_cluster_test(settings: NamesrvSettings, given: Mapping[str, Given]) -> None:
    if settings.cluster_test and not settings.namesrv_addr:
        why = "it needs namesrvAddr, or NAMESRV_ADDR: the name servers to ask about topics that are not here"
        raise given["clusterTest"].bad(why)


_DEFAULTS = {key: unused.default for key, unused in UNUSED.items() if unused.default is not None}
_DEFAULTS["enableDLegerCommitLog"] = "false"
_is_secret = re.compile("password|secret|credential|accesskey|token", re.IGNORECASE).search


def java_properties(settings: Any) -> str:
    """All keys of the Java broker as sorted `key=value` lines, as its clients expect them: those without effect here
    have Java's default; secrets, and what Java shows only where it is set, are left out."""
    table = _DEFAULTS | values_of(settings)
    if not table.get("haMasterAddress"):
        table.pop("haMasterAddress", None)
    return "".join(f"{key}={table[key]}\n" for key in sorted(table) if not _is_secret(key))
