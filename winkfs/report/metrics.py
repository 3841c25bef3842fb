"""Metrics of mounts and stores in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from winkfs.report.records import depths
from winkfs.stores.ledgerq.queue import Queue
from winkfs.units import NANO, parse_iso

GAUGE, COUNTER = "gauge", "counter"
FAMILIES: Final = {  # name without winkfs_ -> (type, help)
    "mount_serving": (GAUGE, "1 if the server of the mount answers and its last sync succeeded."),
    "mount_start_time_seconds": (GAUGE, "When the mount began, seconds since the epoch."),
    "mount_files": (GAUGE, "Files of the mount."),
    "mount_bytes": (GAUGE, "Bytes of the files of the mount."),
    "mount_container_bytes": (GAUGE, "Bytes of the data files behind the mount."),
    "mount_open_files": (GAUGE, "Open files of the mount."),
    "mount_waiting_bytes": (GAUGE, "Written bytes that the server has not passed on."),
    "mount_unsynced_bytes": (GAUGE, "Bytes that a power cut would lose."),
    "mount_unsynced_age_seconds": (GAUGE, "Age of the oldest change that is not synced, or 0."),
    "mount_clamped_times_total": (
        COUNTER,
        "Times outside the years 1677 to 2262, since the start.",
    ),
    "mount_generation": (GAUGE, "Generation of the data set that the mount shows."),
    "mount_shards": (GAUGE, "Shards of the data set that the mount shows."),
    "mount_broken_shards": (GAUGE, "Shards of the mount that cannot be read."),
    "container_files": (GAUGE, "Files of the container."),
    "container_content_bytes": (GAUGE, "Bytes of the files of the container."),
    "container_live_bytes": (GAUGE, "Bytes of live entries of the data file, about."),
    "container_dead_bytes": (GAUGE, "Bytes that a compaction would reclaim, about."),
    "container_entries": (GAUGE, "Entries of the data file, dead ones too."),
    "container_live_entries": (GAUGE, "Live entries of the data file."),
    "dataset_generation": (GAUGE, "Newest generation of the data set."),
    "dataset_commit_time_seconds": (GAUGE, "When it was committed, seconds since the epoch."),
    "dataset_files": (GAUGE, "Visible files of the data set."),
    "dataset_hidden_files": (GAUGE, "Files that newer shards replace or delete."),
    "dataset_tombstones": (GAUGE, "Names that shards delete from older ones."),
    "dataset_shards": (GAUGE, "Shards of the data set."),
    "dataset_shard_bytes": (GAUGE, "Bytes of the shards."),
    "dataset_shard_content_bytes": (GAUGE, "Bytes of the files of the shards, hidden ones too."),
    "dataset_unpublished_jobs": (GAUGE, "Jobs that have written shards and not committed them."),
    "queue_waiting_messages": (GAUGE, "Messages that a consumer has not taken, expired ones too."),
    "queue_oldest_age_seconds": (GAUGE, "Age of the oldest message that waits, or 0."),
    "queue_unacknowledged_messages": (GAUGE, "Messages that were taken and not acknowledged."),
    "queue_oldest_unacknowledged_age_seconds": (GAUGE, "Age of the oldest one of them, or 0."),
    "queue_pushed_messages_total": (COUNTER, "Messages that were ever pushed."),
    "queue_messages": (GAUGE, "Messages in the files of the queue, consumed ones too."),
    "queue_segments": (GAUGE, "Files of messages of the queue."),
    "queue_disk_bytes": (GAUGE, "Bytes of these files."),
    "queue_retrying_messages": (GAUGE, "Messages that have failed and come again."),
    "queue_removable_segments": (GAUGE, "Files of messages that all consumers have read."),
    "store_records": (GAUGE, "Records of the store that are live or unread."),
    "store_bytes": (GAUGE, "Bytes of these records."),
    "store_disk_bytes": (GAUGE, "Bytes of the files of the store."),
    "store_dead_bytes": (GAUGE, "Bytes of removed records."),
    "store_segments": (GAUGE, "Files of the store."),
    "store_files_to_compact": (GAUGE, "Files that a compaction would rewrite."),
    "store_index_memory_bytes": (GAUGE, "Memory of the index."),
    "store_problems": (GAUGE, "Damaged places that were found when the store was opened."),
    "ring_pages": (GAUGE, "Pages of the ring buffer."),
    "ring_overwritten_records_total": (COUNTER, "Records that were overwritten before a pop."),
    "ring_written_bytes_total": (COUNTER, "Bytes that were ever written to the ring buffer."),
    "ring_record_bytes_total": (COUNTER, "Bytes of the records among them."),
}
RENAMED: Final = {  # facts of stores of records -> metric
    "bytes": "store_bytes", "disk_bytes": "store_disk_bytes", "file_bytes": "store_disk_bytes",
    "dead_bytes": "store_dead_bytes", "segments": "store_segments", "files": "store_segments",
    "to_compact": "store_files_to_compact", "index_memory": "store_index_memory_bytes",
    "memory": "store_index_memory_bytes", "page_count": "ring_pages",
    "overwritten": "ring_overwritten_records_total", "written_bytes": "ring_written_bytes_total",
    "record_bytes": "ring_record_bytes_total",
}  # fmt: skip
Facts = Mapping[str, Any]


class Sample(NamedTuple):
    """A value of a metric; name: as FAMILIES has it."""

    name: str
    labels: Mapping[str, str]
    value: float


def _known(prefix: str, facts: Facts, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the facts that are numbers and have a metric of their name."""
    for key, value in facts.items():
        for name in (f"{prefix}_{key}", f"{prefix}_{key}_total"):
            if name in FAMILIES and type(value) in (int, float):
                yield Sample(name, labels, value)


