"""Recipes of the golden kvseq, hindex and perm files: RECIPES[name](path) -> what is in it.

Each makes one file with the product; what a reader must find there is said by hand.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from winkformats.disk.posix import FileStorage
from winkformats.hindex.hindex import HIndex
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import WRITER, text_value
from winkformats.perm import Perm

NOW = 1_700_000_000
NOW_NS = NOW * 10**9 + 123_456_789
CONTID = 0x0123_4567_89AB_CDEF
WRITTEN = ("written", "ao-written")  # containers; all others are as before 0.2.0


_clock = [NOW]


def tick() -> None:
    """The clock that gives SYNCTIME goes on: no two syncs of a container fall into one second."""
    _clock[0] += 10


@contextlib.contextmanager
def pinned(name: str) -> Iterator[None]:
    """Pin what differs from run to run, for the recipe of this name: mtimes are NOW_NS, SYNCTIME
    follows `tick`, CONTID is the one above, WRITER is 0.2.0 in those of WRITTEN, else missing."""
    _clock[0] = NOW
    written = {WRITER: text_value("0.2.0")} if name in WRITTEN else {}
    with (
        mock.patch("time.time", lambda: _clock[0] + 0.5),
        mock.patch("time.time_ns", lambda: NOW_NS),
        mock.patch("secrets.randbits", lambda _: CONTID - 1),
        mock.patch.dict("winkformats.kv.superblock.WRITTEN_BY", written, clear=True),
    ):
        yield


# --- kvseq -------------------------------------------------------------------------------------

Rows = list[tuple[bytes, bytes, bool]]  # key, value, deleted

KVSEQS: dict[str, dict[str, Any]] = {
    "new": {"sbsize": 4096},
    "variables": {"htalgo": 2, "extra": {"MYVAR": -5, "A B": 1}},
    "int8-int64": {"keyrepr": 0, "valrepr": 3, "kvcksum": 0},  # the sample of the founding document
    "int64-int8": {"keyrepr": 3, "valrepr": 0},
    "int32-int16": {"keyrepr": 2, "valrepr": 1, "kvcksum": 0},
    "fixed": {"keyrepr": 12, "valrepr": 7},
    "fixed-plain": {"keyrepr": 12, "valrepr": 12, "kvdelfl": 0, "kvcksum": 0},
    "limited": {"keyrepr": 459, "valrepr": 264},
    "limited-plain": {"keyrepr": 260, "valrepr": 514, "kvcksum": 0},
    "no-delflag": {"kvdelfl": 0},
    "align-64": {"align": 64, "sbsize": 1024},
    "align-7-plain": {"align": 7, "kvcksum": 0},
    "no-reserve": {"kvcksum": 0, "extra": {"FILEINCR": 0}},
}


def fitted(code: int, text: bytes) -> bytes:
    """`text` cut or filled up to what a representation can hold."""
    if 4 <= code < 260:
        return text[: code - 4].ljust(code - 4, b".")
    return text[: code - 259] if code >= 260 else text


def kvseq(options: dict[str, Any], path: Path) -> Rows:
    """Append, replace, delete, and a tombstone where there are delflags."""
    key = partial(fitted, options.get("keyrepr", 1))
    value = partial(fitted, options.get("valrepr", 2))
    settings = {"purpose": "GOLDEN", "contid": CONTID, "sbsize": 512, **options}
    with KVSeq.create(FileStorage(path, "x"), **settings) as kv:
        first = kv.append(key(b"alpha"), value(b"first value"))
        kv.append(key(b""), value(b""))
        kv.sync(now=NOW)
        kv.append(key(b"beta"), value(bytes(range(40))))
        kv.append(key(b"gamma"), value(b"to be deleted"))
        kv.replace(first, key(b"alphA"), value(b"FIRST VALUE"))
        rows = [(b"alphA", b"FIRST VALUE", False), (b"", b"", False)]
        rows += [(b"beta", bytes(range(40)), False), (b"gamma", b"to be deleted", False)]
        if options.get("kvdelfl", 1):
            kv.delete([entry.pos for entry in kv][3])
            kv.append(key(b"gone"), value(b""), deleted=True)
            rows[3] = (*rows[3][:2], True)
            rows.append((b"gone", b"", True))
        last = kv.append(key(b"last"), value(b"short"))
        kv.replace(last, key(b"last"), value(b"a longer last value"))
        rows.append((b"last", b"a longer last value", False))
    return [(key(k), value(v), deleted) for k, v, deleted in rows]


def kvseq_empty(path: Path) -> Rows:
    KVSeq.create(FileStorage(path, "x"), contid=CONTID, sbsize=512).close()
    return []


# --- hindex ------------------------------------------------------------------------------------


@dataclass
class Table:
    """What an hindex holds: key -> its words behind S; and the keys behind its pointers."""

    found: dict[bytes, tuple[int, tuple[int, ...]]]  # key -> (kv_pointer, the user's words)
    missing: list[bytes]


HINDEXES: dict[str, dict[str, Any]] = {
    f"htalgo{htalgo}-cellsz{cellsz}": {"htalgo": htalgo, "cellsz": cellsz}
    for htalgo in (1, 2, 3)
    for cellsz in (1, 2, 3)
}
HINDEXES["htfree-1"] = {"htalgo": 1, "cellsz": 2, "htfree": -1, "htdel": -2}
HINDEXES["htfree-1-cellsz1"] = {"htalgo": 2, "cellsz": 1, "htfree": -1, "htdel": -2}
HINDEXES["variables"] = {"sbcksum": False, "extra": {"DATAEND": 0, "SYNCTIME": 0, "X": 9}}
HINDEXES["sbsize-4096"] = {"sbsize": 4096}
LATE = (14, 17, 19, 23, 10, 21)  # keys of the grown tables that have another key's cell


def hindex(
    options: dict[str, Any], path: Path, *, htsize: int = 13, more: int = 0, seal: bool = False
) -> Table:
    """Insert, delete, insert into deleted cells."""
    keys: dict[int, bytes] = {4096 + 100 * i: b"key%d" % i for i in range(8 + more)}
    names = {key: pointer for pointer, key in keys.items()}
    extra = options.get("cellsz", 2) - 2
    words = {key: tuple(-i for i in range(1, 1 + extra)) for key in names}
    settings = {"purpose": "GOLDEN", "sbsize": 512, **options}
    index = HIndex.create(
        FileStorage(path, "x"), htsize=htsize, key_of=keys.__getitem__, **settings
    )
    with index:
        for i in range(5):
            key = b"key%d" % i
            index.insert(key, names[key], words[key])
        for key in (b"key1", b"key3"):
            index.delete(key)
        for i in [*(i for i in range(5, 8 + more) if i not in LATE), *(LATE if more else ())]:
            key = b"key%d" % i
            index.insert(key, names[key], words[key])
        index.delete(b"key6")
        (index.seal if seal else index.sync)(now=NOW)
    missing = [b"key1", b"key3", b"key6", b"never"]
    return Table({k: (p, words[k]) for k, p in names.items() if k not in missing}, missing)


# --- perm --------------------------------------------------------------------------------------


@dataclass
class Pairs:
    """What a perm holds, in its order, and the keys behind its pointers."""

    pointers: list[int]
    keys: dict[int, bytes]


PERMS: dict[str, dict[str, Any]] = {
    f"htalgo{htalgo}-htsize{htsize}": {"htalgo": htalgo, "htsize": htsize}
    for htalgo in (1, 2, 3)
    for htsize in (0, 11)
}
PERMS["no-checksum"] = {"sbcksum": False, "sbsize": 4096, "extra": {"X": 5, "DATAEND": 0}}


def perm(options: dict[str, Any], path: Path, *, order: str = "file", seal: bool = False) -> Pairs:
    """Append, append many; then in the order of the file, of the keys, or of the hashes."""
    names = [b"pear", b"apple", b"fig", b"plum", b"cherry", b"quince"]
    keys = {512 + 64 * i: name for i, name in enumerate(names)}
    settings = {"purpose": "GOLDEN", "sbsize": 512, **options}
    with Perm.create(FileStorage(path, "x"), **settings) as pairs:
        hashes = pairs.hash_keys(names).tolist()
        pairs.append(832, hashes[5])
        pairs.append_many([*list(keys)[1:5], 512], [*hashes[1:5], hashes[0]])
        if order == "keys":
            pairs.sort(key=lambda pair: keys[pair[0]])
        elif order == "hashes":
            pairs.group(lambda a, b: (keys[a[0]] > keys[b[0]]) - (keys[a[0]] < keys[b[0]]))
        (pairs.seal if seal else pairs.sync)(now=NOW)
    pointers = [832, 576, 640, 704, 768, 512]
    if order == "keys":
        pointers.sort(key=keys.__getitem__)
    elif order == "hashes":
        by_hash = dict(zip(keys, hashes, strict=True))
        pointers.sort(key=lambda pointer: (by_hash[pointer], keys[pointer]))
    return Pairs(pointers, keys)


def perm_empty(path: Path) -> Pairs:
    Perm.create(FileStorage(path, "x"), sbsize=512).close()
    return Pairs([], {})


RECIPES: dict[str, Callable[[Path], Rows | Table | Pairs]] = {
    **{f"kvseq-{name}": partial(kvseq, options) for name, options in KVSEQS.items()},
    "kvseq-empty": kvseq_empty,
    **{f"hindex-{name}": partial(hindex, options) for name, options in HINDEXES.items()},
    "hindex-grown": partial(hindex, {"htalgo": 2, "cellsz": 2}, htsize=3, more=20),
    "hindex-grown-htalgo1": partial(hindex, {"htalgo": 1, "cellsz": 3}, htsize=3, more=20),
    "hindex-sums": partial(hindex, {"extra": {"CONTID": CONTID}}, htsize=1000, seal=True),
    **{f"perm-{name}": partial(perm, options) for name, options in PERMS.items()},
    "perm-sorted": partial(perm, {}, order="keys"),
    "perm-grouped": partial(perm, {"htsize": 3}, order="hashes"),
    "perm-empty": perm_empty,
    "perm-sums": partial(perm, {"sbsize": 4096}, seal=True),
}
