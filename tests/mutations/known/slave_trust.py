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
        "take one's own proof of the secret for the other end's",
        "ha/link_secret.py",
        "self.proof(who, *parts))",
        'self.proof(b"master", *parts)) or hmac.compare_digest(given, self.proof(b"slave", *parts))',
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
        "go on in the middle of a record with a slave that has it from elsewhere",
        "ha/slave_check.py",
        "(ending is not None and ending.is_at_end)",
        "ending is not None",
        (_CHECK,),
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
