"""Files without content and directories: as columns or one by one, the same bytes."""

from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import winkfs
from winkfs.container.bulk import Row
from winkfs.container.verify import verify
from winkfs.entry import FileType

BLOCKS = 8192  # bytes before the first entry: superblocks
KINDS = (FileType.FILE, FileType.DIR, FileType.EXEC)


def rows(count: int, *, attrs: bool) -> Iterator[Row]:
    """Runs of many lengths, cut by files with content."""
    lengths = itertools.cycle([15, 1, 48, 16])
    number = 0
    for length in lengths:
        for i in range(length):
            mtime, kind = 10**18 + number * 1000, KINDS[(number + i) % len(KINDS)]
            name, owned = b"%05d" % number, attrs and number % 5
            given = (0o640, number, 7, {b"user.a": b"x" * i} if i % 3 else None)
            yield Row(name, b"", mtime, kind, *(given if owned else (None,) * 4))
            number += 1
            if number == count:
                return
        yield Row(b"%05d" % number, b"content", 10**18 + number * 1000, FileType.FILE)
        number += 1


def put(base: Path, given: list[Row], *, together: bool) -> tuple[bytes, list[bytes]]:
    """-> the entries, and the derived files, without their superblocks."""
    with winkfs.open(base, "a") as container:
        if together:
            container.put_rows(given)
        for row in () if together else given:
            name, data, mtime_ns, ftype, mode, uid, gid, xattrs = row
            container.put_file(
                name, io.BytesIO(data), mtime_ns=mtime_ns, ftype=ftype, mode=mode, uid=uid,
                gid=gid, xattrs=xattrs,
            )  # fmt: skip
        container.save_catalog()
    derived = [base.with_suffix(suffix) for suffix in (".cat", ".time")]
    found = [path.read_bytes()[BLOCKS:] for path in derived if path.exists()]
    return base.with_suffix(".data").read_bytes()[BLOCKS:], found


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("attrs", [False, True])
@pytest.mark.parametrize("options", [{}, {"ao": True}, {"compress": "zstd"}], ids=str)
def test_columns_are_the_same_bytes_as_one_by_one(
    tmp_path: Path, options: dict[str, object], attrs: bool
) -> None:
    given, found = list(rows(400, attrs=attrs)), []
    winkfs.create(tmp_path / "new", **options).close()  # type: ignore[arg-type]
    for together in (True, False):
        base = tmp_path / f"c{together}"
        for path in tmp_path.glob("new.*"):
            shutil.copyfile(path, base.with_suffix(path.suffix))
        found.append(put(base, given, together=together))
        assert not verify(base).problems
        with winkfs.open(base) as container:
            entries = {entry.name: entry for entry in container.scan()}
            for row in given:
                entry = entries.pop(row.name.decode())  # type: ignore[union-attr]
                assert (entry.size, entry.mtime_ns) == (len(row.data), row.mtime_ns)
                assert row.mode in (None, entry.mode)
                assert container.getxattrs(row.name) == (row.xattrs or {})
            assert not entries
    assert found[0] == found[1]


def test_names_that_are_there_and_come_twice(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"old")
        container.put_many([("a", b""), *((f"n{i}", b"") for i in range(100)), ("n7", b"")])
        container.put_many([("n8", b"now"), ("n9", b"")])
        assert container.read("a") == container.read("n7") == container.read("n9") == b""
        assert container.read("n8") == b"now"
    assert not verify(base).problems
    with winkfs.open(base) as container:
        assert sum(1 for _ in container.scan()) == 101
