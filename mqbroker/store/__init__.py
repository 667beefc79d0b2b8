"""The message store: a commit log, consume queues and an index in mapped files, laid out as the Java broker's."""

from mqbroker.store.message_store import MessageStore, open_store, open_store_in_turns
from mqbroker.store.outcomes import GetResult, GetStatus

__all__ = ["GetResult", "GetStatus", "MessageStore", "open_store", "open_store_in_turns"]
