"""Mistakes in whom a master counts as a slave."""

from tests.mutations.mutation import Mutation

_SECRET = "tests/ha/test_link_secret.py"
_CHECK = "tests/ha/test_slave_check.py"
_TRUST = "tests/broker/service/test_slave_trust.py"

MISTAKES = [
    Mutation(
        "take a recorded proof of the secret for a new one",
        "ha/link_secret.py",
        'b"\\0".join((b"mqbroker link", who, self._names, *parts))',
        'b"\\0".join((b"mqbroker link", who, self._names))',
        (_SECRET,),
    ),
    Mutation(
        "let links pass that do not prove the secret",
        "ha/master.py",
        "is_needed=secret is not None and not factory.trust.is_exempt(self.host)",
        "is_needed=False",
        (_TRUST,),
    ),
    Mutation(
        "begin to a Java master with an offset that confirms messages",
        "ha/link_secret.py",
        "            found[at] |= 0x80\n",
        "            found[at] &= 0x7F\n",
        (_SECRET,),
    ),
    Mutation(
        "count a slave whose log was not compared",
        "ha/master.py",
        "for each in self._reported() if each.counts)",
        "for each in self._reported())",
        (_TRUST,),
    ),
    Mutation(
        "send the log to a slave that is being compared",
        "ha/master.py",
        "self._is_closed or self._is_held)",
        "self._is_closed)",
        (_TRUST,),
    ),
    Mutation(
        "count a slave that ends within a record before it has the rest of it",
        "ha/slave_check.py",
        "            if not ending.is_at_end:\n",
        "            if False:\n",
        (_CHECK,),
    ),
    Mutation(
        "complete another record that a slave has where this one is",
        "ha/slave_check.py",
        "            if found != await self._read(at, size):\n",
        "            if False:\n",
        (_CHECK,),
    ),
    Mutation(
        "let a replica that its master has outlived wait for good",
        "broker/broker_group.py",
        "            raise FallenBehind.of(raw.end, begin)\n",
        "            pass\n",
        ("tests/broker/service/test_outlived.py",),
    ),
    Mutation(
        "copy the last segment only into a store that was put aside",
        "broker/broker_service.py",
        "            if not raw.end and was_put_aside(",
        "            if raw.end and was_put_aside(",
        ("tests/broker/service/test_outlived.py",),
    ),
    Mutation(
        "delete the newest store that was put aside because it differs",
        "store/stores_aside.py",
        "if (is_old and not is_newest) if why",
        "if is_old if why",
        ("tests/store/test_stores_aside.py",),
    ),
    Mutation(
        "ask another slave on the same machine",
        "ha/slave_check.py",
        "if not offset <= end <= sent():",
        "if False:",
        (_CHECK,),
    ),
    Mutation(
        "believe that a slave which knows the secret has the same log",
        "ha/slave_check.py",
        "if last != Last(ending.offset, sha256(ending.record).digest()):",
        "if False:",
        (_CHECK,),
    ),
]
