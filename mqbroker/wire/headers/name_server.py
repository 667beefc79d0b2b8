"""Headers of name server requests - brokers, routes, key-value configuration - and about a broker itself: settings,
statistics, access control.
"""

from __future__ import annotations

import attrs

from mqbroker.wire.headers.coding import Header, Int, Long


@attrs.define(kw_only=True)
class RegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int | None = None


@attrs.define(kw_only=True)
class RegisterBrokerResponseHeader(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@attrs.define(kw_only=True)
class UnRegisterBrokerRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@attrs.define(kw_only=True)
class QueryDataVersionRequestHeader(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@attrs.define(kw_only=True)
class QueryDataVersionResponseHeader(Header):
    changed: bool


@attrs.define(kw_only=True)
class AddWritePermOfBrokerRequestHeader(Header):
    broker_name: str


@attrs.define(kw_only=True)
class AddWritePermOfBrokerResponseHeader(Header):
    add_topic_count: Int


@attrs.define(kw_only=True)
class WipeWritePermOfBrokerRequestHeader(Header):
    broker_name: str


@attrs.define(kw_only=True)
class WipeWritePermOfBrokerResponseHeader(Header):
    wipe_topic_count: Int


@attrs.define(kw_only=True)
class GetRouteInfoRequestHeader(Header):
    topic: str
    accept_standard_json_only: bool | None = None


@attrs.define(kw_only=True)
class GetTopicsByClusterRequestHeader(Header):
    cluster: str


@attrs.define(kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(Header):
    topic: str
    cluster_name: str | None = None


@attrs.define(kw_only=True)
class PutKVConfigRequestHeader(Header):
    namespace: str
    key: str
    value: str


@attrs.define(kw_only=True)
class GetKVConfigRequestHeader(Header):
    namespace: str
    key: str


@attrs.define(kw_only=True)
class GetKVConfigResponseHeader(Header):
    value: str | None = None


@attrs.define(kw_only=True)
class GetKVListByNamespaceRequestHeader(Header):
    namespace: str


@attrs.define(kw_only=True)
class DeleteKVConfigRequestHeader(Header):
    namespace: str
    key: str


@attrs.define(kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    version: str


@attrs.define(kw_only=True)
class ViewBrokerStatsDataRequestHeader(Header):
    stats_name: str
    stats_key: str


@attrs.define(kw_only=True)
class CreateAccessConfigRequestHeader(Header):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@attrs.define(kw_only=True)
class DeleteAccessConfigRequestHeader(Header):
    access_key: str


@attrs.define(kw_only=True)
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    global_white_addrs: str
    # Java's broker refuses a request without it, though its own tool omits it.
    acl_file_full_path: str | None = None


@attrs.define(kw_only=True)
class GetBrokerAclConfigResponseHeader(Header):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str
