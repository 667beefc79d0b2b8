"""Options of all commands that connect to servers: addresses, account and TLS.

A secret is never an argument, which others see in the list of processes: it is in a file or in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import attrs
import click

from mqbroker.cli.names import name_server_option

if TYPE_CHECKING:
    from mqbroker.client import ClientTls, Credentials

ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN = "MQ_ACCESS_KEY", "MQ_SECRET_KEY", "MQ_SECURITY_TOKEN"
TLS_KEY_PASSWORD = "MQ_TLS_KEY_PASSWORD"

_FILE = click.Path(exists=True, dir_okay=False)


@attrs.frozen
class Servers:
    """Connection options of a client."""

    name_servers: str
    credentials: Credentials | None
    tls: ClientTls | None


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets their values as `servers`."""

    @name_server_option
    @click.option(
        "--account-file",
        type=_FILE,
        envvar="MQ_ACCOUNT_FILE",
        show_envvar=True,
        help="A YAML file with accessKey and secretKey, for brokers that require an account. Without it, the"
        " environment variables MQ_ACCESS_KEY and MQ_SECRET_KEY are used.",
    )
    @click.option(
        "--tls",
        is_flag=True,
        envvar="MQ_TLS",
        show_envvar=True,
        help="Encrypt connections and verify servers' certificates; implied by the other TLS options.",
    )
    @click.option(
        "--tls-ca",
        "ca_file",
        type=_FILE,
        envvar="MQ_TLS_CA",
        show_envvar=True,
        help="CA certificates to verify servers with (PEM), instead of the system's.",
    )
    @click.option(
        "--tls-cert",
        "cert_file",
        type=_FILE,
        envvar="MQ_TLS_CERT",
        show_envvar=True,
        help="The client certificate (PEM), for servers that require one.",
    )
    @click.option(
        "--tls-key",
        "key_file",
        type=_FILE,
        envvar="MQ_TLS_KEY",
        show_envvar=True,
        help="The certificate's private key, if it is not in the same file. Its password is taken from the environment"
        " variable MQ_TLS_KEY_PASSWORD.",
    )
    @click.option(
        "--tls-server-name",
        "server_name",
        metavar="NAME",
        envvar="MQ_TLS_SERVER_NAME",
        show_envvar=True,
        help="The name that servers' certificates must be for, instead of their addresses.",
    )
    @click.option("--tls-insecure", "insecure", is_flag=True, help="Encrypt without verifying servers. For tests only.")
    @wraps(command)
    def with_servers(namesrv: str, account_file: str | None, tls: bool, **rest: Any) -> Any:
        given = {name: rest.pop(name) for name in ("ca_file", "cert_file", "key_file", "server_name", "insecure")}
        credentials = account(account_file, os.environ)
        encrypted = encryption(given, os.environ) if tls or any(given.values()) else None
        return command(servers=Servers(namesrv, credentials, encrypted), **rest)

    return with_servers


def account(path: str | None, environment: Mapping[str, str]) -> Credentials | None:
    """The account in the file at `path`, else that of the environment. Raises BadParameter or UsageError."""
    from mqbroker.client import Credentials

    if path is not None:
        return _account_in(path)
    access_key, secret_key = environment.get(ACCESS_KEY), environment.get(SECRET_KEY)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        here, missing = (ACCESS_KEY, SECRET_KEY) if access_key else (SECRET_KEY, ACCESS_KEY)
        raise click.UsageError(f"{here} is set in the environment and {missing} is not: an account needs both")
    return Credentials(access_key, secret_key, environment.get(SECURITY_TOKEN) or None)


def _account_in(path: str) -> Credentials:
    from mqbroker.client.identity import BadAccount, read_account
    from mqbroker.config.system import others_can_read

    if others_can_read(path):
        click.echo(f"mq: others can read the secret in {path}: `chmod 600 {path}` keeps it yours", err=True)
    try:
        return read_account(path)
    except BadAccount as error:
        raise click.BadParameter(str(error), param_hint="'--account-file'") from None


def encryption(given: Mapping[str, Any], environment: Mapping[str, str]) -> ClientTls:
    """The TLS settings. Raises UsageError if options contradict each other."""
    from mqbroker.client import ClientTls

    if given["insecure"] and (given["ca_file"] or given["server_name"]):
        raise click.UsageError(
            "--tls-insecure verifies nothing: leave out either it, or --tls-ca and --tls-server-name"
        )
    if given["key_file"] and not given["cert_file"]:
        raise click.UsageError("--tls-key needs the certificate: give it with --tls-cert")
    return ClientTls(**given, key_password=environment.get(TLS_KEY_PASSWORD) or None)