def of_mount(record: Facts) -> Iterator[Sample]:
    """Yield the metrics of a mount, from what `winkfs info DIR` has."""
    labels = {"base": str(record["base"]), "directory": str(record["directory"])}
    yield Sample("mount_serving", labels, int(record["state"] == "serving"))
    yield from _known("mount", record, labels)
    if "unsynced_since" in record:
        since = record["unsynced_since"]
        age = 0 if since is None else max(time.time() - _seconds(since), 0)
        yield Sample("mount_unsynced_age_seconds", labels, round(age, 3))
    if record.get("since") is not None:
        yield Sample("mount_start_time_seconds", labels, _seconds(record["since"]))


def _seconds(text: str) -> int:
    return (parse_iso(text) or 0) // NANO


def of_container(base: str) -> Iterator[Sample]:
    """Yield the metrics of a container. Raises FormatError; OSError. Cost: that of opening it."""
    from winkfs.container.verify import info

    facts, labels = info(base, count=False), {"base": base}
    yield from _known("container", facts, labels)
    yield Sample("store_problems", labels, len(facts["problems"]))


def of_dataset(root: str) -> Iterator[Sample]:
    """Yield the metrics of a data set. Raises FormatError; OSError. Cost: reads its manifests."""
    from winkfs.dataset.verify import info

    labels, facts = {"base": root}, info(root)
    yield from _known("dataset", facts, labels)
    yield Sample("dataset_commit_time_seconds", labels, _seconds(facts["committed"]))
    yield Sample("store_problems", labels, len(facts.get("problems", ())))


def of_queue(path: str) -> Iterator[Sample]:
    """Yield the metrics of a queue, by consumer and priority. Raises OSError."""
    with Queue(path) as queue:
        stats = queue.stats()
        base = {"base": path}
        yield from _known("queue", stats, base)
        for key in ("retrying", "removable"):
            ending = "messages" if key == "retrying" else "segments"
            yield Sample(f"queue_{key}_{ending}", base, stats[key])
        yield Sample("queue_pushed_messages_total", base, queue.next_id - 1)
        yield Sample("store_problems", base, stats["problems"])
        for lane in depths(queue, time.time_ns()):
            labels = base | {"consumer": lane["consumer"], "priority": lane["priority"] or ""}
            yield Sample("queue_waiting_messages", labels, lane["waiting"])
            yield Sample("queue_unacknowledged_messages", labels, lane["unacknowledged"])
            for key in ("oldest_age", "oldest_unacknowledged_age"):
                yield Sample(f"queue_{key}_seconds", labels, lane[key] or 0)


def of_records(path: str) -> Iterator[Sample]:
    """Yield the metrics of any other store of records. Raises FormatError; OSError."""
    from winkfs.registry import kind_of

    kind = kind_of(path)[0]
    facts = kind.function("info", path)(path)
    labels = {"base": path, "kind": kind.name}
    yield Sample("store_records", labels, facts.get("records", facts.get("files", 0)))
    for key, name in RENAMED.items() if "records" in facts else [("bytes", "store_bytes")]:
        if type(facts.get(key)) in (int, float):
            yield Sample(name, labels, facts[key])
    yield Sample("store_problems", {"base": path}, len(facts.get("problems", ())))


def text(samples: Iterable[Sample]) -> str:
    """Return samples in the text format: those of a metric together, below its help and type."""
    found: dict[str, list[str]] = {}
    for name, labels, value in samples:
        words = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        found.setdefault(name, []).append(f"winkfs_{name}{{{words}}} {value}\n")
    lines = []
    for name, (kind, what) in FAMILIES.items():
        if name in found:
            head = f"# HELP winkfs_{name} {what}\n# TYPE winkfs_{name} {kind}\n"
            lines.append(head + "".join(dict.fromkeys(found[name])))
    return "".join(lines)


def _escaped(label: str) -> str:
    """Return a label between its quotes; bytes that are not UTF-8 become \\xNN."""
    text = label.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
