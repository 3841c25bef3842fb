"""What the benchmarks share: options, a place on a real disk, timing, the page cache.

Each benchmark answers one question with one table. Rivals run in the same process or in turn with
us, so that both meet the same neighbours; a figure is the median of its runs, with the range.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import mmap
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import winkfs
from winkformats import native

Phases = dict[str, float]  # name of a part of a run -> seconds
Case = Callable[[], Phases]
PIECE: Final = 8 << 20  # bytes read at once to warm a file
MAP_SIZE: Final = 8 << 30  # bytes LMDB may grow to; costs nothing
DIR_VARIABLE: Final = "WINKFS_BENCH_DIR"
PATHS: Final = {"compiled": native.built(), "in Python": None}  # see `winkformats.native`


@dataclass(frozen=True)
class Options:
    """quick: small sizes and few runs, to see that all works; the results are not kept.

    awake   no processor sleeps during the runs
    own     the options of one benchmark alone
    """

    quick: bool
    awake: bool
    runs: int
    place: Path
    own: argparse.Namespace

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def options(
    doc: str | None,
    *,
    runs: int = 5,
    own: Callable[[argparse.ArgumentParser], object] | None = None,
) -> Options:
    """Read the command line of a benchmark with this docstring.

    own     adds the options that this benchmark has beside those of all
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, in seconds; results are not kept"
    )
    parser.add_argument("--runs", type=int, default=0, help=f"runs of each case ({runs})")
    parser.add_argument(
        "--awake", action="store_true",
        help="no processor sleeps, whichever case runs, as where neighbours keep them busy (root)",
    )  # fmt: skip
    if own:
        own(parser)
    found = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join([os.fspath(Path(sys.executable).parent),
                                          os.environ.get("PATH", os.defpath)])  # fmt: skip
    # Servers and commands start as installed ones do: of modules that were compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if found.awake:
        try:
            _keep_awake()
        except OSError as error:
            sys.exit(f"--awake: {error.filename}: {error.strerror}")
    place = Path(os.environ.get(DIR_VARIABLE, Path(__file__).parent.parent / ".bench"))
    if not place.is_dir():
        place.mkdir(parents=True)
        (place / ".gitignore").write_text("*\n")
    return Options(
        found.quick, found.awake, found.runs or (2 if found.quick else runs), place, found
    )


def _keep_awake() -> None:
    """Until this process ends: so a request to a server does not cost two wake-ups."""
    os.write(os.open("/dev/cpu_dma_latency", os.O_WRONLY), bytes(4))  # an int32: microseconds


