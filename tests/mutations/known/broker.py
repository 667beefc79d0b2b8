"""Mistakes of the broker, the name server and access control."""

from tests.mutations.mutation import Mutation

MISTAKES = [
    Mutation(
        "store a message of a transaction again that others committed meanwhile",
        "broker/requests/end_transaction.py",
        "        run.has_waited = True\n",
        "",
        ("tests/broker/test_cold_requests.py::test_what_others_settle_while_a_run_waits_is_not_stored_again",),
    ),
    Mutation(
        "show a message by its offset to any account",
        "broker/requests/query_message.py",
        "        self.rights.check_record(request.code, request.ext_fields, request.body, call.connection, record)\n",
        "",
        ("tests/access/test_found_messages.py::test_a_message_is_shown_to_who_may_read_its_topic",),
    ),
    Mutation(
        "let any account end a transaction that is quickly found",
        "broker/requests/end_transaction.py",
        "                self._check_sender(run, request, message[0])\n",
        "",
        ("tests/access/test_found_messages.py::test_a_foreign_transaction_is_not_ended",),
    ),
    Mutation(
        "keep a list of topics that changed while it was made",
        "namesrv/route_requests.py",
        "        return self._keep(key, body) if versions == self._current_versions() else body\n",
        "        return self._keep(key, body)\n",
        ("tests/namesrv/test_every_request.py",),
    ),
    Mutation(
        "wake all pulls of a queue in one turn",
        "broker/long_polling.py",
        "        if len(waiting) <= CHECKS_MAX and key not in self._woken:\n",
        "        if True:\n",
        ("tests/broker/test_long_polling.py",),
    ),
    Mutation(
        "let who wakes many go before the other queues",
        "broker/long_polling.py",
        "            woken = self._woken.pop(key)\n",
        "            woken = self._woken[key] if len(self._woken[key].pulls) > 1 else self._woken.pop(key)\n",
        ("tests/broker/test_long_polling.py",),
    ),
    Mutation(
        "let one client join any number of groups",
        "broker/requests/client_requests.py",
        "        if count > GROUPS_OF_CLIENT_MAX:\n",
        "        if False:\n",
        ("tests/broker/test_quotas.py",),
    ),
    Mutation(
        "list all producers in one turn",
        "broker/requests/client_requests.py",
        "            for at, client in list(clients.items()):\n                await self.tasks.step()\n",
        "            for at, client in list(clients.items()):\n",
        ("tests/broker/test_topic_admin.py",),
    ),
]
