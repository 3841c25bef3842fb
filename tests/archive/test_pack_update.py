"""pack --update: only what changed is stored, and no change is missed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stored
from constants import shrink
from folders import unchanged
from stored import stat
from trees import snapshot

import winkfs
import winkfs.archive.pack
import winkfs.dataset.packing
from winkformats.extsort import SortedRecords
from winkfs.archive.ahead import FILE, Ahead, Found, Walk
from winkfs.archive.items import STREAM_BYTES, Note, Seen
from winkfs.archive.pack import pack
from winkfs.archive.packer import UNCHANGEABLE, PackReport
from winkfs.archive.unpack import unpack
from winkfs.archive.update import now_ns
from winkfs.container.compact import compact
from winkfs.dataset.packing import pack_shards, split
from winkfs.entry import FileType

pytestmark = pytest.mark.slow

FUTURE = 1 << 62  # ns
Pack = Callable[..., PackReport]


def size(base: Path) -> int:
    return Path(f"{base}.data").stat().st_size


def counts(report: PackReport) -> tuple[int, int, int]:
    """Stored, updated, unchanged."""
    stored = report.files + report.directories + report.links
    return stored, report.updated, report.unchanged


def put_back(path: Path, data: bytes) -> None:
    """Other bytes, the same mtime."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before, before))


def assert_same(root: Path, base: Path, tmp_path: Path) -> None:
    back = tmp_path / "back"
    shutil.rmtree(back, ignore_errors=True)
    unpack(base, back)
    assert snapshot(back) == snapshot(root)
    assert winkfs.verify(base).problems == []


def grow_old(root: Path) -> None:
    """The kernel's clock for ctimes goes by ticks: wait for the next one."""
    newest = max(path.lstat().st_ctime_ns for path in [root, *root.rglob("*")])
    while now_ns() <= newest:
        time.sleep(0.001)


@pytest.fixture
def packed(tree: Path, tmp_path: Path) -> Path:
    """The tree in a container, packed some time after it was made."""
    grow_old(tree)
    pack(tree, tmp_path / "c")
    return tmp_path / "c"


# --- what is unchanged ---


@pytest.mark.parametrize("checksum", [False, True])
def test_unchanged_tree_writes_not_one_byte(tree: Path, packed: Path, checksum: bool) -> None:
    with unchanged(packed.parent):
        for _ in range(2):
            assert counts(pack(tree, packed, update=True, checksum=checksum)) == (0, 0, 13)


@pytest.mark.parametrize("ao", [False, True])
def test_unchanged_classic_container_is_read_but_not_written(
    tree: Path, tmp_path: Path, ao: bool
) -> None:
    """It has whole seconds, no mark and no attributes."""
    pack(tree, tmp_path / "c", classic=True, ao=ao)
    before = size(tmp_path / "c")
    assert counts(pack(tree, tmp_path / "c", update=True)) == (0, 0, 13)
    assert size(tmp_path / "c") == before


