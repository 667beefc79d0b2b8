"""Requests that show and change the accounts: codes 50 to 54. Secrets are accepted, and never returned."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.access.acl_files import AclFiles
from mqbroker.access.acl_yaml import AccountChange, BadAcl
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import Call, answers
from mqbroker.wire import fastjson
from mqbroker.wire import headers as h
from mqbroker.wire.bodies import DataVersion
from mqbroker.wire.codes import RequestCode, ResponseCode

log = Logger()

_OFF = "this broker controls no access: set aclEnable=true"
_SHOWN = ("whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms")


@attrs.frozen
class AclRequests:
    """Shows and changes `files`; None if access control is off.

    :param own_addr: the broker's address, as registered at its name servers.
    """

    files: AclFiles | None
    settings: BrokerSettings
    own_addr: str

    @answers(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    async def put_account(self, call: Call[h.CreateAccessConfigRequestHeader]) -> None:
        header = call.header
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        change = AccountChange(
            access_key=header.access_key,
            secret_key=header.secret_key or "",
            white_address=header.white_remote_address,
            admin=header.admin,
            default_topic=header.default_topic_perm,
            default_group=header.default_group_perm,
            topics=_split(header.topic_perms),
            groups=_split(header.group_perms),
        )
        await self._done(self._need_files(failed).put_account(change), failed)
        log.info("{peer} changed account {key}", peer=call.connection.remote_addr, key=header.access_key)

    @answers(RequestCode.DELETE_ACL_CONFIG)
    async def delete_account(self, call: Call[h.DeleteAccessConfigRequestHeader]) -> None:
        header = call.header
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        await self._done(self._need_files(failed).delete_account(header.access_key), failed)
        log.info("{peer} deleted account {key}", peer=call.connection.remote_addr, key=header.access_key)

    @answers(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    async def put_white(self, call: Call[h.UpdateGlobalWhiteAddrsConfigRequestHeader]) -> None:
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        addresses = _split(call.header.global_white_addrs) or []
        await self._done(self._need_files(failed).put_white(addresses, call.header.acl_file_full_path), failed)
        log.info("{peer} changed the global white list", peer=call.connection.remote_addr)

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def versions(self, call: Call[None]) -> h.GetBrokerAclConfigResponseHeader:
        """The data version of each file."""
        acl = self._need_files(ResponseCode.SYSTEM_ERROR)
        files = acl.content.files
        plain = files.get(acl.places.plain_file)
        versions = {path: file.version.to_value() for path, file in files.items()}
        return h.GetBrokerAclConfigResponseHeader(
            version=(plain.version if plain is not None else DataVersion()).to_json().decode(),
            all_acl_file_version=fastjson.dumps(versions).decode(),
            broker_name=self.settings.broker_name,
            broker_addr=self.own_addr,
            cluster_name=self.settings.broker_cluster_name,
        )

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def show(self, call: Call[None]) -> bytes:
        """The accounts, without secrets, and the global white list."""
        content = self._need_files(ResponseCode.SYSTEM_ERROR).content
        raws = [file.raw for file in content.files.values()]
        by_key: dict[str, Any] = {}
        for raw in raws:
            for account in raw.get("accounts") or []:
                by_key.setdefault(str(account["accessKey"]), _account_view(account))
        white = [str(each) for raw in raws for each in raw.get("globalWhiteRemoteAddresses") or []]
        body = {"globalWhiteAddrs": white, "plainAccessConfigs": list(by_key.values())}
        return fastjson.dumps(body)

    def _need_files(self, code: int) -> AclFiles:
        if self.files is None:
            raise Refused(code, _OFF)
        return self.files

    async def _done(self, work: Deferred[None], code: int) -> None:
        try:
            await work
        except BadAcl as error:
            raise Refused(code, str(error)) from None
        except OSError as error:
            log.error("the accounts could not be written: {why}", why=str(error))
            raise Refused(code, f"the accounts could not be written: {error.strerror}") from None


def _account_view(account: dict[str, Any]) -> dict[str, Any]:
    """An account for a Java tool. Its secret is omitted rather than masked: a tool could send the mask back."""
    shown = {key: account[key] for key in _SHOWN if account.get(key) is not None}
    return {"accessKey": str(account["accessKey"]), "admin": str(account.get("admin")).lower() == "true", **shown}


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part for each in text.split(",") if (part := each.strip())]
