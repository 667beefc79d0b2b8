"""The ACL files of a broker: read at the start, polled for changes, and written when accounts are changed.

conf/plain_acl.yml and every .yml or .yaml below conf/acl are merged; of an account in several files the first counts.
Source: PlainPermissionManager and AclFileWatchService of 4.9.7. After the start all reads and writes run on the worker,
one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mqbroker.access.accounts import Account, Accounts
from mqbroker.access.acl_yaml import (
    AccountChange,
    AclFile,
    BadAcl,
    Raw,
    dump_acl,
    parse_acl,
    with_account,
    with_version,
    with_white,
    without_account,
)
from mqbroker.access.addresses import AddressPattern
from mqbroker.config.system import FileStamp, file_stamp, others_can_read
from mqbroker.store.os_disk import replace_file
from mqbroker.store.worker import IWorker

log = Logger()

#: Java's interval.
WATCH_SECONDS = 5.0

#: Identifies a file's version: modified time in ns, size, inode.
_Stamps = Mapping[str, FileStamp]


@attrs.frozen
class AclPlaces:
    """Paths of the files: `plain_file`, and all below `folder`."""

    plain_file: str
    folder: str

    def stamps(self) -> _Stamps:
        """The existing files, in the order of precedence. Raises OSError: what cannot be listed is not gone."""
        paths = []
        for folder, _, names in os.walk(self.folder, onerror=_unless_missing):
            paths += [os.path.join(folder, name) for name in names if name.endswith((".yml", ".yaml"))]
        paths.sort()
        if self.plain_file not in paths:
            paths.append(self.plain_file)
        return {path: stamp for path in paths if (stamp := file_stamp(path)) is not None}


@attrs.frozen
class AclContent:
    """Content of the files, by path; errors of those that could not be read or are invalid, and which of them could not
    be read."""

    stamps: _Stamps
    files: Mapping[str, AclFile]
    faults: Mapping[str, str] = attrs.field(factory=dict)
    unread: frozenset[str] = frozenset()

    def accounts(self) -> Accounts:
        """The merged accounts."""
        by_key: dict[str, Account] = {}
        white: list[AddressPattern] = []
        for path, file in self.files.items():
            white += file.white
            for account in file.accounts:
                if account.access_key in by_key:
                    log.warn("{path}: account {key} is already defined", path=path, key=account.access_key)
                by_key.setdefault(account.access_key, account)
        return Accounts(by_key, tuple(white))

    def file_of(self, access_key: str) -> str | None:
        """The path of the file that has the account."""
        for path, file in self.files.items():
            if any(account.access_key == access_key for account in file.accounts):
                return path
        return None


class AclFiles:
    """The files and their content. Each of `on_change` is called with the accounts whenever they change."""

    def __init__(self, places: AclPlaces, worker: IWorker, clock: IReactorTime) -> None:
        """Read all files. Raises BadAcl with the path, and OSError."""
        self.places = places
        self.on_change: list[Callable[[Accounts], None]] = []
        self._worker = worker
        self._clock = clock
        self._turn = DeferredLock()
        self._why_unchecked = ""
        self.content = read_at_start(places)
        _say_what_was_found(self.content, places.plain_file)

    def look(self) -> Deferred[None]:
        """Read changed files again. Fires when that is done; never fails."""
        return self._turn.run(self._look).addCallbacks(self._looked, self._not_looked)

    def _looked(self, _: None) -> None:
        self._why_unchecked = ""

    def _not_looked(self, failure: Failure) -> None:
        why = failure.getErrorMessage() or type(failure.value).__name__
        if why != self._why_unchecked:
            self._why_unchecked = why
            log.failure("the ACL files could not be checked (trying again)", failure)

    def _look(self) -> Deferred[None]:
        former = self.content

        def read() -> AclContent | None:
            stamps = self.places.stamps()
            is_read = stamps == former.stamps and not former.unread  # else it is tried again
            return None if is_read else read_acl_files(self.places, former)

        return self._worker.run(read).addCallback(self._apply)

    def _apply(self, content: AclContent | None) -> None:
        if content is None or content == self.content:
            return
        for why in set(content.faults.values()) - set(self.content.faults.values()):
            log.error("{why}; its previous content stays in effect", why=why)
        log.info("accounts were reloaded from {n} files", n=len(content.files))
        accounts = content.accounts()
        for callback in self.on_change:
            callback(accounts)
        self.content = content  # last: if a callback fails, all is tried again

    # --- changes

    def put_account(self, change: AccountChange) -> Deferred[None]:
        """Create or change an account. Fires when it is on disk and in effect; fails with BadAcl or OSError."""

        def edit() -> Deferred[None]:
            change.check()
            path = self.content.file_of(change.access_key) or self.places.plain_file
            return self._write(path, lambda raw: with_account(raw, change))

        return self._turn.run(edit)

    def delete_account(self, access_key: str) -> Deferred[None]:
        """Delete an account; fails with BadAcl if it does not exist, and as `put_account` does."""

        def edit() -> Deferred[None]:
            path = self.content.file_of(access_key)
            if path is None:
                raise BadAcl(f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed.")
            return self._write(path, lambda raw: without_account(raw, access_key))

        return self._turn.run(edit)

    def put_white(self, addresses: list[str], path: str | None) -> Deferred[None]:
        """Replace a file's global white list; that of plain_acl.yml without `path`.

        Fails with BadAcl, also if `path` is not one of the files that were read, and with OSError.
        """

        def edit() -> Deferred[None]:
            wanted = os.path.abspath(path) if path else self.places.plain_file
            if wanted not in self.content.files and wanted != self.places.plain_file:
                raise BadAcl(f"The globalWhiteAddresses[{','.join(addresses)}] has been updated failed.")
            return self._write(wanted, lambda raw: with_white(raw, addresses))

        return self._turn.run(edit)

    def _write(self, path: str, edit: Callable[[Raw], Raw]) -> Deferred[None]:
        now_ms = int(self._clock.seconds() * 1000)
        former = self.content

        def work() -> AclContent:
            stamp = file_stamp(path)
            file = AclFile() if stamp is None else _read(path)
            text = dump_acl(with_version(edit(file.raw), file.version.next(now_ms)))
            parse_acl(text)  # a file that could not be read again is not written
            replace_file(path, text.encode())
            return read_acl_files(self.places, former)

        return self._worker.run(work).addCallback(self._apply)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def read_acl_files(places: AclPlaces, former: AclContent | None) -> AclContent:
    """Read the files that are not in `former` as they are: thousands of accounts take a second. One that cannot be read
    is a fault, and keeps its content of `former`, if any."""
    stamps = places.stamps()
    known = former or AclContent({}, {})
    files: dict[str, AclFile] = {}
    faults: dict[str, str] = {}
    unread = set[str]()
    for path, stamp in stamps.items():
        if path in known.files:
            files[path] = known.files[path]
        if known.stamps.get(path) == stamp and path not in known.unread:
            if path in known.faults:
                faults[path] = known.faults[path]
            continue
        try:
            files[path] = _read(path)
        except BadAcl as error:
            faults[path] = str(error)
            if isinstance(error.__cause__, OSError):
                unread.add(path)
    return AclContent(stamps, files, faults, frozenset(unread))


def _read(path: str) -> AclFile:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_acl(file.read())
    except (BadAcl, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, BadAcl) else "it is not UTF-8"
        raise BadAcl(f"{path}: {why}") from None
    except OSError as error:
        raise BadAcl(f"{path}: {error.strerror}") from error


def read_at_start(places: AclPlaces) -> AclContent:
    """Read all files, of which there must be one, and each valid. Raises BadAcl with the path."""
    content = read_acl_files(places, None)
    for why in content.faults.values():
        raise BadAcl(why)
    if not content.files:
        raise BadAcl(
            f"{places.plain_file}: there is no such file, nor one in {places.folder}, so there would be no accounts; "
            "write one, set rocketmqHome to the directory that has it, or leave aclEnable out"
        )
    return content


def warnings_of(content: AclContent, plain_file: str) -> list[str]:
    """Warnings about files that could be read."""
    warnings = []
    if not any(file.accounts for file in content.files.values()):
        warnings.append(f"no file of accounts has one, {plain_file} neither: nobody can sign a request")
    for path in content.files:
        if others_can_read(path):
            warnings.append(f"{path} can be read by others, who can sign as anybody in it: chmod 600 {path}")
    return warnings


def _say_what_was_found(content: AclContent, plain_file: str) -> None:
    accounts = [account for file in content.files.values() for account in file.accounts]
    if accounts:
        log.info(
            "access control is on: {n} accounts, {admins} of them administrators, in {files}",
            n=len(accounts), admins=sum(account.admin for account in accounts), files=", ".join(content.files),
        )  # fmt: skip
    for warning in warnings_of(content, plain_file):
        log.warn("{warning}", warning=warning)


def acl_places(home: str, plain_file: str) -> AclPlaces:
    """The places below the directory `home`, as Java has them; `plain_file` is relative to it."""
    return AclPlaces(os.path.join(home, plain_file), os.path.join(home, "conf", "acl"))
