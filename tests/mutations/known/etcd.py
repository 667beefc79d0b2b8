"""Mistakes of what brokers ask of etcd: hung members, changes that are sent twice, leases, accounts."""

from tests.mutations.mutation import Mutation

_ACCESS = "tests/ha/test_etcd_access.py"
_ENDPOINTS = "tests/ha/test_etcd_endpoints.py"
_HUNG = "tests/ha/test_hung_etcd.py"

MISTAKES = [
    Mutation(
        "wait for a hung member of etcd until the request fails",
        "ha/etcd_endpoints.py",
        "        if self._may_repeat and self._left:\n            self._next_call",
        "        if False:\n            self._next_call",
        (_HUNG,),
    ),
    Mutation(
        "return to a member of etcd that hangs with each request",
        "ha/etcd_endpoints.py",
        "            self._current = self._endpoints.index(endpoint)\n",
        "",
        (_ENDPOINTS,),
    ),
    Mutation(
        "ask a member of etcd that was silent as soon as any other",
        "ha/etcd_endpoints.py",
        "self._silent_until.get(endpoint, 0.0) > now)",
        "False)",
        (_ENDPOINTS,),
    ),
    Mutation(
        "have all brokers begin with one member of etcd",
        "broker/broker_group.py",
        "        first=settings.broker_id - 1,\n",
        "",
        ("tests/broker/service/test_group.py::test_brokers_ask_etcd_by_their_settings",),
    ),
    Mutation(
        "stay with a watch at a member of etcd that hangs",
        "ha/etcd.py",
        "            changes.end()\n\n    async def close",
        "            pass\n\n    async def close",
        (_ACCESS,),
    ),
    Mutation(
        "send a change twice that may be done twice",
        "ha/etcd.py",
        "    return {put.key for put in puts} <= {compare.key for compare in compares}\n",
        "    return True\n",
        (_ENDPOINTS, _HUNG),
    ),
    Mutation(
        "send a change to another member of etcd after a failure that says nothing",
        "ha/etcd_endpoints.py",
        "        if self._left and (self._may_repeat or not self._is_doubtful):\n",
        "        if self._left:\n",
        (_ENDPOINTS,),
    ),
    Mutation(
        "take a change for not done that the other member did",
        "ha/etcd.py",
        "    if not is_repeated:\n        return None\n",
        "    return None\n",
        (_ENDPOINTS, _HUNG),
    ),
    Mutation(
        "forget that a member which failed may have made the change",
        "ha/etcd_endpoints.py",
        "        is_repeated = self._is_doubtful or bool(self._open)\n",
        "        is_repeated = bool(self._open)\n",
        (_ENDPOINTS,),
    ),
    Mutation(
        "count on a lease up to its last moment by another clock",
        "ha/election.py",
        "LEASE_PART = 0.9\n",
        "LEASE_PART = 1.0\n",
        (_HUNG,),
    ),
    Mutation(
        "leave out a renewal that was due while another was under way",
        "ha/election.py",
        "        if self._is_renewal_due and self.running:\n",
        "        if False:\n",
        (_HUNG,),
    ),
    Mutation(
        "ask for a lease as often as each has expired",
        "ha/election.py",
        "GRANT_SECONDS = 0.5\n",
        "GRANT_SECONDS = 0.0\n",
        (_HUNG,),
    ),
    Mutation(
        "try a wrong password with every request",
        "ha/etcd_http.py",
        "        if 0 <= self._clock.seconds() - self._refused_at < AUTHENTICATE_SECONDS:\n",
        "        if False:\n",
        (_ACCESS,),
    ),
    Mutation(
        "keep a token that has ended",
        "ha/etcd_http.py",
        "        if token and _has_token_ended(code, answer):\n            token = await",
        "        if False:\n            token = await",
        (_ACCESS,),
    ),
]