@contextlib.contextmanager
def scratch(asked: Options) -> Iterator[Path]:
    """A directory for the files of a benchmark, gone afterwards."""
    path = Path(tempfile.mkdtemp(dir=asked.place, prefix="run-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# --- time ---


class Watch:
    """Times the parts of a run. Garbage is collected before it starts.

    `total` also notes the time on the processor, of all threads and finished children ("cpu"):
    where neighbours are busy, it tells how much of the time was waiting for them.
    """

    def __init__(self) -> None:
        self.phases: Phases = {}
        gc.collect()
        self._cpu = _cpu()
        self._last = self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        """Seconds since the last lap."""
        now = time.perf_counter()
        self.phases[name] = now - self._last
        self._last = now

    def step(self, name: str) -> None:
        """Seconds since the last step, and those on the processor, as "NAME, CPU"."""
        cpu = _cpu()
        self.phases[f"{name}, CPU"] = cpu - self._cpu
        self.lap(name)
        self._cpu = cpu

    def ready(self) -> None:
        """What follows is another step."""
        gc.collect()
        os.sync()
        self._cpu, self._last = _cpu(), time.perf_counter()

    @contextlib.contextmanager
    def of(self, name: str, count: int) -> Iterator[None]:
        """A step, which notes how many records there were, too."""
        self.ready()
        yield
        self.step(name)
        self.phases[f"{name}, count"] = count

    def total(self, name: str) -> None:
        """Seconds since the start, which also begins the next lap."""
        self._last = time.perf_counter()
        self.phases[name] = self._last - self._start
        self.phases["cpu"] = _cpu() - self._cpu


def _cpu() -> float:
    """Seconds, to the microsecond; os.times knows only hundredths."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(found.ru_utime + found.ru_stime for found in used)


def paths() -> list[str]:
    """The paths of winkfs that can be timed here, by their names in PATHS."""
    if PATHS["compiled"] is None:
        print("the compiled path was not built here: only that in Python is timed", file=sys.stderr)
    return [path for path, code in PATHS.items() if code is not None or path == "in Python"]


def on(path: str, case: Case) -> Case:
    """A case that runs on one path, here and in the programs that it starts."""

    def run() -> Phases:
        before, native.code = native.code, PATHS[path]
        os.environ[native.VARIABLE] = "1" if PATHS[path] is not None else "0"
        try:
            return case()
        finally:
            native.code = before

    return run


def interleaved(cases: Mapping[str, Case], runs: int) -> dict[str, dict[str, list[float]]]:
    """Run all cases in turn -> seconds of each run by case and phase.

    Every other round goes backwards, so that no case always follows the same one.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in cases}
    for turn in range(runs):
        for name in list(cases)[:: 1 if turn % 2 == 0 else -1]:
            for phase, seconds in cases[name]().items():
                found[name].setdefault(phase, []).append(seconds)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def best_of(*rivals: Sequence[float]) -> list[float]:
    """The fastest of several rivals, run by run."""
    return [min(run) for run in zip(*rivals, strict=True)]


# --- the page cache ---


def warm(*paths: Path) -> None:
    """Read files, so that they are in the page cache."""
    buffer = bytearray(PIECE)
    for path in paths:
        for _ in range(3):  # pages of an uncached write may leave it after the first time
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
            if resident(path) > 0.99:
                break
        _expect(path, resident(path) > 0.99, "in")


def evict(*paths: Path) -> None:
    """Take files out of the page cache, which needs no root. Nobody may have them mapped."""
    gc.collect()  # mappings of handles that were closed
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        _expect(path, resident(path) < 0.01, "out of")


def drop_caches() -> bool:
    """Empty the page cache and the caches of names and inodes -> whether we may (root)."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def forget_names() -> bool:
    """Empty the caches of names and inodes, not of pages -> whether we may (root)."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("2\n")
    except OSError:
        return False
    return True


def resident(path: Path) -> float:
    """The part of a file that is in the page cache, 0..1."""
    size = path.stat().st_size
    if size == 0:
        return 1.0
    pages = -(-size // mmap.PAGESIZE)
    vector = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), vector)
        del start  # the mapping cannot close before its last user is gone
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(path))
    return sum(page & 1 for page in vector) / pages


def _expect(path: Path, as_wanted: bool, where: str) -> None:
    if not as_wanted:
        print(f"{path.name} is not {where} the page cache: cold and warm are not told apart",
              file=sys.stderr)  # fmt: skip


# --- rivals ---


def lmdb_module() -> ModuleType:
    """LMDB, or one line that says how to get it."""
    try:
        import lmdb
    except ImportError:
        sys.exit("LMDB, the rival, is not installed: pip install 'winkfs[bench]'")
    module: ModuleType = lmdb
    return module


def write_both(place: Path, files: Collection[tuple[str, bytes]]) -> None:
    """The same files in a container, `place`/container, and an environment, `place`/lmdb."""
    with winkfs.create(place / "container") as container:
        container.put_many(files)
    environment = lmdb_module().open(os.fspath(place / "lmdb"), map_size=MAP_SIZE)
    with environment.begin(write=True) as transaction:
        for name, data in files:
            transaction.put(name.encode(), data)
    environment.close()


def container_files(base: Path) -> list[Path]:
    """The files of a container."""
    return [Path(f"{base}.data"), Path(f"{base}.idx")]
