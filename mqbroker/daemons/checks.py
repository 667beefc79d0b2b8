"""Checks of --check beside the settings, as at a start: certificates, keys, accounts, and whether all files can be
written. They leave nothing behind."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial

from mqbroker.access.acl_files import acl_places, read_at_start, warnings_of
from mqbroker.config import BrokerSettings, NamesrvSettings
from mqbroker.config.shards import shard_settings
from mqbroker.daemons.daemon import advice, why_not_started
from mqbroker.daemons.process import require_file
from mqbroker.daemons.shard_stores import check_shard_stores
from mqbroker.errors import MQError
from mqbroker.remoting.tls import client_context, server_context


def check(settings: BrokerSettings | NamesrvSettings, own_files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Errors that would prevent the start, and warnings; `own_files`: paths by the setting or option of each."""
    faults: list[str] = []
    warnings = advice(settings)
    looks: list[Callable[[], list[str]]] = [lambda: _check_tls(settings), lambda: _check_accounts(settings)]
    looks += [partial(_check_directory, name, path) for name, path in _directories(settings)]
    looks.append(lambda: _check_shards(settings))
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
    return []


def _check_accounts(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    if not isinstance(settings, BrokerSettings) or not settings.acl_enable:
        return []
    places = acl_places(settings.rocketmq_home, settings.acl_plain_file)
    return warnings_of(read_at_start(places), places.plain_file)


def _check_shards(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    try:
        return check_shard_stores(settings) if isinstance(settings, BrokerSettings) else []
    except OSError as error:
        raise MQError(why_not_started(error)) from None


def _directories(settings: BrokerSettings | NamesrvSettings) -> list[tuple[str, str]]:
    """Directories for files, each with its setting; missing ones are created."""
    if not isinstance(settings, BrokerSettings):
        return [("kvConfigPath", os.path.dirname(settings.kv_config_path))]
    found = []
    for shard in range(settings.shards):
        store = shard_settings(settings, shard).store
        found.append(("storePathRootDir", store.store_path_root_dir))
        found.append(("storePathCommitLog", store.store_path_commit_log))
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
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    return _looked(name, path, path, look)


def _looked(name: str, path: str, there: str, look: Callable[[], None]) -> list[str]:
    try:
        look()
    except OSError as error:
        error.filename = there
        raise MQError(f"{name}: {path} cannot be written: {why_not_started(error)}") from None
    return []
