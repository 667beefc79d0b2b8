"""Typed settings, read from the same .conf files and keys as the Java system's. Knows nothing of the parts they set."""

from mqbroker.config.conf_file import Given, read_conf
from mqbroker.config.load import load_broker_settings, load_namesrv_settings, show_settings
from mqbroker.config.settings import (
    BelowInSync,
    BrokerRole,
    BrokerSettings,
    ClientAuth,
    ClientSettings,
    FlushDiskType,
    LogLevel,
    NamesrvSettings,
    NettySettings,
    StoreSettings,
    TlsMode,
    TlsSettings,
)
from mqbroker.config.system import Host

__all__ = [
    "BelowInSync",
    "BrokerRole",
    "BrokerSettings",
    "ClientAuth",
    "ClientSettings",
    "FlushDiskType",
    "Given",
    "Host",
    "LogLevel",
    "NamesrvSettings",
    "NettySettings",
    "StoreSettings",
    "TlsMode",
    "TlsSettings",
    "load_broker_settings",
    "load_namesrv_settings",
    "read_conf",
    "show_settings",
]
