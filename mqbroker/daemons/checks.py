"""Checks of --check beside the settings, as at a start: certificates, keys, accounts, addresses, ports, the store, and
whether all files can be written. They leave nothing behind."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from twisted.internet.error import CannotListenError

from mqbroker.access.acl_files import acl_places, read_at_start, warnings_of
from mqbroker.broker.broker_group import etcd_access
from mqbroker.broker.ports import allowed_slaves, own_address
from mqbroker.config import BrokerRole, BrokerSettings, NamesrvSettings, StoreSettings
from mqbroker.config.shards import shard_settings
from mqbroker.config.system import IS_LINK, is_own_link, resolve
from mqbroker.daemons.daemon import advice, why_not_started
from mqbroker.daemons.process import lock_pid_file, require_file
from mqbroker.daemons.shard_stores import check_shard_stores
from mqbroker.errors import MQError, StoreLocked
from mqbroker.ha.etcd_http import check_access
from mqbroker.ha.link_secret import read_secret
from mqbroker.remoting.extensions import check_extensions
from mqbroker.remoting.tcp import try_port
from mqbroker.remoting.tls import client_context, server_context
from mqbroker.store.layout import StorePaths, lock_holder, refuse_other
from mqbroker.store.os_disk import OsDisk


def check(settings: BrokerSettings | NamesrvSettings, own_files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Errors that would prevent the start, and warnings; `own_files`: paths by the setting or option of each."""
    faults: list[str] = []
    warnings = advice(settings)
    looks: list[Callable[[], list[str]]] = [lambda: _check_tls(settings), lambda: _check_accounts(settings)]
    looks.append(lambda: check_extensions(settings.server.extensions))
    looks += [partial(_check_directory, name, path) for name, path in _directories(settings)]
    looks.append(lambda: _check_shards(settings))
    looks.append(lambda: _check_own_address(settings))
    looks += [partial(_check_ports, each) for each in _shards(settings) or (settings,)]
    looks += [partial(_check_store, each.store) for each in _shards(settings)]
    looks += [partial(_check_file, name, path) for name, path in own_files.items()]
    for look in looks:
        try:
            warnings += look()
        except MQError as error:
            faults.append(str(error))
    return faults, warnings


def _check_tls(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    if settings.tls.has_server_files:
        server_context(settings.tls)
    if isinstance(settings, BrokerSettings) and settings.client.use_tls:
        client_context(settings.tls)
    if isinstance(settings, BrokerSettings) and settings.etcd_endpoints:
        check_access(etcd_access(settings))
    if isinstance(settings, BrokerSettings) and settings.ha_secret_file:
        read_secret(settings.ha_secret_file)
    return []


def _check_accounts(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    if not isinstance(settings, BrokerSettings) or not settings.acl_enable:
        return []
    places = acl_places(settings.rocketmq_home, settings.acl_plain_file)
    try:
        return warnings_of(read_at_start(places), places.plain_file)
    except OSError as error:  # a directory that cannot be listed
        raise MQError(why_not_started(error)) from None


def _check_shards(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    try:
        return check_shard_stores(settings) if isinstance(settings, BrokerSettings) else []
    except OSError as error:
        raise MQError(why_not_started(error)) from None


def _check_own_address(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    if not isinstance(settings, BrokerSettings):
        return []
    _, told = own_address(settings, resolve)
    return [told] if told else []


def _check_ports(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    """A start goes on without the ports for the VIP channel and for slaves."""
    _check_port(settings, settings.server.listen_port)
    warnings = []
    for port, what in _further_ports(settings) if isinstance(settings, BrokerSettings) else ():
        try:
            _check_port(settings, port)
        except MQError as error:
            warnings.append(f"{what}: {error}")
    return warnings


def _further_ports(settings: BrokerSettings) -> list[tuple[int, str]]:
    found = []
    if settings.vip_port is not None:
        found.append((settings.vip_port, "the VIP channel would not be served"))
    if settings.store.broker_role is not BrokerRole.SLAVE and allowed_slaves(settings) is not None:
        found.append((settings.ha_listen_port, "no slave could connect"))
    return found


def _check_port(settings: BrokerSettings | NamesrvSettings, port: int) -> None:
    try:
        try_port(port, settings.server.bind_address)
    except CannotListenError as error:
        raise MQError(why_not_started(error)) from None


def _shards(settings: BrokerSettings | NamesrvSettings) -> Sequence[BrokerSettings]:
    if not isinstance(settings, BrokerSettings):
        return ()
    return [shard_settings(settings, shard) for shard in range(settings.shards)]


def _check_store(store: StoreSettings) -> list[str]:
    root = store.store_path_root_dir
    path = StorePaths(root, store.store_path_commit_log).lock
    try:
        holder = lock_holder(path)
        if os.path.isdir(root):
            refuse_other(OsDisk(), root)
    except OSError as error:
        raise MQError(why_not_started(error)) from None
    if holder:
        raise StoreLocked(path, holder)
    return []


def _directories(settings: BrokerSettings | NamesrvSettings) -> list[tuple[str, str]]:
    """Directories for files, each with its setting; missing ones are created."""
    if not isinstance(settings, BrokerSettings):
        return [("kvConfigPath", os.path.dirname(settings.kv_config_path))]
    found = []
    for shard in _shards(settings):
        found.append(("storePathRootDir", shard.store.store_path_root_dir))
        found.append(("storePathCommitLog", shard.store.store_path_commit_log))
    return found


def _check_directory(name: str, path: str) -> list[str]:
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)

    def look() -> None:
        if there != path:  # not only permissions decide whether a file can be created
            os.rmdir(tempfile.mkdtemp(prefix=".mqbroker-check-", dir=there))
        elif not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        elif not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    return _looked(name, path, there, look)


def _check_file(name: str, path: str) -> list[str]:
    path = os.path.abspath(path)
    if not os.path.lexists(path):
        return _check_directory(name, os.path.dirname(path))

    def look() -> None:
        if name != "--log-file":  # which may be a pipe
            require_file(path)
        if os.path.islink(path) and not (name == "--log-file" and is_own_link(path)) and name != "--ports-file":
            raise OSError(errno.ELOOP, IS_LINK)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if name == "--pid-file":
            with open(path, encoding="ascii", errors="replace") as file:
                lock_pid_file(file, path)

    return _looked(name, path, path, look)


def _looked(name: str, path: str, there: str, look: Callable[[], None]) -> list[str]:
    try:
        look()
    except OSError as error:
        error.filename = there
        raise MQError(f"{name}: {path} cannot be written: {why_not_started(error)}") from None
    return []