def test_contents_are_not_read_where_ctimes_are_old(
    tree: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = set[bytes]()
    real, real_items = os.open, Ahead.items

    def spy(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not flags & os.O_DIRECTORY and isinstance(path, bytes):  # as names of a tree are
            opened.add(path)
        return real(path, flags, *args, **options)

    def spy_items(ahead: Ahead, walk: Walk) -> Iterator[Any]:
        def noted(leave: Callable[[int], None]) -> Generator[Found, None, None]:
            for found in walk(leave):
                opened.update([found.path] * (found.kind == FILE))
                yield found

        return real_items(ahead, noted)

    monkeypatch.setattr(os, "open", spy)
    monkeypatch.setattr(Ahead, "items", spy_items)
    assert counts(pack(tree, packed, update=True)) == (0, 0, 13)
    assert opened == set()
    pack(tree, packed, update=True, checksum=True)
    assert len(opened) == 8


@pytest.mark.parametrize("lost", ["idx", "root", "reindex", "compact"])
def test_without_a_mark_all_is_compared_and_nothing_stored(
    tree: Path, packed: Path, tmp_path: Path, lost: str
) -> None:
    if lost == "idx":
        Path(f"{packed}.idx").unlink()
    elif lost == "reindex":
        winkfs.reindex(packed)
    elif lost == "compact":
        with winkfs.open(packed, "a") as container:
            container.put("junk", b"1" * 5000)
            container.delete("junk")
        compact(packed)
    else:
        shutil.copytree(tree, tmp_path / "other", symlinks=True)
        tree = tmp_path / "other"
    before = size(packed)
    put_back(tree / "docs/a.html", b"<p>b</p>")
    assert counts(pack(tree, packed, update=True)) == (1, 0, 12)
    assert 0 < size(packed) - before < 400


def test_compaction_does_not_hide_files_written_after_the_pack(tree: Path, packed: Path) -> None:
    source = tree / "docs/a.html"
    with winkfs.open(packed, "a") as container:
        mtime = source.stat().st_mtime_ns
        container.put("docs/a.html", b"x" * source.stat().st_size, mtime_ns=mtime)
    compact(packed)
    assert counts(pack(tree, packed, update=True)) == (1, 0, 12)
    assert stored.read(packed, "docs/a.html") == source.read_bytes()


def test_compaction_right_after_a_pack_keeps_the_mark(tree: Path, packed: Path) -> None:
    put_back(tree / "docs/a.html", b"<p>b</p>")
    pack(tree, packed, update=True)
    compact(packed)
    with winkfs.open(packed) as container:
        store = container.store
        assert store.packed["PACKEND"] == store.kv.end
    assert counts(pack(tree, packed, update=True)) == (0, 0, 13)


def test_mark_is_kept_where_much_was_compared_in_vain(tree: Path, packed: Path) -> None:
    for i in range(20):
        (tree / f"more{i}").write_bytes(bytes(STREAM_BYTES + i))
    pack(tree, packed, update=True)
    winkfs.reindex(packed)
    before = size(packed)
    grow_old(tree)
    pack(tree, packed, update=True)  # compares all, and may trust its ctimes from now on
    with winkfs.open(packed) as container:
        assert container.store.packed["PACKTIME"] > (tree / "more19").stat().st_ctime_ns
    assert size(packed) == before


# --- what is changed ---


def test_file_changed_with_its_mtime_put_back_is_seen(
    tree: Path, packed: Path, tmp_path: Path
) -> None:
    put_back(tree / "docs/a.html", b"<p>b</p>")
    put_back(tree / "large", bytes((tree / "large").stat().st_size))
    assert counts(pack(tree, packed, update=True)) == (2, 0, 11)
    assert_same(tree, packed, tmp_path)
    assert counts(pack(tree, packed, update=True))[0] == 0


def test_an_update_stores_only_what_changed_since_the_last_pack(
    tree: Path, packed: Path, tmp_path: Path
) -> None:
    before = size(packed)
    (tree / "secret").write_bytes(b"another size")
    (tree / "docs/new").write_bytes(b"new")
    (tree / "link").unlink()
    (tree / "link").symlink_to("docs/new")
    (tree / "empty").unlink()
    (tree / "empty").mkdir()
    report = pack(tree, packed, update=True)
    assert (report.files, report.directories, report.links) == (2, 1, 1)
    assert report.updated == 1  # the mtime of docs
    assert size(packed) - before < 3000
    assert_same(tree, packed, tmp_path)


def test_change_of_metadata_stores_no_content_again(
    tree: Path, packed: Path, tmp_path: Path
) -> None:
    before = size(packed)
    os.utime(tree / "large", ns=(5, 1_000_000_007))
    (tree / "docs/a.html").chmod(0o4750)
    (tree / "run.sh").chmod(0o644)
    (tree / "docs/old").chmod(0o755)
    os.setxattr(tree / "docs/old/b.html", "user.note", b"1")
    os.setxattr(tree / "empty dir", "user.note", b"2")
    if os.geteuid() == 0:
        os.chown(tree / "secret", 1234, 5678)
        os.chown(tree / "link", 12, 13, follow_symlinks=False)
    report = pack(tree, packed, update=True)
    assert (report.files + report.directories + report.links, report.updated) == (
        0, 8 if os.geteuid() == 0 else 6,
    )  # fmt: skip
    assert size(packed) - before < 5000
    unpack(packed, tmp_path / "back", same_permissions=True)
    assert snapshot(tmp_path / "back") == snapshot(tree)
    assert os.getxattr(tmp_path / "back/docs/old/b.html", "user.note") == b"1"
    os.removexattr(tree / "docs/old/b.html", "user.note")
    assert counts(pack(tree, packed, update=True))[:2] == (0, 1)
    with winkfs.open(packed) as container:
        assert container.getxattrs("docs/old/b.html") == {}
    assert winkfs.verify(packed).problems == []


def test_what_is_gone_from_the_tree_stays_in_the_container(tree: Path, packed: Path) -> None:
    shutil.rmtree(tree / "docs")
    (tree / "secret").unlink()
    assert counts(pack(tree, packed, update=True)) == (0, 0, 8)
    assert {"docs", "docs/a.html", "secret"} <= set(stored.names(packed))


def test_an_update_sees_changes_by_other_writers(tree: Path, packed: Path, tmp_path: Path) -> None:
    with winkfs.open(packed, "a") as container:
        mtime_ns = container.stat("docs/a.html").mtime_ns
        container.put("docs/a.html", b"<p>b</p>", mtime_ns=mtime_ns)
        container.chmod("run.sh", 0o600)
    assert counts(pack(tree, packed, update=True)) == (1, 1, 11)
    assert_same(tree, packed, tmp_path)


def test_clock_that_lies_is_what_checksum_is_for(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: FUTURE)
    pack(tree, tmp_path / "c")
    put_back(tree / "docs/a.html", b"<p>b</p>")
    assert counts(pack(tree, tmp_path / "c", update=True)) == (0, 0, 13)
    assert counts(pack(tree, tmp_path / "c", update=True, checksum=True)) == (1, 0, 12)
    assert_same(tree, tmp_path / "c", tmp_path)


def test_pack_of_a_part_does_not_vouch_for_the_rest(tree: Path, packed: Path) -> None:
    put_back(tree / "docs/a.html", b"<p>b</p>")
    (tree / "run.sh").write_bytes(b"new")
    grow_old(tree)
    assert counts(pack(tree, packed, update=True, names=[b"run.sh"])) == (1, 0, 0)
    (tree / "run.sh").write_bytes(b"newer")
    grow_old(tree)
    assert counts(pack(tree, packed, update=True, exclude=["docs"]))[0] == 1
    assert counts(pack(tree, packed, update=True))[0] == 1
    assert stored.read(packed, "docs/a.html") == b"<p>b</p>"


def test_pack_with_a_failure_does_not_vouch_for_the_file(place: Path) -> None:
    tree = place / "tree"
    grow_old(tree)
    pack(tree, place / "c")
    put_back(tree / "docs/a.html", b"<p>b</p>")
    (tree / "docs/a.html").chmod(0)
    (tree / "run.sh").write_bytes(b"new")
    assert pack(tree, place / "c", update=True).failed == 1
    with winkfs.open(place / "c") as container:
        assert container.store.packed["PACKTIME"] <= (tree / "run.sh").stat().st_ctime_ns


def test_what_cannot_be_read_does_not_make_others_new(place: Path) -> None:
    root = place / "root"
    root.mkdir()
    for name in ("a", "c", "d"):
        (root / name).write_bytes(name.encode())
    grow_old(root)
    pack(root, place / "c")
    os.mkfifo(root / "b")
    (root / "d").write_bytes(b"D")
    report = pack(root, place / "c", update=True, checksum=True)
    assert (counts(report), report.left_out) == ((1, 0, 2), 1)


def test_name_that_is_listed_twice_or_lies_deep_is_packed(tree: Path, packed: Path) -> None:
    (tree / "run.sh").write_bytes(b"new")
    assert counts(pack(tree, packed, update=True, names=[b"run.sh", b"run.sh"]))[0] == 2
    path = "/".join(["d" * 200] * 30)
    fd = os.open(tree, os.O_RDONLY)
    try:
        for part in path.split("/"):
            os.mkdir(part, dir_fd=fd)
            fd, above = os.open(part, os.O_RDONLY, dir_fd=fd), fd
            os.close(above)
        os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        assert counts(pack(tree, packed, update=True)) == (31, 0, 13)
        assert counts(pack(tree, packed, update=True, checksum=True)) == (0, 0, 44)
        pack(tree, packed.with_name("ao"), ao=True)
        assert f"{path}/end" in stored.names(packed.with_name("ao"))
    finally:
        os.close(fd)
        subprocess.run(["rm", "-rf", tree], check=True)


def test_damaged_content_is_stored_again(tree: Path, packed: Path) -> None:
    stored.flip_text(f"{packed}.data", b"<p>a</p>")
    assert counts(pack(tree, packed, update=True, checksum=True)) == (1, 0, 12)
    assert stored.read(packed, "docs/a.html") == b"<p>a</p>"


def test_holes_are_compared_as_zeros(tmp_path: Path, root: Path) -> None:
    for name in "ab":
        with (root / name).open("wb") as file:
            file.truncate(4 * STREAM_BYTES)
            file.seek(2 * STREAM_BYTES)
            file.write(b"x" * 5000)
    pack(root, tmp_path / "c")
    with (root / "b").open("r+b") as file:  # the same bytes, without holes
        file.write(bytes(2 * STREAM_BYTES))
    os.utime(root / "b", ns=(7, 7))
    assert counts(pack(root, tmp_path / "c", update=True, checksum=True)) == (0, 1, 1)
    with (root / "a").open("r+b") as file:
        file.seek(3 * STREAM_BYTES)
        file.write(b"y")
    assert counts(pack(root, tmp_path / "c", update=True)) == (1, 0, 1)
    assert stored.files(tmp_path / "c") == {name: (root / name).read_bytes() for name in "ab"}


def test_interrupted_update_is_gone_on_with(tree: Path, packed: Path, tmp_path: Path) -> None:
    for i in range(300):
        (tree / f"f{i:03}").write_bytes(b"%d" % i)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(tree, packed, update=True, progress=interrupt)
    pack(tree, packed, update=True)
    assert_same(tree, packed, tmp_path)


# --- append only ---


def test_an_update_of_append_only_adds_files_and_names_the_rest(
    tree: Path, tmp_path: Path, notes: list[Note]
) -> None:
    grow_old(tree)
    pack(tree, tmp_path / "c", ao=True)
    with unchanged(tmp_path):
        assert counts(pack(tree, tmp_path / "c", update=True)) == (0, 0, 13)
    (tree / "docs/a.html").write_bytes(b"<p>b</p>")
    (tree / "secret").chmod(0o644)
    report = pack(tree, tmp_path / "c", update=True, note=notes.append)
    assert counts(report) == (1, 0, 11)
    assert notes == [Note(b"secret", UNCHANGEABLE, True, often=True)]
    assert stored.read(tmp_path / "c", "docs/a.html") == b"<p>b</p>"


# --- tar files ---


def tar_of(root: Path, path: Path) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, ".")
    return path


@pytest.mark.parametrize("to", ["container", "data set"])
def test_tar_file_stores_what_has_another_size_or_mtime(
    tree: Path, tmp_path: Path, to: str
) -> None:
    run: Pack = pack if to == "container" else pack_shards
    base = tmp_path / "c"
    os.link(tree / "large", tree / "hard")
    os.link(tree / "secret", tree / "hard small")
    run(tar_of(tree, tmp_path / "1.tar"), base)
    assert counts(run(tmp_path / "1.tar", base, update=True)) == (0, 0, 15)
    assert counts(run(tmp_path / "1.tar", base, update=True, checksum=True)) == (0, 0, 15)
    put_back(tree / "docs/a.html", b"<p>b</p>")
    (tree / "large").write_bytes(bytes(3 * STREAM_BYTES))  # the linked one, too
    (tree / "run.sh").chmod(0o700)
    tar_of(tree, tmp_path / "2.tar")
    report = run(tmp_path / "2.tar", base, update=True)
    assert counts(report) == ((2, 1, 12) if to == "container" else (3, 0, 12))
    assert counts(run(tmp_path / "2.tar", base, update=True, checksum=True))[0] == 1
    with winkfs.open(base) as opened:
        assert opened.read("docs/a.html") == b"<p>b</p>"
        assert opened.read("large") == opened.read("hard") == bytes(3 * STREAM_BYTES)
        assert opened.stat("run.sh").mode == 0o700


def members(path: Path, *files: tuple[str, bytes, int]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data, mtime in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), mtime
            part = path.with_name("part")
            part.write_bytes(data)
            with part.open("rb") as file:
                tar.addfile(member, file)
    return path


@pytest.mark.few
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("to", ["container", "data set"])
@pytest.mark.parametrize("length", [10, STREAM_BYTES + 10])
def test_of_a_name_that_comes_twice_the_last_one_counts(
    tmp_path: Path, to: str, length: int, checksum: bool
) -> None:
    """The second is what the container had, but for the first, which was stored just now."""
    run: Pack = pack if to == "container" else pack_shards
    tar = members(tmp_path / "t.tar", ("a", b"1" * length, 1), ("a", b"2" * length, 2))
    run(tar, tmp_path / "c")
    run(tar, tmp_path / "c", update=True, checksum=checksum)
    assert stored.read(tmp_path / "c", "a") == b"2" * length
    assert stat(tmp_path / "c", "a").mtime == 2


# --- data sets ---


@pytest.fixture
def shards(tree: Path, tmp_path: Path) -> Path:
    grow_old(tree)
    pack_shards(tree, tmp_path / "ds", 3)
    return tmp_path / "ds"


def generation(root: Path) -> int:
    with winkfs.open(root) as opened:
        return opened.generation  # type: ignore[union-attr]


def test_unchanged_tree_makes_no_generation(tree: Path, shards: Path) -> None:
    for checksum in (False, True):
        report = pack_shards(tree, shards, 2, update=True, checksum=checksum)
        assert counts(report) == (0, 0, 13)
        assert generation(shards) == 1
    assert not list((shards / "_pending").iterdir())


@pytest.mark.parametrize("ao", [False, True])
def test_data_set_gets_a_shard_of_what_changed(tree: Path, tmp_path: Path, ao: bool) -> None:
    root = tmp_path / "ds"
    grow_old(tree)
    pack_shards(tree, root, 2, ao=ao)
    put_back(tree / "docs/a.html", b"<p>b</p>")
    (tree / "run.sh").chmod(0o700)
    (tree / "new").write_bytes(b"1")
    assert counts(pack_shards(tree, root, 2, update=True, ao=ao)) == (3, 0, 11)
    assert generation(root) == 2
    assert counts(pack_shards(tree, root, 2, update=True, ao=ao)) == (0, 0, 14)
    unpack(root, tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(tree)


def test_an_update_sees_commits_by_other_writers(tree: Path, shards: Path) -> None:
    with winkfs.open(shards, "a") as opened:
        opened.put("docs/a.html", b"<p>b</p>", mtime_ns=opened.stat("docs/a.html").mtime_ns)
        opened.delete("secret")
    assert counts(pack_shards(tree, shards, update=True)) == (2, 0, 11)
    found = stored.files(shards)
    assert found["docs/a.html"] == b"<p>a</p>" and "secret" in found


@pytest.mark.slow
def test_names_are_split_among_shards_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> Iterator[Seen]:
        for i in range(20_000):
            yield Seen(b"%06d" % (i * 7919 % 20_000) + b"x" * 150, FileType.FILE, i, 0, 0)

    shrink(monkeypatch, "pack", sorter=partial(SortedRecords, run=1 << 20))
    tracemalloc.start()
    try:
        lists = split(files(), 4, str(tmp_path), ao=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20  # as a list: 6 MiB
    sizes = [size for _, size in lists]
    assert max(sizes) - min(sizes) < 100_000
    found = b"".join(Path(path).read_bytes() for path, _ in lists).split(b"\0")
    assert found == [b"%06d" % i + b"x" * 150 for i in range(20_000)] + [b""]
