"""The accounts as administrators see and change them: codes 50 to 54. Secrets are taken, and never told."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.access.acl_edit import AccountChange
from mqbroker.access.acl_files import AclFiles, describe_versions
from mqbroker.access.acl_yaml import BadAcl
from mqbroker.config import BrokerSettings
from mqbroker.errors import Refused
from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire import fastjson
from mqbroker.wire.bodies import DataVersion
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    decode_header,
)

log = Logger()

_OFF = "this broker controls no access: set aclEnable=true"


class AclProcessor:
    """Answers for `files`; None where access is not controlled.

    :param own_addr: the broker's address, as its name servers have it.
    """

    def __init__(self, files: AclFiles | None, settings: BrokerSettings, own_addr: str) -> None:
        self._files = files
        self._settings = settings
        self._own_addr = own_addr

    def register_on(self, table: HandlerTable) -> None:
        table.register(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, self.put_account)
        table.register(RequestCode.DELETE_ACL_CONFIG, self.delete_account)
        table.register(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, self.put_white)
        table.register(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, self.versions)
        table.register(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, self.show)

    async def put_account(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(CreateAccessConfigRequestHeader, request.ext_fields)
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
        log.info("{peer} changed account {key}", peer=connection.remote_addr, key=header.access_key)
        return RemotingCommand.response(request)

    async def delete_account(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        header = decode_header(DeleteAccessConfigRequestHeader, request.ext_fields)
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        await self._done(self._need_files(failed).delete_account(header.access_key), failed)
        log.info("{peer} deleted account {key}", peer=connection.remote_addr, key=header.access_key)
        return RemotingCommand.response(request)

    async def put_white(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        # Not by its header class: Java's tool leaves the path out, which its own broker then refuses.
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        addresses = _split(request.ext_fields.get("globalWhiteAddrs"))
        if addresses is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the custom field <globalWhiteAddrs> is null")
        path = request.ext_fields.get("aclFileFullPath")
        await self._done(self._need_files(failed).put_white(addresses, path), failed)
        log.info("{peer} changed the global white list", peer=connection.remote_addr)
        return RemotingCommand.response(request)

    def versions(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """How often each file was changed."""
        files = self._need_files(ResponseCode.SYSTEM_ERROR)
        plain = files.content.files.get(files.places.plain_file)
        header = GetBrokerAclConfigResponseHeader(
            version=(plain.version if plain is not None else DataVersion()).to_json().decode(),
            all_acl_file_version=fastjson.dumps(describe_versions(files.content)).decode(),
            broker_name=self._settings.broker_name,
            broker_addr=self._own_addr,
            cluster_name=self._settings.broker_cluster_name,
        )
        return RemotingCommand.response(request, header=header)

    def show(self, request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        """The accounts, without secrets, and the global white list."""
        content = self._need_files(ResponseCode.SYSTEM_ERROR).content
        raws = [file.raw for file in content.files.values()]
        by_key: dict[str, Any] = {}
        for raw in raws:
            for account in raw.get("accounts") or []:
                by_key.setdefault(str(account["accessKey"]), _shown(account))
        white = [str(each) for raw in raws for each in raw.get("globalWhiteRemoteAddresses") or []]
        body = {"globalWhiteAddrs": white, "plainAccessConfigs": list(by_key.values())}
        return RemotingCommand.response(request, body=fastjson.dumps(body))

    def _need_files(self, code: int) -> AclFiles:
        if self._files is None:
            raise Refused(code, _OFF)
        return self._files

    async def _done(self, work: Deferred[None], code: int) -> None:
        try:
            await work
        except BadAcl as error:
            raise Refused(code, str(error)) from None
        except OSError as error:
            log.error("the accounts could not be written: {why}", why=str(error))
            raise Refused(code, f"the accounts could not be written: {error.strerror}") from None


_SHOWN = ("whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms")


def _shown(account: dict[str, Any]) -> dict[str, Any]:
    """An account as a Java tool reads it. Its secret is left out rather than masked: a tool could send a mask back."""
    shown = {key: account[key] for key in _SHOWN if account.get(key) is not None}
    return {"accessKey": str(account["accessKey"]), "admin": str(account.get("admin")).lower() == "true", **shown}


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part for each in text.split(",") if (part := each.strip())]
