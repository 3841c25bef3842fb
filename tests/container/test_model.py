"""A container beside a dict: lives of every variant, with crashes, held against the oracle.

A reader is open all the time and must show the last sync, whatever the writer is at.
WINKFS_EXAMPLES=500 tries that many new lives.
"""

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from catalog_checks import check_catalog
from constants import leave_tails, make_chains
from container_checks import VARIANTS, assert_sound, contents, path_of
from folders import MEMORY
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracle_format import KVSEQ, read_entries, read_superblock
from oracle_read import check
from oracle_recipes import RECIPES

import winkfs
from winkfs import Row
from winkfs.names import FILES

pytestmark = pytest.mark.slow

CTIME = b"system.winkfs.ctime"  # where it is another time than the mtime
EXAMPLES = int(os.environ.get("WINKFS_EXAMPLES", "5"))
STARTS = (
    "plain",
    "chains",
    "classic",
    "classic_seqdb",
    "classic_negative_cells",
    "holes_in_pairs",
    "aligned",
    "aligned_odd",
    "duplicates",
    "classic_duplicates",
    "wide_cells",
    "full_index",
    "int16_values",
    "limited_keys",
    "append_only",
    "classic_append_only",
    "unclean",
    "unclean_flags_unset",
    "unclean_append_only",
)
REFUSALS = {errno.EPERM, errno.EOPNOTSUPP, errno.EISDIR, errno.EFBIG}
POOL = [b"a", b"b", b"a/b", b"I0", b"5/D0", b"1/I0", "größe".encode(), b"\xff", b"n" * 150]

names = st.sampled_from(POOL)
sizes = st.sampled_from([0, 1, 2, 7, 50, 128, 300, 5000, 70_000])
mtimes = st.none() | st.integers(-(2**40), 2**40)
ways = st.sampled_from(["put", "put_many", "put_rows", "append", "write"])


@dataclass(frozen=True)
class File:
    """What is known of a file; None: not what."""

    content: bytes
    mtime: int | None = None
    mode: int | None = None
    xattrs: bytes = b""


