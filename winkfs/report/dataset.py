"""Facts of a data set: those of its files, its shards with their waste, and its generations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from winkformats.errors import CorruptError, FormatError
from winkfs.container.container import Container
from winkfs.container.verify import EXACT_BYTES
from winkfs.dataset.compaction import dead_bytes, live_bytes
from winkfs.dataset.manifest import Log
from winkfs.dataset.records import Manifest
from winkfs.dataset.shard import Shard
from winkfs.dataset.snapshot import snapshot_of
from winkfs.dataset.verify import info
from winkfs.errors import StalePlan
from winkfs.report.container import Rows, columns_of
from winkfs.report.totals import ColumnTotals, FileTotals, Record
from winkfs.tables import tables
from winkfs.units import NANO, time_text

GENERATIONS: Final = 1000  # that are listed, the newest ones
Progress = Callable[[int], None]


def facts(root: str, now: int, progress: Progress) -> Record:
    """Return the facts of a data set, see `report.facts.gather`.

    cost  the catalog of each shard; of compressed shards with dead entries one pass over the data
          file, if that is not large
    """
    known = info(root)
    problems: list[str] = known.pop("problems", [])
    log = Log(root)
    seen = snapshot_of(log, log.shown())
    totals, shards, whole = FileTotals(now), list[Record](), True
    columns = {name: ColumnTotals(kind) for name, kind in seen.columns.items()}
    for shard in seen.shards:
        try:
            shard.must_open()
            shards.append(_shard(shard))
            whole = _add(shard, totals, columns, problems, progress) and whole
        except (FormatError, StalePlan, OSError) as error:
            problems.append(str(error))
    found = {"info": known, **totals.record(stored=whole), "shards": shards}
    found |= {"columns": [one.record(name) for name, one in columns.items()]} if columns else {}
    found["generations"] = _generations(log, problems)
    problems += [problem for problem in log.problems if problem not in problems]
    return found | {"problems": problems}


def _shard(shard: Shard) -> Record:
    """Return the facts of a shard. waste: bytes that a compaction would reclaim, about."""
    record = shard.record
    dead = None
    if not record.compress or record.size <= EXACT_BYTES:
        dead = dead_bytes(shard)
    return {
        "path": record.path, "bytes": record.size, "files": record.files,
        "hidden": len(shard.hidden), "tombstones": record.tombstones, "content": record.content,
        "dead": dead, "waste": record.size - live_bytes(shard, dead or 0),
        "compress": record.compress or None,
    }  # fmt: skip


def _add(
    shard: Shard, totals: FileTotals, columns: dict[str, ColumnTotals], problems: list[str],
    progress: Progress,
) -> bool:  # fmt: skip
    """Add the visible files of a shard -> whether their stored sizes are known."""

    def damaged(error: CorruptError) -> None:
        problems.append(str(error))

    with Container(shard.base, "r") as container:
        shard.check(container.store)
        rows = Rows(container.store)
        for table in tables(container, problem=damaged):
            seen = table.visible(shard.hidden, include_dirs=True)
            rows.add(*totals.add(seen))
            progress(len(table))
        totals.add_stored(*rows.stored())
        if columns and container.store.schema:
            columns_of(container, rows.positions, columns)
        for one in columns.keys() - container.store.schema.keys():
            columns[one].nulls += len(rows.positions)
        return rows.whole


def _generations(log: Log, problems: list[str]) -> list[Record]:
    """Return the kept generations, the newest first."""
    found = []
    for (generation, manifest), _ in zip(log.history(), range(GENERATIONS), strict=False):
        if isinstance(manifest, FormatError):
            problems.append(str(manifest))
            found.append({"generation": generation, "damaged": str(manifest)})
        else:
            found.append(_generation(manifest))
    return found


def _generation(manifest: Manifest) -> Record:
    return {
        "generation": manifest.generation, "time": time_text(manifest.time_ns // NANO),
        "operation": manifest.operation, "added": len(manifest.added),
        "removed": len(manifest.removed), "files": sum(one.files for one in manifest.added),
        "bytes": sum(one.size for one in manifest.added),
    }  # fmt: skip
