"""Containers of strangers, and records that are damaged: only FormatError and OSError leave."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run
from container_checks import ROOT, environment

import winkfs
from winkformats.errors import CorruptError, FormatError
from winkfs import digests
from winkfs.container.ondisk.inode import ATTRS, CK_XXH3, Inode, InodeForm
from winkfs.container.store import Store
from winkfs.results import store as results
from winkfs.results.digestshard import DigestShardWriter

pytestmark = pytest.mark.slow


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["superblocks", "inodes"])
def test_numbers_that_make_no_sense_under_right_checksums(kind: str, seed: int, soak: bool) -> None:
    count = {"superblocks": 14, "inodes": 12}[kind] * (100 if soak else 1)
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "hostile.py", kind, str(seed), str(count)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("suffix", "name", "value"),
    [
        (".cat", "FILESIZE", -1),
        (".data", "ISZ", (1 << 63) - 1),
        (".data", "ISZ", 1 << 31),
        (".data", "NEXTFID", (1 << 63) - 1),
        (".data", "VALREPR", 256),
        (".data", "SBSEQ", (1 << 63) - 1),
        (".idx", "AENTRIES", -1),
    ],
)
def test_a_superblock_with_a_right_checksum_and_a_wrong_number(
    suffix: str, name: str, value: int, base: Path
) -> None:
    import hostile

    hostile.ordinary(base, {})
    path = base.with_suffix(suffix)
    with hostile.open_file(str(path)) as storage:
        block = hostile.read_superblock(storage)
    block[name] = value
    raw, image = bytearray(path.read_bytes()), block.encode()
    for at in (0, hostile.HALF) if block.double else (0,):
        raw[at : at + len(image)] = image
    path.write_bytes(raw)
    assert list(hostile.faults(base)) == []


# --- an inode whose owner cannot be ---------------------------------------------------------------


def with_owner(base: Path, mode: int, uid: int, gid: int) -> int:
    """A container with files a, b, c, of which b has these attributes -> where they stand."""
    with winkfs.create(base) as c:
        for name in "abc":
            c.put(name, name.encode())
    store = Store(str(base), writable=True)
    kv, form, fileid = store.kv, store.settings.form, store.new_fileid()
    data = kv.append(b"%x/D0" % fileid, b"B")
    attrs = kv.append(b"%x/A0" % fileid, ATTRS.pack(mode, uid, gid))
    body = struct.pack(">12q", 0, fileid, 1, 102, 0, 2, attrs, 0, -24, data, 0, 1)
    value = form.sum(body).to_bytes(8, "big") + body
    kv.append(b"b/I0", value.ljust(128, b"\0"))
    store.sync_data()
    store.abandon()
    return attrs


@pytest.mark.parametrize(
    "owner", [(0o600, -1, 0), (0o600, 0, 1 << 32), (-1, 0, 0), (1 << 40, 0, 0), (0o10000, 0, 0)]
)
def test_an_owner_or_mode_that_cannot_be_costs_its_file_alone(
    run: Run, owner: tuple[int, int, int]
) -> None:
    where = with_owner(Path("c"), *owner)
    done = run("ls", "c", "-l")
    assert done.status == 1 and done.out.count(b"\n") == 2
    assert done.err.count("\n") == 1 and f"at byte {where}" in done.err
    done = run("unpack", "c", "out")
    assert done.status == 1 and sorted(os.listdir("out")) == ["a", "c"]
    assert any(f"at byte {where}" in problem for problem in winkfs.verify("c").problems)
    with winkfs.open("c") as c:
        assert c.read("b") == b"B"  # the content is whole
        with pytest.raises(CorruptError, match="attributes no file has"):
            c.stat("b")


def test_extents_beyond_64_bits_are_no_inode() -> None:
    for count in (1, 100):
        form = InodeForm(True, CK_XXH3)
        pairs = [8192, (1 << 63) - 5, 7] * count
        body = struct.pack(f">{6 + len(pairs)}q", 0, 1, 7, 102, 0, count, *pairs)
        value = form.sum(body).to_bytes(8, "big") + body
        with pytest.raises(CorruptError, match="do not fit together"):
            Inode.decode(value, form, file="f", offset=1)


# --- records ---


def test_a_damaged_record_of_a_digest_set_is_a_format_error(tmp_path: Path) -> None:
    folder = results.begin(tmp_path / "d", "digests")
    digests.publish(folder, [DigestShardWriter(folder / "0").finish()], {"root": "corpus"})
    path = tmp_path / "d" / "digests.json"
    good = path.read_bytes()
    dice = random.Random(3)
    hostile = [bytes(good[:i]) + bytes([dice.randrange(128, 256)]) + good[i + 1 :] for i in
               dice.sample(range(len(good)), 60)]  # fmt: skip
    for name in ("entries", "shards"):
        for value in (None, -1, 1e400, "x", [], {}, [None], [{"contid": 1e400, "size": 1}]):
            hostile.append(json.dumps(json.loads(good) | {name: value}).encode())
    hostile.append(b"[" * 200_000)
    for raw in hostile:
        path.write_bytes(raw)
        with contextlib.suppress(FormatError, OSError), digests.open(tmp_path / "d") as found:
            assert len(found) >= 0
