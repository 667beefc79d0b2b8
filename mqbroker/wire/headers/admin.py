"""Headers about a broker itself: its settings, its statistics, who may do what on it."""

from __future__ import annotations

import attrs

from mqbroker.wire.headers.coding import Header


@attrs.frozen(kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    version: str


@attrs.frozen(kw_only=True)
class ViewBrokerStatsDataRequestHeader(Header):
    stats_name: str
    stats_key: str


@attrs.frozen(kw_only=True)
class CreateAccessConfigRequestHeader(Header):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@attrs.frozen(kw_only=True)
class DeleteAccessConfigRequestHeader(Header):
    access_key: str


@attrs.frozen(kw_only=True)
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    global_white_addrs: str
    # Java's broker refuses a request without; its own tool leaves it out.
    acl_file_full_path: str | None = None


@attrs.frozen(kw_only=True)
class GetBrokerAclConfigResponseHeader(Header):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str
