"""ACL files for tests, with made-up keys, and requests signed by them."""

import os
from pathlib import Path
from typing import Any

from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import Credentials

ADMIN = Credentials("the-admin", "secret-of-admin")
ALICE = Credentials("alice-key", "secret-of-alice")
STRANGER = Credentials("stranger", "secret-of-nobody")

PLAIN = """\
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: alice-key
  secretKey: secret-of-alice
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - T=PUB|SUB
  - OnlySub=SUB
  - OnlyPub = PUB
  - Closed=DENY
  groupPerms:
  - CG=SUB
  - Shut=DENY
  - PubOnly=PUB

- accessKey: the-admin
  secretKey: secret-of-admin
  whiteRemoteAddress: 172.16.0.1
  # everything
  admin: true
"""


def write_acl(home: Path, text: str = PLAIN, name: str = "conf/plain_acl.yml") -> Path:
    """Make `text` an ACL file below the directory `home`; gives its path."""
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    path.write_text(text)
    if before is not None and path.stat().st_mtime_ns == before.st_mtime_ns:
        # As after a while: the clock of a file system moves in steps of some milliseconds.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 5_000_000))
    return path


def signed(
    credentials: Credentials, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **more: Any
) -> RemotingCommand:
    command = RemotingCommand(code, dict(fields or {}), body, **more)
    credentials.sign(command.ext_fields, body)
    return command
