"""The message store: a commit log, consume queues and an index in mapped files, laid out as the Java broker's."""

from mqbroker.store.get_message_result import GetMessageResult, GetMessageStatus
from mqbroker.store.message_store import MessageStore, open_store, open_store_in_turns

__all__ = ["GetMessageResult", "GetMessageStatus", "MessageStore", "open_store", "open_store_in_turns"]
