"""Mistakes in planned changes of a group: another master, and a member less."""

from tests.mutations.mutation import Mutation

_CANDIDACY = "tests/ha/test_candidacy.py"
_ELECTION = "tests/ha/test_planned_change.py"
_SWITCH = "tests/broker/service/test_group_switch.py"
_PROCEDURES = "tests/broker/service/test_group_procedures.py"

MISTAKES = [
    Mutation(
        "name a master that is not in sync",
        "ha/candidacy.py",
        "    if to not in state.in_sync:\n",
        "    if False:\n",
        (_CANDIDACY,),
    ),
    Mutation(
        "name a master whose store is not whole",
        "ha/candidacy.py",
        "    if not member.is_whole or not member.is_known:\n",
        "    if False:\n",
        (_CANDIDACY,),
    ),
    Mutation(
        "name the next master before all in sync have everything",
        "broker/broker_group.py",
        "            if in_sync.reached() >= end:\n",
        "            if True:\n",
        (_SWITCH,),
    ),
    Mutation(
        "stay the master while etcd may have the one that was named",
        "ha/election.py",
        " and state.lease == self._lease and not self._has_named\n",
        " and state.lease == self._lease\n",
        (_ELECTION,),
    ),
    Mutation(
        "go on as master while a lost request to name another may still be done",
        "ha/election.py",
        "written = await self._etcd.txn([Compare(self._key, self._state_revision)], [Put(self._key, state.to_json())])",
        "written = 0",
        (_ELECTION,),
    ),
    Mutation(
        "never be the master again after a request to name another was lost",
        "ha/election.py",
        "                if self._has_named and not self._is_naming:\n",
        "                if False:\n",
        (_ELECTION,),
    ),
    Mutation(
        "switch while one that is in sync does not follow, and all sends would wait for it",
        "ha/in_sync.py",
        "if absent := [other for other in others if not self._keeps_up(other, links)]:",
        "if absent := list[int]():",
        (_SWITCH,),
    ),
    Mutation(
        "hand on what another replica has handed on",
        "broker/sends_to_master.py",
        "        if request.remark == HANDED_ON:\n",
        "        if False:\n",
        (_SWITCH,),
    ),
    Mutation(
        "unregister the former master before the next one has registered",
        "broker/broker_service.py",
        "        self._leaving_names[client] = self._clock.callLater(NAMES_SECONDS, self._left_names, client)\n",
        "        return client.close()\n",
        (_SWITCH,),
    ),
    Mutation(
        "register the former master as a replica before the next one has registered",
        "broker/broker_group.py",
        "        if not self._serves_epoch and self._steady() < self._switched_at + REGISTER_AFTER_SECONDS:\n",
        "        if False:\n",
        (_SWITCH,),
    ),
    Mutation(
        "forget a member that is needed for what was acknowledged",
        "ha/candidacy.py",
        "    if replica_id in state.in_sync:\n",
        "    if False:\n",
        (_CANDIDACY, _SWITCH),
    ),
    Mutation(
        "forget a member that runs",
        "ha/election.py",
        "        if member is not None:\n            address",
        "        if False:\n            address",
        (_SWITCH,),
    ),
    Mutation(
        "call a group well though brokers of it are down",
        "cli/ha.py",
        "    is_well = member.is_well and not (why_not or not_whole or stopped or down) and own in in_sync\n",
        "    is_well = member.is_well and not (why_not or not_whole or stopped) and own in in_sync\n    down = ()\n",
        (_PROCEDURES,),
    ),
]
