"""Files that are mapped a few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqbroker.store.offline import filepool
from mqbroker.store.offline.filepool import FilePool
from mqbroker.store.os_disk import OsDisk


def test_where_there_is_no_room_for_one_more_all_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filepool, "_MAPPED_MAX", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode() * 8)
    forgotten: list[str] = []
    pool = FilePool(OsDisk(), 8)
    views = [pool.open(str(path), lambda path=path: forgotten.append(path.name)) for path in paths[:2]]  # type: ignore[misc]
    assert ([bytes(view) for view in views], forgotten) == ([b"a" * 8, b"b" * 8], [])
    assert bytes(pool.open(str(paths[2]), lambda: forgotten.append("c"))) == b"c" * 8
    assert forgotten == ["a", "b"]
    with pytest.raises(ValueError, match="released"):
        bytes(views[0])
    pool.close()
    assert forgotten == ["a", "b", "c"]
