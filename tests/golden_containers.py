"""Recipes of the golden containers: RECIPES[name](base) -> the files that are in it.

Made with the product. The variants that it does not create by itself begin as a superblock written
here. Owners and times are given, so that the bytes do not depend on who makes them, and when.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

from golden_formats import CONTID, NOW, NOW_NS, tick

import winkfs
from winkformats.kv.superblock import KVSEQ, Superblock
from winkfs import Container, FileType, Row
from winkfs.container.catalog import DerivedCatalog
from winkfs.container.ondisk.idx import write_base
from winkfs.container.ondisk.time import TimeIndex

NANO = 10**9
T0 = 1_234_567_890 * NANO + 987_654_321
OWNER = (54_321, 54_322)


@dataclass
class File:
    """A file as it must be read. mode and owner: None where none are stored."""

    content: bytes
    mtime_ns: int
    ftype: int = FileType.FILE
    mode: int | None = None
    owner: tuple[int, int] | None = None
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


Files = dict[bytes, File]


def sync(c: Container) -> None:
    tick()
    c.sync()


def life(c: Container) -> Files:
    """Everything that a container which may change can live through."""
    block = c.superblock
    c.put("a.txt", b"hello world", mtime_ns=T0)
    c.put_many([(f"docs/{i:02}.html", b"<p>%d</p>" % i, 1_600_000_000 + i) for i in range(7)])
    c.put("program", b"#!/bin/sh\n", mtime_ns=T0, ftype=FileType.EXEC)
    c.put("docs", b"", mtime_ns=T0 + 1, ftype=FileType.DIR)
    c.put("docs/link", b"../a.txt", mtime_ns=T0 + 2, ftype=FileType.LINK)
    c.put(b"\xff\xfe odd", b"", mtime_ns=-1)
    c.put("logs/app.log", b"line 1\n", mtime_ns=T0)
    sync(c)
    files = {
        b"a.txt": File(b"replaced", T0 + NANO),
        b"docs/00.html": File(b"<p>0</p><p>more</p>", NOW_NS),
        b"docs/01.html": File(b"<p>!!!!", NOW_NS),
        b"docs/02.html": File(b"<p>2</p>".ljust(30, b"\0") + b"behind a gap", NOW_NS),
        b"docs/03.html": File(b"<p\0\0\0\0\0", NOW_NS),
        b"docs/05.html": File(b"<p>5</p>", -2 * NANO),
        b"moved/06.html": File(b"<p>6</p>", 1_600_000_006 * NANO),
        b"bin/program": File(b"#!/bin/sh\n", T0, FileType.EXEC),
        b"docs": File(b"", T0 + 1, FileType.DIR),
        b"docs/link": File(b"../a.txt", T0 + 2, FileType.LINK),
        b"\xff\xfe odd": File(b"", -1),
        b"logs/app.log": File(b"line 1\nline 2\nline 3\n", NOW_NS),
    }
    c.put("a.txt", b"replaced", mtime_ns=T0 + NANO)
    c.append("docs/00.html", b"<p>more</p>")
    c.write("docs/01.html", 3, b"!!!!")
    c.truncate("docs/01.html", 7)
    c.write("docs/02.html", 30, b"behind a gap")
    c.truncate("docs/03.html", 2)
    c.truncate("docs/03.html", 7)
    c.delete("docs/04.html")
    c.utime("docs/05.html", -2, ctime_ns=-2_000_000_000)
    c.rename("docs/06.html", "moved/06.html")
    c.rename("program", "bin/program")
    c.append("logs/app.log", b"line 2\n")
    c.append("logs/app.log", b"line 3\n")
    sync(c)
    c.write("logs/app.log", 5, b"1")
    if block.get("ATTRS"):
        c.put("private", b"secret", mtime_ns=T0, mode=0o640, uid=OWNER[0], gid=OWNER[1])
        c.setxattrs("private", {b"user.a": b"\0\1\2", b"user.empty": b""})
        xattrs = {b"user.a": b"\0\1\2", b"user.empty": b""}
        files[b"private"] = File(b"secret", T0, mode=0o640, owner=OWNER, xattrs=xattrs)
    if not block.get("MTIMENS"):
        files = {n: replace(f, mtime_ns=f.mtime_ns // NANO * NANO) for n, f in files.items()}
    return files


def put_only(c: Container) -> Files:
    """What a container without delflags can live through."""
    c.put("a", b"first", mtime_ns=T0)
    c.put_many([("b", b"second", 5), ("c", b"", -5)])
    return {b"a": File(b"first", T0), b"b": File(b"second", 5 * NANO), b"c": File(b"", -5 * NANO)}


def append_only_life(c: Container) -> Files:
    """Everything that an append-only container can live through."""
    seconds = [-61, -60, 0, 59, 60, 61, 61, 600, 605, 659, 660, 661]
    c.put_many([(f"f{i:02}", b"content %d" % i, second) for i, second in enumerate(seconds)])
    sync(c)
    files = {
        b"f%02d" % i: File(b"content %d" % i, second * NANO) for i, second in enumerate(seconds)
    }
    c.put("nano", b"between two seconds", mtime_ns=661 * NANO + 5)
    files[b"nano"] = File(b"between two seconds", 661 * NANO + 5)
    c.delete("f03")  # one that bears no time mark
    c.delete("f07")  # one that bears a mark
    del files[b"f03"], files[b"f07"]
    c.put("f01", b"again", mtime_ns=10_000 * NANO)
    files[b"f01"] = File(b"again", 10_000 * NANO)
    c.put("log", b"line 1\n", mtime_ns=10_001 * NANO)
    c.append("log", b"line 2\n")
    sync(c)
    c.put("last", b"its name changes", mtime_ns=10_002 * NANO)
    c.rename("last", "LAST")
    files[b"log"] = File(b"line 1\nline 2\n", 10_001 * NANO)
    files[b"LAST"] = File(b"its name changes", 10_002 * NANO)
    if not c.superblock.get("MTIMENS"):
        files[b"nano"].mtime_ns = 661 * NANO
    return files


def duplicates_life(c: Container) -> Files:
    """Older versions that keep their delflag 0."""
    for version in range(3):
        c.put_many([(f"n{i}", b"version %d" % version, version) for i in range(3)])
        sync(c)
    c.store.keeps_older = False  # a delete that marks the newest version only, as others have it
    c.delete("n0")
    return {b"n%d" % i: File(b"version 2", 2 * NANO) for i in (1, 2)}


def chain_life(c: Container) -> Files:
    """A file of many extents, overwritten in small pieces: inodes that build on others."""
    model = bytearray(range(256)) * 8
    c.put("file", bytes(model), mtime_ns=T0)
    c.put("other", b"plain", mtime_ns=T0)
    sync(c)
    name = "file"
    for places in (range(0, 2048, 14), [700], [3, 500, 501, 1999], [40, 41], range(0, 1000, 50)):
        for at in places:
            model[at : at + 2] = at.to_bytes(2, "big")
            c.write(name, at, at.to_bytes(2, "big"))
        sync(c)
    c.rename(name, "moved")
    c.truncate("moved", 2000)
    sync(c)
    c.append("moved", b"behind what was cut off")
    del model[2000:]
    content = bytes(model) + b"behind what was cut off"
    return {b"moved": File(content, NOW_NS), b"other": File(b"plain", T0)}


def page(number: int, size: int = 1500) -> bytes:
    """Text that others resemble, and none is equal to."""
    words = b"the one who reads this page finds %d words that all of them have".split()
    text = b" ".join(words[i * number % len(words)] for i in range(size // 3))
    return (b"<html><title>%d</title>" % number + text % ((number,) * text.count(b"%d")))[:size]


def compressed_life(c: Container) -> Files:
    """What becomes of files whose content is compressed."""
    c.put("before", page(1), mtime_ns=T0)  # without a dictionary
    c.learn([page(i) for i in range(40, 80)], 1 << 30)
    c.put_many([(f"docs/{i}.html", page(i), i) for i in range(5)])
    c.put("short", b"not smaller", mtime_ns=T0)
    c.put("large", page(7, 300_000), mtime_ns=T0)
    c.put("program", page(8), mtime_ns=T0, mode=0o755)
    c.put_rows([Row("private", page(9), T0, mode=0o640, uid=OWNER[0], gid=OWNER[1])])
    sync(c)
    files = {b"docs/%d.html" % i: File(page(i), i * NANO) for i in range(1, 5)}
    files |= {
        b"before": File(page(1), T0),
        b"short": File(b"not smaller", T0),
        b"large": File(page(7, 300_000)[:1000] + b"<p>!" + page(7, 300_000)[1004:], NOW_NS),
        b"program": File(page(8), T0, FileType.EXEC),
        b"private": File(page(9), T0, mode=0o640, owner=OWNER),
        b"docs/2.html": File(page(2) + b"more", NOW_NS),
        b"docs/3.html": File(page(3)[:700], NOW_NS),
    }
    c.write("large", 1000, b"<p>!")
    c.append("docs/2.html", b"more")
    c.truncate("docs/3.html", 700)
    c.rename("docs/0.html", "moved")
    return files | {b"moved": File(page(0), 0)}


def compressed_append_only_life(c: Container) -> Files:
    """The same in an append-only container."""
    c.put_many([(f"f{i}", page(i), i) for i in range(5)])
    sync(c)
    c.put("f1", page(11), mtime_ns=10 * NANO)
    files = {b"f%d" % i: File(page(i), i * NANO) for i in range(5)}
    return files | {b"f1": File(page(11), 10 * NANO)}


TYPES: dict[str, tuple[str, list[Any], list[bytes]]] = {  # column -> type, values, their texts
    "lang": ("string", ["de", ""], [b"de", b""]),
    "good": ("bool", [True, False], [b"true", b"false"]),
    "score": ("float64", [0.1, -math.inf], [b"0.1", b"-inf"]),
    "at": ("timestamp", [0, -1.5],
           [b"1970-01-01T00:00:00.000000Z", b"1969-12-31T23:59:58.500000Z"]),
    "day": ("date", [date(1, 1, 1), date(9999, 12, 31)], [b"0001-01-01", b"9999-12-31"]),
    "local": ("datetime", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)],
              [b"0001-01-01T00:00:00.000000", b"9999-12-31T23:59:59.999999"]),
    "price": ("decimal(18,2)", [Decimal("-0.05"), 9999999999999999],
              [b"-0.05", b"9999999999999999.00"]),
    "wide": ("decimal(38,38)", [Decimal("-0." + "9" * 38), Decimal("0." + "9" * 38)],
             [b"-0." + b"9" * 38, b"0." + b"9" * 38]),
    "tags": ("list<string>", [["a", None], []], [b'["a",null]', b"[]"]),
    "counts": ("list<int64>", [[-(1 << 63), None], []], [b"[-9223372036854775808,null]", b"[]"]),
    "vector": ("list<float64>", [[math.nan, math.inf, -0.0], [1e300]],
               [b"[NaN,Infinity,-0.0]", b"[1e+300]"]),
}  # fmt: skip


def typed_life(c: Container) -> Files:
    """Files with columns of all types, each of which is null in some of them."""
    record = " ".join(f"{name}:{kind}" for name, (kind, *_) in TYPES.items()).encode()
    c.add_columns({name: kind for name, (kind, *_) in TYPES.items()})
    files: Files = {}
    for i in range(9):
        some = {name: i % 2 for k, name in enumerate(TYPES) if (i + k) % 3}
        values = {name: TYPES[name][1][which] for name, which in some.items()}
        c.put(f"f{i}", b"%d" % i, mtime_ns=T0 + i, mode=0o640, uid=OWNER[0], gid=OWNER[1],
              columns=values)  # fmt: skip
        texts = {f"user.{name}".encode(): TYPES[name][2][which] for name, which in some.items()}
        xattrs = {b"user.winkfs_columns": record} | texts
        files[b"f%d" % i] = File(b"%d" % i, T0 + i, mode=0o640, owner=OWNER, xattrs=xattrs)
    return files


def nothing(c: Container) -> Files:
    return {}


Life = Callable[[Container], Files]


def without_catalog() -> AbstractContextManager[object]:
    """While it lasts a close writes no BASE.cat, as long ago."""
    return mock.patch.object(DerivedCatalog, "keep_up")


@contextlib.contextmanager
def without_sums() -> Iterator[None]:
    """While it lasts derived files have no checksums of their pages."""
    with (
        mock.patch("winkfs.container.store.write_base", functools.partial(write_base, sums=False)),
        mock.patch.object(TimeIndex, "write", functools.partialmethod(TimeIndex.write, sums=False)),
    ):
        yield


def created(base: Path, live: Life, **options: bool | int) -> Files:
    """A container as `winkfs.create` made it before there were checksums of pages."""
    with without_sums():
        return with_sums(base, live, **options)


def with_sums(base: Path, live: Life, *, names: bool = False, **options: bool | int | str) -> Files:
    """A container as `winkfs.create` makes it. names: with BASE.cat."""
    with without_catalog(), winkfs.create(base, **options) as c:  # type: ignore[arg-type]
        files = live(c)
        tick()
        if names:
            c.save_catalog()
    return files


def begun(base: Path, live: Life, sbsize: int, variables: dict[str, int]) -> Files:
    """A container that begins as a superblock of these variables."""
    block = Superblock.new(KVSEQ, "FSYSDATA", variables, sbsize)
    Path(f"{base}.data").write_bytes(block.encode())
    with without_catalog(), without_sums(), winkfs.open(base, "a") as c:
        files = live(c)
        tick()
    return files


CLASSIC = {
    "FILEINCR": 4194304, "SYNCSIZE": 4096, "SYNCTIME": NOW - 9, "KVDELFL": 1, "KEYREPR": 1,
    "VALREPR": 2, "ENTRIES": 0, "AENTRIES": 0, "ISZ": 128, "ITOTSZ": 0, "DTOTSZ": 0,
    "HAVEDUPS": 0, "HTALGO": 1, "CELLSZ": 1, "HTFREE": 0, "HTDEL": 1,
}  # fmt: skip
NEW = CLASSIC | {
    "HTALGO": 2, "CELLSZ": 2, "INCOMPAT": 1 | 2 | 4 | 8 | 16, "SBCKSUM": 0, "CONTID": CONTID,
    "KVCKSUM": 1, "CKALGO": 2, "MTIMENS": 1, "ATTRS": 1, "NEXTFID": 1, "PAIROFF": 1,
}  # fmt: skip
PLAIN = NEW | {"SYNCTIME": NOW}  # what containers had before they had two superblocks


def append_only(**more: int) -> dict[str, int]:
    """The same for those that only append, in the order in which they were written."""
    classic = {name: PLAIN[name] for name in CLASSIC}
    others = {name: value for name, value in PLAIN.items() if name not in {*CLASSIC, "PAIROFF"}}
    return classic | {"HAVEAO": 1, "TIMEMP": 60} | others | {"INCOMPAT": 1 | 2 | 16} | more


def less(variables: dict[str, int], *names: str, **more: int) -> dict[str, int]:
    """Some variables fewer, some others."""
    return {name: value for name, value in variables.items() if name not in names} | more


CREATED: dict[str, tuple[Life, dict[str, bool | int]]] = {
    "two": (life, {}),
    "two-htalgo1": (life, {"htalgo": 1}),
    "two-empty": (nothing, {}),
    "chains": (chain_life, {}),
    "two-ao": (append_only_life, {"ao": True}),
    "two-ao-timemp7": (append_only_life, {"ao": True, "timemp": 7, "htalgo": 3}),
    "classic": (life, {"classic": True}),
    "classic-htalgo2": (life, {"classic": True, "htalgo": 2}),
    "classic-empty": (nothing, {"classic": True}),
    "ao-classic": (append_only_life, {"ao": True, "classic": True}),
}
BEGUN: dict[str, tuple[Life, int, dict[str, int]]] = {
    "plain": (life, 4096, PLAIN),
    "plain-htalgo1": (life, 4096, less(PLAIN, HTALGO=1)),
    "plain-htalgo3": (life, 4096, less(PLAIN, HTALGO=3)),
    "plain-empty": (nothing, 4096, PLAIN),
    "ao": (append_only_life, 4096, append_only()),
    "ao-timemp7": (append_only_life, 4096, append_only(TIMEMP=7, HTALGO=3)),
    "ao-empty": (nothing, 4096, append_only()),
    "seqdb": (life, 4096, less(CLASSIC, KEYREPR=0, VALREPR=3, ISZ=512, MYVAR=-5)),
    "minimal": (life, 4096, {"KVDELFL": 1, "KEYREPR": 1, "VALREPR": 2}),
    "limited-keys": (life, 4096, less(CLASSIC, KEYREPR=459)),
    "limited-values": (life, 4096, less(NEW, KEYREPR=514, VALREPR=514)),
    "align-64": (life, 1024, less(CLASSIC, ALIGN=64, SYNCSIZE=1024)),
    "align-64-checksum": (life, 1024, less(NEW, ALIGN=64, SYNCSIZE=1024)),
    "htfree-1": (life, 4096, less(CLASSIC, HTFREE=-1, HTDEL=-2, CELLSZ=2)),
    "cellsz3": (life, 4096, less(NEW, CELLSZ=3)),
    "duplicates": (duplicates_life, 4096, less(NEW, HAVEDUPS=1)),
    "duplicates-classic": (duplicates_life, 4096, less(CLASSIC, HAVEDUPS=1)),
    "no-delflag": (put_only, 4096, less(NEW, KVDELFL=0)),
    "no-pairoff": (life, 4096, less(NEW, "PAIROFF", INCOMPAT=1 | 2 | 4 | 16)),
    "no-holes": (life, 4096, less(NEW, "PAIROFF", "ATTRS", INCOMPAT=1 | 2)),
    "seconds": (life, 4096, less(NEW, "MTIMENS", INCOMPAT=1 | 4 | 8 | 16)),
    "no-kvcksum": (life, 4096, less(NEW, "KVCKSUM", INCOMPAT=2 | 4 | 8 | 16)),
    "md5-inodes": (life, 4096, less(NEW, CKALGO=1)),
    "ao-md5": (append_only_life, 4096, less(CLASSIC, HAVEAO=1, TIMEMP=60, ISZ=256)),
}
RECIPES: dict[str, Callable[[Path], Files]] = {
    **{n: functools.partial(created, live=a, **b) for n, (a, b) in CREATED.items()},
    **{
        n: functools.partial(begun, live=a, sbsize=size, variables=b)
        for n, (a, size, b) in BEGUN.items()
    },
    "sums": functools.partial(with_sums, live=life, names=True),
    "ao-sums": functools.partial(with_sums, live=append_only_life, names=True, ao=True),
    "written": functools.partial(with_sums, live=life, names=True),
    "ao-written": functools.partial(with_sums, live=append_only_life, names=True, ao=True),
    "typed": functools.partial(with_sums, live=typed_life, names=True),
    "zstd": functools.partial(with_sums, live=compressed_life, names=True, compress="zstd"),
    "ao-zstd": functools.partial(
        with_sums, live=compressed_append_only_life, names=True, ao=True, compress="zstd:19"
    ),
}
