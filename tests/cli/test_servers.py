"""Accounts and encryption on the command line: options, files and the environment, before anything is connected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mqbroker.cli.failures import failure_of
from mqbroker.cli.servers import Servers, account, encryption, server_options
from mqbroker.client import ClientTls, Credentials
from mqbroker.client.errors import SendFailed, TlsFailed
from mqbroker.errors import MQError, Refused, Unreachable

SECRET = "a-long-random-text"
REFUSED = Refused(1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured")


def run(*args: str, env: dict[str, str] | None = None) -> Any:
    """What a command of ours gets, or the text of its refusal."""
    got = []

    @click.command()
    @server_options
    def command(servers: Servers) -> None:
        got.append(servers)

    result = CliRunner().invoke(command, list(args), env=env or {})
    return got[0] if got else (result.exit_code, result.output)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write_file(text: str, name: str = "account.yml", mode: int = 0o600) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write_file


def test_without_options_there_is_neither() -> None:
    servers = run()
    assert (servers.name_servers, servers.credentials, servers.tls) == ("127.0.0.1:9876", None, None)


# --- accounts


@pytest.mark.parametrize("more", ["", "securityToken: t\n", "unknown: 1\n"])
def test_an_account_from_a_file(write: Callable[..., str], more: str) -> None:
    path = write(f"accessKey: alice\nsecretKey: {SECRET}\n{more}")
    me = Credentials("alice", SECRET, "t" if "Token" in more else None)
    assert run("--account-file", path).credentials == me
    assert run(env={"MQ_ACCOUNT_FILE": path, "MQ_ACCESS_KEY": "bob", "MQ_SECRET_KEY": "x"}).credentials == me


def test_keys_that_look_like_numbers_are_text(write: Callable[..., str]) -> None:
    assert run("--account-file", write("accessKey: 7\nsecretKey: 12345678\n")).credentials == Credentials(
        "7", "12345678"
    )


def test_an_account_from_the_environment() -> None:
    env = {"MQ_ACCESS_KEY": "alice", "MQ_SECRET_KEY": SECRET}
    assert run(env=env).credentials == Credentials("alice", SECRET)
    assert run(env=env | {"MQ_SECURITY_TOKEN": "t"}).credentials == Credentials("alice", SECRET, "t")


@pytest.mark.parametrize(("given", "missing"), [("ACCESS", "SECRET"), ("SECRET", "ACCESS")])
def test_half_an_account_is_told(given: str, missing: str) -> None:
    code, output = run(env={f"MQ_{given}_KEY": SECRET})
    assert code == 2
    assert f"MQ_{given}_KEY is set in the environment and MQ_{missing}_KEY is not" in output
    assert SECRET not in output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no account"),
        ("- a\n", "holds no account"),
        (SECRET, "holds no account"),
        ("accessKey: alice\n", "has no secretKey"),
        (f"secretKey: {SECRET}\n", "has no accessKey"),
        (f"accessKey: ''\nsecretKey: {SECRET}\n", "has no accessKey"),
        (f"accessKey: alice\nsecretKey: [{SECRET}]\n", "has no secretKey"),
        (f"accessKey: alice\nsecretKey: '{SECRET}\n", "cannot be read as YAML"),
        ("secretKey: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
        ("[" * 30000, "cannot be read as YAML"),
    ],
)
def test_a_file_without_an_account_says_what_it_lacks_and_no_secret(
    write: Callable[..., str], text: str, why: str
) -> None:
    path = write(text)
    code, output = run("--account-file", path)
    assert code == 2
    assert why in " ".join(output.split())
    assert "accessKey: NAME" in output
    assert SECRET not in output


def test_a_file_that_others_can_read_is_told_of(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    path = write(f"accessKey: alice\nsecretKey: {SECRET}\n", mode=0o644)
    assert account(path, {}) == Credentials("alice", SECRET)
    assert capsys.readouterr().err == f"mq: others can read the secret in {path}: `chmod 600 {path}` keeps it yours\n"


def test_a_missing_file_is_told() -> None:
    code, output = run("--account-file", "/not/there")
    assert code == 2
    assert "'/not/there' does not exist" in output


def test_no_option_takes_a_secret() -> None:
    @click.command()
    @server_options
    def command(servers: Servers) -> None:
        """Nothing."""

    names = [name for option in command.params for name in option.opts]
    assert [name for name in names if "secret" in name or "password" in name] == []


# --- encryption


def test_encryption_by_options_and_environment(write: Callable[..., str]) -> None:
    ca, cert, key = (write("x", name) for name in ("ca", "cert", "key"))
    assert run("--tls").tls == run(env={"MQ_TLS": "1"}).tls == ClientTls()
    assert run("--tls-insecure").tls == ClientTls(insecure=True)
    whole = ClientTls(ca_file=ca, cert_file=cert, key_file=key, server_name="mq")
    assert run("--tls-ca", ca, "--tls-cert", cert, "--tls-key", key, "--tls-server-name", "mq").tls == whole
    env = {"MQ_TLS_CA": ca, "MQ_TLS_CERT": cert, "MQ_TLS_KEY": key, "MQ_TLS_SERVER_NAME": "mq"}
    assert run(env=env).tls == whole
    assert run(env=env | {"MQ_TLS_KEY_PASSWORD": SECRET}).tls.key_password == SECRET
    assert SECRET not in repr(run(env=env | {"MQ_TLS_KEY_PASSWORD": SECRET}).tls)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--tls-insecure", "--tls-ca", "FILE"), "--tls-insecure verifies nothing"),
        (("--tls-insecure", "--tls-server-name", "x"), "--tls-insecure verifies nothing"),
        (("--tls-key", "FILE"), "give it with --tls-cert"),
        (("--tls-ca", "/not/there"), "'/not/there' does not exist"),
    ],
)
def test_wrong_options_are_told(write: Callable[..., str], args: tuple[str, ...], says: str) -> None:
    path = write("x")
    code, output = run(*(path if arg == "FILE" else arg for arg in args))
    assert code == 2
    assert says in output


def test_what_the_options_refuse_the_value_refuses_too() -> None:
    given = {"ca_file": None, "cert_file": None, "key_file": None, "server_name": None, "insecure": False}
    assert encryption(given, {}) == ClientTls()


# --- errors


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (REFUSED, 1, "No accessKey is configured. The account is that of --account-file, or of MQ_ACCESS_KEY"),
        (SendFailed("t", [("b", "h:1", REFUSED)]), 1, "The account is that of --account-file"),
        (TlsFailed("h:1", "it does not speak TLS", "Leave TLS out"), 1, "to h:1: it does not speak TLS. Leave TLS out"),
        (SendFailed("t", [("b", "h:1", TlsFailed("h:1", "why", "what"))]), 1, "to h:1: why. what"),
        (SendFailed("t", [("b", "h:1", Unreachable("gone"))]), 3, "gone"),
        (Refused(16, "no permission"), 1, "the broker refuses: CODE: 16  DESC: no permission"),
    ],
)
def test_refusals_say_what_to_do(error: MQError, code: int, says: str) -> None:
    failure = failure_of(error)
    assert failure.exit_code == code
    assert says in failure.message
    assert ("--account-file" in failure.message) == ("account-file" in says)