class Life(RuleBasedStateMachine):
    """`files` is what the writer must show, `synced` what everybody else must."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.lives = 0
        self.stamp = 0
        self.base = self.folder / "c0"

    # --- beginning and end

    @initialize(variant=st.sampled_from(sorted(VARIANTS)))
    def begin(self, variant: str) -> None:
        self.writer = winkfs.create(self.base, **VARIANTS[variant])  # type: ignore[arg-type]
        self.files: dict[bytes, File] = {}
        self._began()

    def _began(self) -> None:
        self.flags = self._flags_on_disk()
        self.synced = dict(self.files)
        self.reader = winkfs.open(self.base)

    def _flags_on_disk(self) -> set[int]:
        """Positions of the entries that are marked deleted, tombstones apart."""
        path = path_of(self.base, ".data")
        block = read_superblock(path.name, path.read_bytes(), KVSEQ, None)
        return {entry.pos for entry in read_entries(block) if entry.delflag and entry.value}

    def teardown(self) -> None:
        try:
            self.reader.close()
            self.writer.close()
            self._assert_closed()
        finally:
            shutil.rmtree(self.folder)

    def _assert_closed(self) -> None:
        tree = assert_sound(self.base, {name: f.content for name, f in self.files.items()})
        for name, file in self.files.items():
            view = tree.files[name]
            if file.mtime is not None:
                unit = 10**9 if self.writer.classic else 1
                assert view.mtime_ns == file.mtime // unit * unit
            if file.mode is not None:
                assert (view.mode or {112: 0o755}.get(view.ftype, 0o644)) == file.mode
            own = {key: value for key, value in view.xattrs.items() if key != CTIME}
            assert own == ({b"user.x": file.xattrs} if file.xattrs else {})

    # --- helpers

    def data(self, size: int) -> bytes:
        """Content that came nowhere before."""
        self.stamp += 1
        head = b"<%d>" % self.stamp
        return (head * (size // len(head) + 1))[:size]

    def attempt(self, action: Any, **after: File | None) -> bool:
        """Run a change; a refusal must change nothing."""
        try:
            action()
        except OSError as error:
            if error.errno not in REFUSALS or (
                self.writer.superblock.get("CKALGO", 1) == 2 and (not self.writer.ao)
            ):
                raise
            return False
        return True

    def known(self, name: bytes) -> bool:
        """Whether the file is there; else that the change is refused is all there is to see."""
        assert (name in self.writer) == (name in self.files)
        return name in self.files

    def before_a_name_goes(self) -> None:
        """The first time with HAVEDUPS the writer syncs, and marks older inodes."""
        if self.writer.store.keeps_older:
            self.sync()

    # --- whole files

    @rule(name=names, size=sizes, mtime=mtimes, mode=st.sampled_from([None, 0o644, 0o755, 0o600]))
    def put(self, name: bytes, size: int, mtime: int | None, mode: int | None) -> None:
        data = self.data(size)
        if self.attempt(lambda: self.writer.put(name, data, mtime_ns=mtime, mode=mode)):
            self.files[name] = File(data, mtime, mode or 0o644)

    @rule(files=st.lists(st.tuples(names, sizes), max_size=30), rows=st.booleans())
    def put_many(self, files: list[tuple[bytes, int]], rows: bool) -> None:
        made = [(name, self.data(size)) for name, size in files]
        if rows:
            self.writer.put_rows(Row(name, data) for name, data in made)
        else:
            self.writer.put_many(made)
        self.files.update((name, File(data, None, 0o644)) for name, data in made)

    @rule(count=st.sampled_from([20, 100]))
    def put_crowd(self, count: int) -> None:
        """Enough to make an index grow."""
        self.stamp += 1
        made = [(b"crowd %d.%d" % (self.stamp, i), b"%d" % i * (i % 30)) for i in range(count)]
        self.writer.put_many(made)
        self.files.update((name, File(data, None, 0o644)) for name, data in made)

    @rule()
    def delete_crowd(self) -> None:
        for name in [name for name in self.files if name.startswith(b"crowd")][::2]:
            self.delete(name)

    @rule(size=st.sampled_from([1 << 20, (1 << 20) + 1, 3_000_000]), name=names)
    def put_large(self, name: bytes, size: int) -> None:
        data = self.data(size)
        if self.attempt(lambda: self.writer.put(name, data)):
            self.files[name] = File(data, None, 0o644)

    # --- parts of files

    @rule(name=names, size=sizes)
    def append(self, name: bytes, size: int) -> None:
        data = self.data(size)
        if self.known(name) and self.attempt(lambda: self.writer.append(name, data)):
            file = self.files[name]
            self.files[name] = replace(file, content=file.content + data, mtime=None)

    @rule(name=names, size=sizes, at=st.floats(0, 1.5))
    def write(self, name: bytes, size: int, at: float) -> None:
        if not self.known(name):
            return
        file, data = self.files[name], self.data(size)
        offset = int(at * len(file.content))
        if self.attempt(lambda: self.writer.write(name, offset, data)):
            content = file.content
            if data:
                content = content.ljust(offset, b"\0")[:offset] + data
                content += file.content[len(content) :]
            self.files[name] = replace(file, content=content, mtime=None)

    @rule(name=names, at=st.floats(0, 1.5), more=st.sampled_from([0, 1, 3000]))
    def truncate(self, name: bytes, at: float, more: int) -> None:
        if not self.known(name):
            return
        file = self.files[name]
        size = int(at * len(file.content)) + more
        if self.attempt(lambda: self.writer.truncate(name, size)):
            content = file.content[:size].ljust(size, b"\0")
            self.files[name] = replace(file, content=content, mtime=None)

    # --- metadata and names

    @rule(name=names, mode=st.sampled_from([0o644, 0o755, 0o600, 0o4711]))
    def chmod(self, name: bytes, mode: int) -> None:
        if self.known(name) and self.attempt(lambda: self.writer.chmod(name, mode)):
            self.files[name] = replace(self.files[name], mode=mode)

    @rule(name=names, mtime=st.integers(-(2**40), 2**40))
    def utime(self, name: bytes, mtime: int) -> None:
        if self.known(name) and self.attempt(lambda: self.writer.utime(name, mtime_ns=mtime)):
            self.files[name] = replace(self.files[name], mtime=mtime)

    @rule(name=names, value=st.sampled_from([b"", b"1", b"long" * 100]))
    def setxattrs(self, name: bytes, value: bytes) -> None:
        xattrs = {b"user.x": value} if value else {}
        if self.known(name) and self.attempt(lambda: self.writer.setxattrs(name, xattrs)):
            self.files[name] = replace(self.files[name], xattrs=value)

    @rule(name=names)
    def delete(self, name: bytes) -> None:
        if self.known(name):
            self.before_a_name_goes()
            self.writer.delete(name)
            del self.files[name]

    @rule(name=names, new=names)
    def rename(self, name: bytes, new: bytes) -> None:
        if not self.known(name):
            return
        self.before_a_name_goes()
        if self.attempt(lambda: self.writer.rename(name, new)):
            self.files[new] = self.files.pop(name)

    # --- looking

    @rule()
    def look(self) -> None:
        assert contents(self.writer) == {name: f.content for name, f in self.files.items()}

    @rule(name=names, at=st.floats(0, 1.1), size=sizes)
    def read(self, name: bytes, at: float, size: int) -> None:
        """Without a look at the others, so that drafts stay drafts."""
        if not self.known(name):
            with pytest.raises(FileNotFoundError):
                self.writer.read(name)
            return
        content = self.files[name].content
        offset = int(at * len(content))
        assert self.writer.read(name) == content
        assert self.writer.read(name, offset, size) == content[offset : offset + size]
        stat = self.writer.stat(name)
        assert stat.size == len(content)
        assert self.files[name].mode in (None, stat.mode)

    @rule()
    def verify(self) -> None:
        assert winkfs.verify(self.base).problems == []

    @invariant()
    def the_reader_shows_the_last_sync(self) -> None:
        if not hasattr(self, "reader"):
            return
        assert len(self.reader) == len(self.synced)
        wanted = [name for name in POOL if name in self.synced]
        for name, data in zip(wanted, self.reader.get_many(wanted), strict=True):
            assert data == self.synced[name].content
            assert self.reader.read(name) == data

    # --- durability

    @rule()
    def sync(self) -> None:
        self.flags = self._flags_on_disk()  # those are durable from now on, new ones are not
        self.writer.sync()
        self.synced = dict(self.files)
        assert contents(self.reader) == {name: f.content for name, f in self.files.items()}

    @rule()
    def save_catalog(self) -> None:
        self.flags = self._flags_on_disk()
        self.writer.save_catalog()
        self.synced = dict(self.files)
        if not self.writer.classic:
            check_catalog(self.base, set(self.files))

    @rule(
        through=st.sampled_from(["reopen", "reindex", ".idx", ".time", ".cat"]), tail=st.booleans()
    )
    def close_and_reopen(self, through: str, tail: bool) -> None:
        """`tail`: few changes are left to be replayed."""
        with pytest.MonkeyPatch.context() as patch:
            if tail:
                leave_tails(patch)
            self.writer.close()
        self.synced = dict(self.files)
        self._assert_closed()
        self.flags = self._flags_on_disk()
        if through == "reindex":
            assert winkfs.reindex(self.base) == len(self.files)
            self._assert_closed()
        elif through != "reopen":
            path_of(self.base, through).unlink(missing_ok=True)
        self.writer = winkfs.open(self.base, "a")

    @rule(
        tail=st.sampled_from(["kept", "cut", "garbage", "flags lost"]),
        dropped=st.sampled_from(["", "", ".idx", ".time"]),
    )
    def crash(self, tail: str, dropped: str) -> None:
        """Go on with the files as they are on the disk; behind FILESIZE may be anything."""
        self.lives += 1
        copy = self.folder / f"c{self.lives}"
        for suffix in FILES:
            if path_of(self.base, suffix).exists() and suffix != dropped:
                shutil.copy(path_of(self.base, suffix), path_of(copy, suffix))
        with path_of(copy, ".data").open("r+b") as file:
            if tail in ("cut", "garbage"):
                file.truncate(self.reader.superblock["FILESIZE"])
            if tail == "flags lost":
                for pos in self._flags_on_disk() - self.flags:
                    file.seek(pos)
                    file.write(b"\0")
            if tail == "garbage":
                file.seek(0, os.SEEK_END)
                file.write(b"\0\0\3a/I0" * 500)
        self.reader.close()
        self.writer.close()
        self.base, self.files = copy, dict(self.synced)
        check(copy, clean=False)
        with winkfs.open(copy) as reader:
            assert contents(reader) == {name: f.content for name, f in self.files.items()}
        assert winkfs.verify(copy).problems == []
        self.writer = winkfs.open(copy, "a")
        self._began()


class LifeOfOthers(Life):
    """The same, from containers that another writer made."""

    @initialize(recipe=st.sampled_from(STARTS))
    def begin(self, recipe: str) -> None:
        made = RECIPES[recipe](self.base)
        self.files = {
            name: File(file.content, file.mtime_ns, file.mode) for name, file in made.items()
        }
        for name in [name for name, file in made.items() if file.xattrs or file.ftype == 100]:
            path = winkfs.open(self.base, "a")
            path.delete(name)
            path.close()
            del self.files[name]
        self.writer = winkfs.open(self.base, "a")
        self._began()


class LifeOfChains(Life):
    """The same, where every change makes an inode that builds on another."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_chains(self.patch)

    @initialize(variant=st.sampled_from(["plain", "plain murmur3"]))
    def begin(self, variant: str) -> None:
        super().begin(variant)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


profile = settings(
    max_examples=EXAMPLES,
    derandomize="WINKFS_EXAMPLES" not in os.environ,  # the suite is the same each time
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLife = Life.TestCase
TestLife.settings = settings(profile, max_examples=EXAMPLES + 2)
TestLifeOfChains = LifeOfChains.TestCase
TestLifeOfChains.settings = profile
TestLifeOfOthers = LifeOfOthers.TestCase
TestLifeOfOthers.settings = profile
