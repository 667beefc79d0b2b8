"""Java clients with accounts, over TLS, against a broker of each kind that controls access: the same outcome."""

import subprocess

import pytest

from tests.interop.fleet import Fleet, Kind
from tests.interop.java import SMALL

ACCOUNTS = """\
accounts:
- accessKey: alice-key
  secretKey: secret-of-alice
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - T=PUB|SUB
  groupPerms:
  - CG=SUB
- accessKey: the-admin
  secretKey: secret-of-admin
  admin: true
"""

OUTCOME = [
    "create admin done",
    "create admin done",
    "create alice AclException: Need admin permission for request code=17",
    "send alice SEND_OK",
    "send alice-batch SEND_OK",
    "send alice-elsewhere AclException: No default permission for topic:Other",
    "send wrong-secret AclException: Check signature failed for accessKey=alice-key",
    "send unknown AclException: No acl config for nobody-key",
    "send unsigned AclException: No accessKey is configured",
    "consume alice true",
    "query wrong-secret nothing",
    "query alice-elsewhere nothing",
]
#: Java's broker leaves a field out of the signature that its clients sign.
QUERY: dict[Kind, str] = {"ours": "query alice key-of-alice key-of-alice", "java": "query alice nothing"}


@pytest.mark.parametrize("kind", ["java", "ours"])
def test_accounts_over_tls(fleet: Fleet, kind: Kind) -> None:
    namesrv = fleet.namesrv(kind)
    broker = fleet.broker(kind, namesrv, home=fleet.home(ACCOUNTS), aclEnable="true", autoCreateTopicEnable="false")
    command = fleet.java.command(
        fleet.scratch, "mqbroker.interop.Access", namesrv.addr, broker.addr, jvm=(*SMALL, "-Dtls.enable=true")
    )
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    said = [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("create", "send", "consume", "query")]
    assert QUERY[kind] in said, done.stdout + done.stderr
    said.remove(QUERY[kind])
    assert said == OUTCOME, done.stdout + done.stderr
