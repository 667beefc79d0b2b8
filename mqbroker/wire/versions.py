"""Which client understands which request of the broker, by the `version` field of its commands.

Source: MQVersion of 4.9.7, whose ordinals the field holds.
"""

from __future__ import annotations

from typing import Final

#: The first version that takes RESET_CONSUMER_CLIENT_OFFSET and GET_CONSUMER_STATUS_FROM_CLIENT.
V3_0_7_SNAPSHOT: Final = 28
#: The first version that takes GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY.
V3_1_8_SNAPSHOT: Final = 62

_3_0_0 = (
    "SNAPSHOT ALPHA1 BETA1 BETA2 BETA3 BETA4 BETA5 BETA6_SNAPSHOT BETA6 BETA7_SNAPSHOT BETA7 BETA8_SNAPSHOT BETA8 "
    "BETA9_SNAPSHOT BETA9 FINAL"
)
_LATER = [f"V3_0_{n}" for n in range(1, 16)] + [f"V3_1_{n}" for n in range(9)]
_NAMES = [f"V3_0_0_{name}" for name in _3_0_0.split()] + [
    name for later in _LATER for name in (f"{later}_SNAPSHOT", later)
]


def old_version_name(version: int) -> str:
    """What Java calls a version before 3.1.8; the number where it is none of those."""
    return _NAMES[version] if 0 <= version < len(_NAMES) else str(version)
