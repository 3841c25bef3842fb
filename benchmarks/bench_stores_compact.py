"""How fast is a message store compacted in place, and what do gaps cost in each version?

First: a store of 1 GiB, 52 of 100 messages removed, so that every segment is a candidate;
`compact`, with all its syncs, beside a copy of the same files to new ones, with fsync. Warm and
cold.

Then: one segment of either version, kept messages of 1 KiB with a removed one of each size
between them: the bytes of a segment of 16 MiB, and the same number of messages whatever the gap.
Scan and compaction with one sync and truncation, as the store does it. Last a scan of a file that
is one hole.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np
import samples
from common import Case, Options, Phases, Watch, evict, interleaved, options, scratch, warm
from report import Goal, Report, seconds

from winkformats.disk.posix import FileStorage, PosixDirectory
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.segment import ID
from winkfs.stores.messagestore.store import MessageStore, create

DEAD: Final = 52  # of 100 messages
STEP: Final = 37  # has no divisor with 100
SEGMENT: Final = 16 << 20
GAPS: Final = (1, 16, 256, 4096)  # KiB
KEPT: Final = 64  # messages, where their number is the same
VERSIONS: Final = {"v1": rdq, "v2": sqs}


def main() -> None:
    asked = options(__doc__)
    with scratch(asked) as place:
        stores(asked, place)
        gaps(asked, place)


# --- a store ---


def stores(asked: Options, place: Path) -> None:
    total = asked.size(1 << 30, 64 << 20)
    report = Report(
        asked, "stores-compact", "How fast is a message store compacted, beside a copy of it?",
        ("messages", "page cache", "compact, s (range)", "MiB/s", "copy, s (range)",
         "times as fast as a copy", "goal", "CPU, s: compact / copy"),
    )  # fmt: skip
    model = place / "model"
    for size in (samples.KIB, 64 * samples.KIB):
        half_dead(model, total // (size + sqs.HEAD.size), size)
        for cache in ("warm", "cold"):
            cases: dict[str, Case] = {
                "compact": lambda cache=cache: compacted(model, place, cache),  # type: ignore[misc]
                "copy": lambda cache=cache: copied(model, place, cache),  # type: ignore[misc]
            }
            found = interleaved(cases, asked.runs)
            report.keep(f"{size}, {cache}", found)
            ours, theirs = (found[name]["all"] for name in cases)
            times = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            cpu = " / ".join(f"{statistics.median(found[name]['cpu']):.2f}" for name in cases)
            report.row(
                f"{size // samples.KIB} KiB", cache, seconds(ours),
                f"{total / statistics.median(ours) / 2**20:,.0f}", seconds(theirs),
                f"**{times:.2f}x**", report.verdict(Goal(0.5), times), cpu,
            )  # fmt: skip
        shutil.rmtree(model)
    report.note(f"{total >> 20} MiB in segments of 16 MiB, of which {DEAD} % is dead.")
    report.finish()


def half_dead(path: Path, count: int, size: int) -> None:
    create(os.fspath(path))
    data = random.Random(samples.SEED).randbytes(2 * size)
    ids = [i.to_bytes(ID, "big") for i in range(count)]
    with MessageStore(path, "a") as store:
        store.write_many((id, data[i % size : i % size + size]) for i, id in enumerate(ids))
        store.remove_many([id for i, id in enumerate(ids) if i * STEP % 100 < DEAD])


def _segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.sqs"))


def compacted(model: Path, place: Path, cache: str) -> Phases:
    path = place / "store"
    shutil.copytree(model, path)
    os.sync()
    (warm if cache == "warm" else evict)(*_segments(path))
    with MessageStore(path, "a") as store:
        segments, before = len(store.core.segments), store.stats()["disk_bytes"]
        watch = Watch()
        done = store.compact()
        watch.total("all")
        assert done.files >= segments - 1 and not done.problems
        assert store.stats()["disk_bytes"] < 0.7 * before
    shutil.rmtree(path)
    return watch.phases


def copied(model: Path, place: Path, cache: str) -> Phases:
    path = place / "copy"
    path.mkdir()
    files = _segments(model)
    (warm if cache == "warm" else evict)(*files)
    os.sync()
    watch = Watch()
    for file in files:
        shutil.copyfile(file, path / file.name)
        with (path / file.name).open("rb") as copy:
            os.fsync(copy.fileno())
    watch.total("all")
    shutil.rmtree(path)
    return watch.phases


# --- a segment ---


def gaps(asked: Options, place: Path) -> None:
    report = Report(
        asked, "stores-gaps", "What do gaps cost when a segment is compacted, by version?",
        ("segment", "gap, KiB", "kept", "MiB", "v1: scan + compact, ms", "v2: scan + compact, ms",
         "v1, CPU ms", "v2, CPU ms", "v1, MiB written", "v2, MiB written"),
    )  # fmt: skip
    largest = 16 if asked.quick else GAPS[-1]
    for gap in [gap for gap in GAPS if gap <= largest]:
        size = (gap + 1) * samples.KIB
        shapes = {
            "16 MiB": max(SEGMENT // size, 2),
            f"{KEPT} messages": KEPT,
        }
        for shape, count in shapes.items():
            cases: dict[str, Case] = {
                name: lambda v=version, c=count, g=gap: segment(place, v, c, g)  # type: ignore[misc]
                for name, version in VERSIONS.items()
            }
            found = interleaved(cases, asked.runs)
            report.keep(f"{shape}, {gap} KiB", found)
            report.row(
                shape, str(gap), f"{count:,}", f"{count * size / 2**20:.1f}",
                *(f"{_ms(one['scan'])} + {_ms(one['compact'])}" for one in found.values()),
                *(_ms(one["cpu"]) for one in found.values()),
                *(f"{one['written'][0]:.2f}" for one in found.values()),
            )  # fmt: skip
    holes(asked, report, place)
    report.note("The file is in the page cache. compact: moves, one sync, truncation, one sync.")
    report.note("v1 fills all gaps before the last kept message with zeros; v2 writes heads.")
    report.finish()


def _ms(runs: list[float]) -> str:
    return f"{1e3 * statistics.median(runs):.2f}"


def segment(place: Path, version: ModuleType, count: int, gap: int) -> Phases:
    path = place / f"0{version.SUFFIX}"
    body = bytes(range(1, 256)) * 5
    with path.open("xb") as file:
        file.write(b"" if version is rdq else sqs.HEADER)
        for i in range(count):
            dead = body[:100] * (gap * samples.KIB // 100 + 1)
            room = gap * samples.KIB - len(version.record(bytes(ID), b""))
            file.write(version.record((2 * i).to_bytes(ID, "big"), dead[:room]))
            file.write(version.record((2 * i + 1).to_bytes(ID, "big"), body[: samples.KIB - 32]))
        file.flush()
        os.fsync(file.fileno())
    with Counted(path, "w") as storage:
        storage.read(0, path.stat().st_size)
        watch = Watch()
        messages = version.scan(storage).messages
        watch.lap("scan")
        kept = [one for one in messages if one.msg_id[-1] & 1]
        plan = version.compact(
            storage, *(np.array([one[i] for one in kept], np.int64) for i in (2, 1))
        )
        storage.sync()
        storage.truncate(plan.size)
        storage.sync()
        watch.lap("compact")
        watch.total("all")
    assert len(kept) == count
    path.unlink()
    return {**watch.phases, "written": storage.written / 2**20}


class Counted(FileStorage):
    """Counts the bytes that are written."""

    written = 0

    def write(self, offset, buffers):  # type: ignore[no-untyped-def]
        done = super().write(offset, buffers)
        self.written += done
        return done


def holes(asked: Options, report: Report, place: Path) -> None:
    """Sparse files that are one hole."""
    sizes = {"a hole of 1 MiB": 1 << 20, "a hole of 1 GiB": 1 << 30}
    for name, size in sizes.items():
        with (place / name).open("xb") as file:
            file.write(sqs.HEADER + sqs.hole(size - sqs.START))
            file.truncate(size)
    cases: dict[str, Case] = {
        name: lambda name=name: scanned(place, name)  # type: ignore[misc]
        for name in sizes
    }
    found = interleaved(cases, asked.runs)
    report.keep("holes", found)
    for name, size in sizes.items():
        runs = found[name]
        report.row(
            name, "", "0", f"{size >> 20}", "", _ms(runs["scan"]), "", _ms(runs["cpu"]), "", "0"
        )


def scanned(place: Path, name: str) -> Phases:
    with PosixDirectory(os.fspath(place)).open(name) as storage:
        watch = Watch()
        found = sqs.scan(storage)
        watch.lap("scan")
        watch.total("all")
    assert not found.rows and not found.error and found.end == (place / name).stat().st_size
    return watch.phases


if __name__ == "__main__":
    main()
