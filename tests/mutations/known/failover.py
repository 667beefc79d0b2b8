"""Mistakes of failover: elections, epochs, the in-sync set."""

from tests.mutations.mutation import Mutation

_ELECTION = "tests/ha/test_election.py"
_EPOCHS = "tests/ha/test_epochs.py"
_ETCD = "tests/ha/test_etcd.py"
_GROUP = "tests/broker/service/test_group.py"
_IN_SYNC = "tests/ha/test_in_sync.py"
_LINK = "tests/ha/test_link.py"
_MASTER = "tests/ha/test_master.py"
_RUNS = "tests/broker/service/test_group_runs.py"
_TRUNCATION = "tests/store/test_truncation.py"

MISTAKES = [
    Mutation(
        "elect a replica that is not in sync",
        "ha/election.py",
        "        if me not in state.in_sync:\n",
        "        if False:\n",
        (_ELECTION,),
    ),
    Mutation(
        "elect another while the master's lease stands",
        "ha/election.py",
        "        if is_master or master is not None:\n",
        "        if is_master:\n",
        (_ELECTION,),
    ),
    Mutation(
        "take the next lease for the one with which the broker was elected",
        "ha/election.py",
        "self.role.is_master and state is not None and state.lease == self._lease",
        "self.role.is_master and state is not None",
        (_ELECTION,),
    ),
    Mutation(
        "count a lease from the answer of etcd on",
        "ha/election.py",
        "            self._deadline = asked_at + ttl_s\n",
        "            self._deadline = self._steady() + ttl_s + 1\n",
        (_ELECTION, _RUNS),
    ),
    Mutation(
        "remain master after the lease has run out unheard",
        "ha/election.py",
        "return holds and self._steady() < self._deadline",
        "return holds",
        (_ELECTION,),
    ),
    Mutation(
        "found a group anew where etcd has lost its state",
        "ha/election.py",
        "        if self.known_epoch:\n",
        "        if False:\n",
        (_ELECTION,),
    ),
    Mutation(
        "trust an etcd from an old backup",
        "ha/election.py",
        "        if self.known_epoch > state.epoch:\n",
        "        if False:\n",
        (_ELECTION,),
    ),
    Mutation(
        "write the in-sync set whatever stands in etcd",
        "ha/election.py",
        "await self._etcd.txn([Compare(self._key, revision)], [Put(self._key, new.to_json())])",
        "await self._etcd.txn([], [Put(self._key, new.to_json())])",
        (_ELECTION,),
    ),
    Mutation(
        "take the state of another group",
        "ha/election.py",
        "if (state.cluster, state.broker) != (self._settings.cluster, self._settings.broker):",
        "if False:",
        (_ELECTION,),
    ),
    Mutation(
        "let two brokers of one id take part",
        "ha/election.py",
        "        if own is not None and own.lease:\n",
        "        if False:\n",
        (_ELECTION,),
    ),
    Mutation(
        "keep the lease at a stop",
        "ha/election.py",
        "                await self._etcd.revoke(lease)\n",
        "                pass\n",
        (_ELECTION,),
    ),
    Mutation(
        "acknowledge what one of the in-sync replicas has",
        "ha/in_sync.py",
        "return min((self._acknowledged.get(replica, 0) for replica in others), default=self._slaves.log.end)",
        "return max((self._acknowledged.get(replica, 0) for replica in others), default=self._slaves.log.end)",
        (_IN_SYNC,),
    ),
    Mutation(
        "count a replica out before etcd has that",
        "ha/in_sync.py",
        "            self._possible |= wanted\n",
        "            self.members = wanted\n",
        (_IN_SYNC,),
    ),
    Mutation(
        "forget a proposal whose outcome is unknown",
        "ha/in_sync.py",
        "        finally:\n            self._proposing = None\n",
        "        finally:\n            self._proposing, self._possible = None, frozenset()\n",
        (_IN_SYNC,),
    ),
    Mutation(
        "take in a replica that lacks what was acknowledged",
        "ha/in_sync.py",
        "for new in self._joining if self._acknowledged[new] >= self._confirmed}",
        "for new in self._joining}",
        (_IN_SYNC,),
    ),
    Mutation(
        "never wait for a replica that is about to be taken in",
        "ha/in_sync.py",
        "others = (self.members | self._possible | self._joining) - {self._me}",
        "others = (self.members | self._possible) - {self._me}",
        (_IN_SYNC,),
    ),
    Mutation(
        "acknowledge with fewer replicas than minInSyncReplicas",
        "ha/in_sync.py",
        "if not self._is_master() or len(self.members) < self._settings.min_replicas:",
        "if not self._is_master():",
        (_IN_SYNC,),
    ),
    Mutation(
        "acknowledge without the lease",
        "ha/in_sync.py",
        "if not self._is_master() or len(self.members) < self._settings.min_replicas:",
        "if len(self.members) < self._settings.min_replicas:",
        (_IN_SYNC,),
    ),
    Mutation(
        "follow with what the group never acknowledged",
        "broker/broker_group.py",
        "            if common < raw.end:\n",
        "            if False:\n",
        (_GROUP,),
    ),
    Mutation(
        "follow without the master's history",
        "broker/broker_group.py",
        "        if theirs != self._history:\n            await self._save(theirs)\n",
        "",
        (_GROUP, _RUNS),
    ),
    Mutation(
        "serve as master before the epoch is noted",
        "broker/broker_group.py",
        "        if role.epoch > self._history.last:\n",
        "        if False:\n",
        (_GROUP,),
    ),
    Mutation(
        "register a former master",
        "broker/broker_group.py",
        "return not self._serves_epoch or self.member.is_master",
        "return True",
        (_GROUP,),
    ),
    Mutation(
        "let logs be equal up to the end of the shorter one, whatever the epochs",
        "ha/epochs.py",
        "return min(end, self.epochs[following].start) if following < len(self.epochs) else end",
        "return end",
        (_EPOCHS,),
    ),
    Mutation(
        "begin an epoch that was there already",
        "ha/epochs.py",
        "        if new.number <= self.last:\n",
        "        if False:\n",
        (_EPOCHS,),
    ),
    Mutation(
        "take an epoch of another group for one of this",
        "ha/epochs.py",
        "        others = set(other.epochs)\n",
        "        others = {attrs.evolve(each, lease=own.lease) for each in other.epochs for own in self.epochs}\n",
        (_EPOCHS,),
    ),
    Mutation(
        "leave a cut log's end in the last segment",
        "store/truncation.py",
        "        active.clear_from(end - segments.first_offset - last * segments.segment_bytes)\n",
        "",
        (_TRUNCATION,),
    ),
    Mutation(
        "cut a log below what the checkpoint says was synced",
        "store/truncation.py",
        "            kept.forget_log_above(end)\n",
        "",
        (_TRUNCATION,),
    ),
    Mutation(
        "go on with the numbers of messages that were cut off",
        "store/truncation.py",
        "            if disk.exists(path):\n                disk.remove(path)\n",
        "            pass\n",
        (_TRUNCATION,),
    ),
    Mutation(
        "keep offsets of messages that were cut off",
        "broker/broker_group.py",
        "            offsets.lower_to(store.max_offset)\n",
        "            pass\n",
        (_GROUP,),
    ),
    Mutation(
        "note deliveries of delayed messages that replicas may lack",
        "broker/broker_group.py",
        "            store.replicated = lambda: in_sync.confirmed\n",
        "            pass\n",
        (_GROUP,),
    ),
    Mutation(
        "start again in another role though the broker was told to stop",
        "broker/broker_service.py",
        "        if self._is_stopped:\n            return\n",
        "",
        (_GROUP,),
    ),
    Mutation(
        "give a new replica of a group the last segment only",
        "ha/link.py",
        "last = log_min if self.greeting is not None else log_end - log_end % self._segment_bytes",
        "last = log_end - log_end % self._segment_bytes",
        (_GROUP, _LINK),
    ),
    Mutation(
        "measure for how long a link was silent by the time of day",
        "ha/master.py",
        "        self._steady = steady or self._clock.seconds\n",
        "        self._steady = self._clock.seconds\n",
        (_GROUP,),
    ),
    Mutation(
        "let links of strangers keep a replica out",
        "ha/master.py",
        "(link.link.sent is None or (self.group and link.link.greeting is None))",
        "link.link.sent is None",
        (_MASTER,),
    ),
]
