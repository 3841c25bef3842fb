"""HAVEDUPS 1, read as the founding document has it: its iter skips deleted files and data entries.

That reader is written here from the document and shares nothing with the product.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from container_checks import assert_sound, contents, contents_of

import winkfs
from winkformats.kv.sequence import KVSeq
from winkfs.container.datafile import DataFile

FORMS = [pytest.param(True, id="classic"), pytest.param(False, id="new")]
Life = Callable[[winkfs.Container], object]


def variables(raw: bytes) -> dict[bytes, int]:
    """Return the variables of the superblock, of two the newer."""
    found: dict[bytes, int] = {}
    for half in range(2 if raw[16:24] == (8192).to_bytes(8, "big") else 1):
        at, block = half * 4096 + 8, {}
        while raw[at : at + 8] != bytes(8):
            name, value = struct.unpack_from(">8sq", raw, at)
            block[name.rstrip()] = value
            at += 16
        if block.get(b"SBSEQ", 0) >= found.get(b"SBSEQ", 0):
            found = block
    return found


def entries(raw: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (delflag, key, value): KVDELFL 1, KEYREPR 1, VALREPR 2."""
    block = variables(raw)
    at = block[b"SBSIZE"]
    while at < block[b"FILESIZE"]:
        delflag, length = struct.unpack_from(">BH", raw, at)
        key = raw[at + 3 : at + 3 + length]
        (size,) = struct.unpack_from(">I", raw, at + 3 + length)
        at += 7 + length
        yield delflag, key, raw[at : at + size]
        at += size + (4 if block.get(b"KVCKSUM") else 0)


def iterate(base: Path) -> dict[bytes, int]:
    """Return the files that the document's iter finds: name -> LSIZE; of a name the last counts."""
    found = {}
    for delflag, key, value in entries(Path(f"{base}.data").read_bytes()):
        if not delflag and key.endswith(b"/I0"):
            found[key[:-3]] = int.from_bytes(value[24:32], "big")
    return found


def counted(base: Path) -> bool:
    """Return whether ENTRIES and AENTRIES are as the document has them."""
    raw = Path(f"{base}.data").read_bytes()
    flags = [delflag for delflag, _, _ in entries(raw)]
    block = variables(raw)
    return (block[b"ENTRIES"], block[b"AENTRIES"]) == (len(flags), flags.count(0))


@pytest.fixture(params=FORMS)
def base(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Make a container with HAVEDUPS 1 in which names have one, two and three live versions."""
    made = tmp_path / "c"
    with winkfs.create(made, havedups=True, classic=request.param) as c:
        for version in range(3):
            c.put_many([(f"n{i}", b"%d" % i * version, 5) for i in range(3 - version)])
            c.sync()
        c.put("solo", b"alone")
    assert agrees(made)
    flags = [f for f, k, _ in entries(Path(f"{made}.data").read_bytes()) if k == b"n0/I0"]
    assert flags == [0, 0, 0]  # older versions stay
    return made


def agrees(base: Path) -> bool:
    """Return whether the document's iteration finds what winkfs finds."""
    with winkfs.open(base) as c:
        ours = {name.encode(): len(c.read(name)) for name in c.names()}
    return iterate(base) == ours and counted(base)


def sound(base: Path) -> None:
    with winkfs.open(base) as c:
        assert_sound(base, contents(c))


LIVES: dict[str, list[Life]] = {
    "rename": [lambda c: c.rename("n0", "six")],
    "rename over": [lambda c: c.rename("n0", "n1")],
    "delete": [lambda c: c.delete("n0")],
    "delete what this session put": [
        lambda c: c.put("n0", b"a fourth version, of this session"),
        lambda c: c.append("n1", b"more"),
        lambda c: c.delete("n0"),
    ],
    "delete the last": [
        lambda c: c.delete("solo"),
        lambda c: c.put("n0", b"once more"),
        lambda c: c.delete("n0"),
        lambda c: c.put("n2", b"new"),
    ],
    "put again": [
        lambda c: c.delete("n0"),
        lambda c: c.sync(),
        lambda c: c.put("n0", b"it is back"),
    ],
}


def live(c: winkfs.Container, life: str) -> None:
    for change in LIVES[life]:
        change(c)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES)
def test_the_documents_iteration_finds_no_name_that_is_gone(base: Path, life: str) -> None:
    with winkfs.open(base, "a") as c:
        live(c, life)
    assert agrees(base)
    sound(base)
    before = iterate(base)
    Path(f"{base}.idx").unlink()
    winkfs.reindex(base)
    assert iterate(base) == before
    assert agrees(base)


def in_a_child(work: Callable[[], object]) -> int:
    """-> how a process ends that does this."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
    finally:
        os._exit(1)


def killed(base: Path, life: str, marked: int) -> None:
    """Do the changes in a process that ends after the sync, with so many of its delflags set."""
    before = DataFile._set_delflags

    def dies(self: DataFile, chosen: list[int], rest: list[int]) -> None:
        if not chosen or min(chosen) >= self.synced:  # before the sync
            before(self, chosen, rest)
        else:
            self.kv.mark_deleted(sorted(chosen)[len(chosen) - marked :])
            os._exit(9)

    DataFile._set_delflags = dies  # type: ignore[method-assign]
    with winkfs.open(base, "a") as c:
        live(c, life)
        c.sync()


def killed_while_marking(base: Path, marked: int) -> None:
    before = KVSeq.mark_deleted

    def dies(self: KVSeq, positions: Sequence[int]) -> None:
        before(self, positions[:marked])
        os._exit(9)

    KVSeq.mark_deleted = dies  # type: ignore[method-assign]
    winkfs.open(base, "a").delete("n0")


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("marked", [0, 1])
@pytest.mark.parametrize("life", LIVES)
def test_the_next_writer_marks_what_a_kill_left(base: Path, life: str, marked: int) -> None:
    """Killed after the sync, before its delflags, or with only the last of them set."""
    assert in_a_child(lambda: killed(base, life, marked)) == 9
    expected = contents_of(base)
    assert contents_of(base, "a") == expected
    assert agrees(base)
    sound(base)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("marked", [None, 0, 1])
def test_older_inodes_are_marked_under_a_duplicates_counter(base: Path, marked: int | None) -> None:
    """Also while the writer goes on (None), and where it is killed between two marks."""
    if marked is None:
        with winkfs.open(base, "a") as c:
            c.delete("n0")
            assert not winkfs.verify(base).problems
            c.abort()
    else:
        assert in_a_child(lambda: killed_while_marking(base, marked)) == 9
    assert not winkfs.verify(base).problems
    with winkfs.open(base, "a") as c:
        live(c, "rename")
    assert agrees(base)
    sound(base)


def test_unmarked_duplicates_are_noted_and_reindex_marks_them(base: Path) -> None:
    with winkfs.open(base, "a") as c:
        c.store.keeps_older = False  # a delete that marks the newest version only
        c.delete("n0")
    assert b"n0" in iterate(base)
    report = winkfs.verify(base)
    assert not report.problems
    assert [note for note in report.notes if "2 older inodes" in note]
    winkfs.reindex(base)
    assert agrees(base)
    assert not winkfs.verify(base).notes
