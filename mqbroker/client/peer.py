"""What a client answers to its brokers' requests: it hears that group members changed, and declines the rest."""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.errors import Refused
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import NotifyConsumerIdsChangedRequestHeader, decode_header

#: Called with the name of a group whose members changed.
IdsChanged = Callable[[str], None]


def answer_peer(request: RemotingCommand, ids_changed: IdsChanged | None) -> RemotingCommand | None:
    """Return the answer to `request`, or None where it wants none."""
    if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and ids_changed is not None:
        try:
            ids_changed(decode_header(NotifyConsumerIdsChangedRequestHeader, request.ext_fields).consumer_group)
        except Refused as refused:
            return None if request.is_oneway else RemotingCommand.response(request, refused.code, refused.remark)
        return None
    if request.is_oneway:
        return None
    remark = f" request type {request.code} not supported"
    return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
