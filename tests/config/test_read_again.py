"""Files that are read again when they have changed: certificates, accounts, access control. A read that fails once, for
whatever reason, is made again at the next check, and has one line."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from mqbroker.access import acl_files
from mqbroker.access.acl_files import AclFiles, acl_places
from mqbroker.client import identity
from mqbroker.client.identity import CredentialsFile, read_account
from mqbroker.client.tls import ClientTls, Contexts, ssl_context
from mqbroker.config import TlsSettings
from mqbroker.config.system import StampedFiles
from mqbroker.errors import BadTls
from mqbroker.ha.etcd_http import EtcdAccess, _Policy
from mqbroker.remoting import tls
from mqbroker.remoting.tls import ServerTls, tls_connector
from mqbroker.store.worker import InlineWorker
from tests.access.acl import write_acl
from tests.remoting.certificates import Authority
from tests.remoting.logs import Logged, log_kept


@attrs.frozen
class User:
    """Something that follows files. `change` changes them; `check` checks them once; `used` is what is in use."""

    change: Callable[[int], object]
    check: Callable[[], object]
    used: Callable[[], Any]


@pytest.fixture
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


def server(folder: Path) -> User:
    cert, key = (authority := Authority(folder)).issue("server")
    server = ServerTls(TlsSettings(test_mode=False, server_cert_path=cert, server_key_path=key), Clock())
    return User(lambda _: authority.issue("server"), lambda: server.look(InlineWorker().run), lambda: server._creator)


def broker_client(folder: Path) -> User:
    cert, key = (authority := Authority(folder)).issue("client")
    connect = tls_connector(None, TlsSettings(test_mode=False, client_cert_path=cert, client_key_path=key))
    used = list[object]()

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tls, "wrapClientTLS", lambda creator, _: used.append(creator))
            patch.setattr(tls, "HostnameEndpoint", lambda *_, timeout: None)
            connect("127.0.0.1", 1)

    check()
    return User(lambda _: authority.issue("client"), check, lambda: used[-1])


def etcd(folder: Path) -> User:
    cert, key = (authority := Authority(folder)).issue("client")
    policy = _Policy(
        EtcdAccess(endpoints=("https://127.0.0.1:2379",), ca_file=authority.path, cert_file=cert, key_file=key)
    )
    return User(
        lambda _: authority.issue("client"),
        lambda: policy.creatorForNetloc(b"localhost", 2379),
        lambda: policy._files.content,
    )


def account(folder: Path) -> User:
    path = folder / "account.yml"
    write_acl(folder, "accessKey: one\nsecretKey: s\n", "account.yml")
    file = CredentialsFile(path)
    return User(
        lambda number: write_acl(folder, f"accessKey: one{number}\nsecretKey: s\n", "account.yml"),
        lambda: file.sign({}, b""),
        lambda: file._account,
    )


def access(folder: Path) -> User:
    def change(number: int) -> None:
        write_acl(folder, f"accounts:\n- {{accessKey: alice-key-{number}, secretKey: secret-key}}\n")

    change(0)
    files = AclFiles(acl_places(str(folder), "conf/plain_acl.yml"), InlineWorker(), Clock())
    used = [files.content.accounts()]
    files.on_change.append(used.append)
    return User(change, files.look, lambda: used[-1])


def failing_to_open(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    opened = open

    def fail(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).startswith(str(folder)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, *rest, **more)

    monkeypatch.setattr(builtins, "open", fail)


@pytest.mark.parametrize("make", [server, broker_client, etcd, account, access])
def test_a_read_that_fails_is_made_again_at_the_next_check_and_has_one_line(
    make: Callable[[Path], User],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: Logged,
    caplog: pytest.LogCaptureFixture,
) -> None:
    user = make(tmp_path)

    def failures() -> int:
        texts = [*logged.lines, *(record.getMessage() for record in caplog.records)]
        return len([text for text in texts if "Too many open files" in text])

    for number in (1, 2):  # the second time is as the first
        former = user.used()
        user.change(number)
        with monkeypatch.context() as patch:
            failing_to_open(patch, tmp_path)
            for _ in range(3):
                user.check()
        assert user.used() == former
        assert failures() == number
        user.check()
        assert user.used() != former
        user.check()
    assert failures() == 2


def test_a_client_of_brokers_connects_with_the_new_files_as_soon_as_they_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = (authority := Authority(tmp_path)).issue("client")
    contexts = Contexts(ClientTls(cert_file=cert, key_file=key, insecure=True), ssl_context)
    former = contexts.current()
    authority.issue("client")
    with monkeypatch.context() as patch:
        failing_to_open(patch, tmp_path)
        for _ in range(2):
            with pytest.raises(BadTls, match="Too many open files"):
                contexts.current()
    assert contexts.current() is not former


def test_folders_of_accounts_that_cannot_be_listed_have_the_accounts_that_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    write_acl(tmp_path)
    write_acl(tmp_path, "accounts:\n- {accessKey: added-key, secretKey: secret-key}\n", "conf/acl/a.yml")
    files = AclFiles(acl_places(str(tmp_path), "conf/plain_acl.yml"), InlineWorker(), Clock())
    former = files.content

    def fail(path: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        for _ in range(3):
            files.look()
    assert files.content is former
    assert len(logged.failures) == 1
    write_acl(tmp_path, "accounts:\n- {accessKey: other-key, secretKey: secret-key}\n", "conf/acl/a.yml")
    files.look()
    assert files.content.file_of("other-key") is not None


def test_accounts_that_a_listener_could_not_take_are_given_to_it_again(tmp_path: Path, logged: Logged) -> None:
    user = access(tmp_path)
    files: Any = user.check.__self__  # type: ignore[attr-defined]
    failing = [MemoryError()]

    def fail_once(_: object) -> None:
        if failing:
            raise failing.pop()

    files.on_change.insert(0, fail_once)
    former = user.used()
    user.change(1)
    user.check()
    assert user.used() is former
    user.check()
    assert user.used() != former


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    following = list[str]()

    def read() -> str:
        text = path.read_text()
        if following:
            path.write_text(following.pop())
        return text

    files = StampedFiles(read, str(path), None, "")
    assert files.content == "one"
    assert files.read_if_changed() is None
    path.write_text("second")
    following.append("the third")
    assert files.read_if_changed() == "second"
    assert files.read_if_changed() == files.content == "the third"
    assert files.read_if_changed() is None
    path.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            files.read_if_changed()
    assert files.content == "the third"
    path.write_text("the 4th")
    assert files.read_if_changed() == files.content == "the 4th"


def test_a_failure_is_new_for_another_reason_and_for_another_content(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    files = StampedFiles(path.read_text, str(path))
    logged = list[str]()

    def note(*reasons: str) -> list[str]:
        logged.clear()
        for why in reasons:
            files.note_failure(OSError(why), logged.append)
        return logged

    assert note("a", "a", "b", "b", "a") == ["a", "b", "a"]
    path.write_text("12")
    assert note("a", "a") == ["a"]
    assert files.read_or_keep(logged.append) == "12"
    assert note("a", "", "") == ["a", "OSError"]


def test_an_account_that_is_invalid_is_read_once_and_not_for_each_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = account(tmp_path)
    reads = list[str]()

    def note(path: str) -> Any:
        reads.append(path)
        return read_account(path)

    monkeypatch.setattr(identity, "read_account", note)
    for number in (1, 2):  # the second time is as the first
        former = user.used()
        write_acl(tmp_path, "accessKey: one\nsecretKey:" + " " * number, "account.yml")
        for _ in range(3):
            user.check()
        assert (len(reads), user.used()) == (1, former)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        user.change(number)
        user.check()
        assert (len(reads), user.used().access_key) == (2, f"one{number}")
        reads.clear()
        caplog.clear()


def test_of_accounts_only_files_that_changed_or_could_not_be_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of accounts take a second, during which the others wait."""
    user = access(tmp_path)
    files: Any = user.check.__self__  # type: ignore[attr-defined]
    reads = list[str]()

    def note(path: str) -> Any:
        reads.append(os.path.basename(path))
        return read(path)

    read = acl_files._read
    monkeypatch.setattr(acl_files, "_read", note)
    for number in (1, 2):  # the second time is as the first
        write_acl(tmp_path, "accounts: [" + " " * number, "conf/acl/a.yml")
        for _ in range(3):
            files.look()
        assert reads == ["a.yml"]
        assert [os.path.basename(path) for path in files.content.faults] == ["a.yml"]
        key = f"added-key-{number}"
        write_acl(tmp_path, f"accounts:\n- {{accessKey: {key}, secretKey: secret-key}}\n", "conf/acl/a.yml")
        files.look()
        assert reads == ["a.yml"] * 2
        assert not files.content.faults
        assert set(files.content.accounts().by_key) == {f"alice-key-{number - 1}", key}
        user.change(number)
        files.look()
        assert reads == ["a.yml", "a.yml", "plain_acl.yml"]
        assert set(files.content.accounts().by_key) == {f"alice-key-{number}", key}
        reads.clear()
