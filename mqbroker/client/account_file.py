"""The file of a client's account, as Java's mqadmin has one in `conf/tools.yml`. Errors never repeat what it holds."""

from __future__ import annotations

import yaml

from mqbroker.errors import MQError
from mqbroker.wire.signature import Credentials

RIGHT = "right are two lines: `accessKey: NAME` and `secretKey: SECRET`"

_BYTES_MAX = 64 * 1024


class BadAccount(MQError):
    """An account that cannot be used; the text names where it comes from, and no secret."""


def read_account(path: str) -> Credentials:
    """The account in the YAML file at `path`: accessKey, secretKey, and securityToken where there is one.

    Raises BadAccount.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_BYTES_MAX)
        found = yaml.safe_load(text)
    except OSError as error:
        raise BadAccount(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        # The library's words quote what it read.
        raise BadAccount(f"{path} cannot be read as YAML; {RIGHT}") from None
    if not isinstance(found, dict):
        raise BadAccount(f"{path} holds no account; {RIGHT}")
    access_key, secret_key = found.get("accessKey"), found.get("secretKey")
    for key, value in (("accessKey", access_key), ("secretKey", secret_key)):
        if value is None or isinstance(value, (dict, list, bool)) or not str(value).strip():
            raise BadAccount(f"{path} has no {key}; {RIGHT}")
    token = found.get("securityToken")
    return Credentials(str(access_key).strip(), str(secret_key).strip(), None if token is None else str(token).strip())
