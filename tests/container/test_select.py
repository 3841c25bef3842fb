"""Selection of files against a plain loop over a scan, through every index there may be."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from catalog_checks import store_of
from container_checks import VARIANTS, drop, path_of, run
from flips import flip
from stored import make

import winkfs
from winkfs import FileType
from winkfs.container.catalog import open_catalog
from winkfs.container.select import columns_at, from_catalog, select
from winkfs.container.selection import Selection
from winkfs.entry import Entry
from winkfs.names import matcher, to_bytes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_blocks")]

T0 = 1_700_000_000
NAMES = [
    *(f"dir{i % 7}/page-{i:03}.html" for i in range(150)),
    *(f"dir{i % 3}/{'long' * i}/x.txt" for i in range(20)),
    "Grüße/ä.html", "Grüße", "dir1", "dir", "a[b]c", "new\nline.html", "ÿ", "café", "\U0010ffff",
    *(raw.decode("utf-8", "surrogateescape") for raw in (b"caf\xe9.html", b"\xff\xff", b"\xa9")),
]  # fmt: skip
GLOBS = [
    "*", "*.html", "dir1/*", "dir?/page-00?.html", "*page*1*", "dir[12]/*.html", "Grüße/?.html",
    "a[[]b]c", "a[b]c", "dir1", "*\n*", "caf\udce9*", "*\udca9", "caf?.html", "x", "[!d]*", "*[",
    "dir*/*/x.txt", "*dir1*", "?", "", "di*ir1",
]  # fmt: skip


def fill(base: Path, rng: random.Random, **options: bool | int) -> None:
    with winkfs.create(base, **options) as c:
        for i, name in enumerate(NAMES):
            kind = FileType.DIR if name == "dir" else rng.choice([FileType.FILE, FileType.EXEC])
            content = b"" if kind == FileType.DIR else rng.randbytes(rng.choice([0, 1, 50, 3000]))
            c.put(name, content, T0 + i // 2, kind)
        c.delete("dir1/page-001.html")
        c.put("dir1/page-008.html", b"again", T0 + 999)


def change(base: Path) -> None:
    """What BASE.cat does not know of."""
    with winkfs.open(base, "a") as c:
        c.delete("dir2/page-002.html")
        c.put("dir2/page-009.html", b"later", T0 + 1000)
        c.put("dir2/new.html", b"new", T0 + 1001)
        if not c.ao:
            c.rename("dir3/page-003.html", "dir2/page-0021.html")


def come_to(state: str, base: Path) -> None:
    """What a catalog may be when files are selected."""
    if state == "behind":
        change(base)
    elif state == "bare":
        drop(base, ".cat")
    elif state == "damaged":
        spoil_block(base, 2)


def fit(entries: list[Entry], wanted: Selection) -> list[bytes]:
    """Names of the files, one by one."""
    globs = [matcher(glob) for glob in wanted.globs]
    return [to_bytes(entry.name) for entry in entries if fits(entry, wanted, globs)]


def fits(entry: Entry, wanted: Selection, globs: list[Callable[[str], object]]) -> bool:
    name, limits = to_bytes(entry.name), wanted
    return (
        name.startswith(limits.prefix)
        and (not globs or any(glob(entry.name) for glob in globs))
        and (limits.paths is None or name in limits.paths)
        and (limits.since is None or entry.mtime_ns >= limits.since)
        and (limits.until is None or entry.mtime_ns < limits.until)
        and (limits.min_size is None or entry.size >= limits.min_size)
        and (limits.max_size is None or entry.size <= limits.max_size)
        and (limits.ftypes is None or entry.ftype in limits.ftypes)
    )


def wishes(rng: random.Random) -> list[Selection]:
    found = [Selection(), Selection(paths=()), Selection(paths=(b"", b"no", b"x" * 70_000))]
    found += [Selection(globs=(glob,)) for glob in GLOBS]
    prefixes = [b"d", b"dir1/", b"dir2/page-00", b"nothing", "Grü".encode(), b"\xff", b"\xff\xff",
                b"\xf4\x8f\xbf\xbf", b"dir1/page-008.html", b"a\0"]  # fmt: skip
    found += [Selection(prefix=prefix) for prefix in prefixes]
    for _ in range(14):
        low = rng.choice([None, (T0 + rng.randrange(100)) * 10**9 + rng.randrange(-1, 2)])
        found.append(Selection(
            prefix=rng.choice([b"", b"", *prefixes]),
            globs=tuple(rng.sample(GLOBS, rng.choice([0, 0, 1, 2]))),
            paths=rng.choice([None, None, tuple(map(to_bytes, rng.choices(NAMES, k=30)))]),
            since=low, until=rng.choice([None, low and low + rng.randrange(40) * 10**9]),
            min_size=rng.choice([None, 0, 1, 51]), max_size=rng.choice([None, 0, 50, 10**9]),
            ftypes=rng.choice([None, frozenset({FileType.EXEC}), frozenset({102, 100})]),
        ))  # fmt: skip
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("state", ["bare", "current", "behind", "damaged"])
@pytest.mark.parametrize("variant", ["plain", "ao", "classic", "classic ao", "plain md5"])
def test_selected_are_those_that_a_loop_finds(
    variant: str, state: str, tmp_path: Path, every: Callable[[str], slice]
) -> None:
    rng, base = random.Random(variant + state), tmp_path / "c"
    fill(base, rng, **VARIANTS[variant])
    if state != "bare":
        winkfs.reindex(base)
    if state != "damaged" or not variant.startswith("classic"):
        come_to(state, base)
    with winkfs.open(base) as c:
        files = list(c.scan())
    with store_of(base) as store:
        for wanted in wishes(rng)[every("selections")]:
            names = fit(files, wanted)
            for container in (str(base), f"{base}.data", store):
                assert select(container, wanted).names == names, wanted


def spoil_block(base: Path, number: int) -> None:
    """Flip a bit in the names of a block of the catalog."""
    with winkfs.open(base) as c:
        catalog = open_catalog(c.store)
        assert catalog is not None
        pos, length, *_ = catalog.runs[0].parts[number].tolist()
        catalog.close()
    flip(path_of(base, ".cat"), pos + length - 1)


def test_blocks_of_other_times_and_sizes_are_not_read(tmp_path: Path) -> None:
    base = tmp_path / "c"
    make(base, ((f"{i:02}", b"x" * i, T0 + i) for i in range(100)))
    spoil_block(base, 10)  # 40 .. 43
    damaged = Selection(until=(T0 + 40) * 10**9 + 1)
    for wanted, numbers in (
        (Selection(until=(T0 + 40) * 10**9), range(40)),
        (Selection(since=(T0 + 50) * 10**9, min_size=60), range(60, 100)),
        (Selection(max_size=39), range(40)), (Selection(min_size=50, prefix=b"5"), range(50, 60)),
        (Selection(since=(T0 + 39) * 10**9, until=(T0 + 40) * 10**9), [39]),
        (Selection(min_size=59, max_size=60), [59, 60]),
    ):  # fmt: skip
        with store_of(base) as store:
            found = from_catalog(store, wanted, None)
        assert found is not None
        assert found.names == [b"%02d" % i for i in numbers]
    with store_of(base) as store:
        assert from_catalog(store, damaged, None) is None
        assert select(store, damaged).names == [b"%02d" % i for i in range(41)]


@pytest.mark.parametrize("state", ["bare", "current", "behind", "damaged"])
def test_files_of_positions(state: str, tmp_path: Path) -> None:
    rng, base = random.Random(state), tmp_path / "c"
    fill(base, rng, ao=True)
    come_to(state, base)
    with store_of(base) as store:
        live = store.index.positions()
        names = {pos: store.key_at(pos)[:-3] for pos in live.tolist()}
        for count in (0, 1, 30, len(live)):
            some = np.sort(rng.sample(live.tolist(), count))
            rows = columns_at(store, some.astype(np.int64))
            assert rows.pos.tolist() == some.tolist()
            assert rows.names == [names[pos] for pos in some.tolist()]


COUNT = """
import os, sys
from collections.abc import Callable
from pathlib import Path
from winkfs.container.select import select
from winkfs.container.selection import Selection
base, since, until = sys.argv[1], *map(int, sys.argv[2:])
for file in Path(base).parent.iterdir():
    with file.open("rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
def read():
    text = Path("/proc/self/io").read_text()
    return int(text.split("read_bytes: ")[1].split()[0])
before = read()
if since < until:
    print(len(select(base, Selection(since=since, until=until))))
else:
    for file in Path(base).parent.glob("*.data"):
        file.read_bytes()
    print(0)
print(read() - before)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("catalog", [False, True])
def test_a_hundredth_of_the_time_reads_two_percent_of_the_bytes(
    catalog: bool, tmp_path: Path
) -> None:
    n, base = 5000, tmp_path / "c"
    content = os.urandom(12 << 10)
    make(base, ((f"{i}", content, T0 + i) for i in range(n)), ao=True, timemp=10)
    if not catalog:
        drop(base, ".cat")
    whole = int(run(COUNT, base, "0", "0").split()[1])
    if whole < n * len(content):
        pytest.skip("this disk does not count what is read of it")
    since = (T0 + 3000) * 10**9
    found, part = map(int, run(COUNT, base, str(since), str(since + n // 100 * 10**9)).split())
    assert found == n // 100
    assert 0 < part <= whole / 50
