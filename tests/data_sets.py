"""Data sets for tests, made shard by shard."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import stored
import xxhash
from constants import shrink

import winkfs
import winkfs.dataset
from winkfs.dataset.manifest import create
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.transaction import Transaction, begin

Files = Mapping[str | bytes, bytes]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A data set without files."""
    return create(tmp_path / "ds").root


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fourth manifest is a checkpoint, and no other, however short they are."""
    shrink(monkeypatch, "a data set", each=4, short=0)


def add(root: str | Path, *shards: Files, operation: str = "append", **settings: Any) -> int:
    """Commit containers with these files -> the generation."""
    fills = [lambda container, files=files: container.put_many(files.items()) for files in shards]
    return commit(root, fills, operation=operation, **settings)


def put(root: str | Path, files: Files | Iterable[Any], **settings: Any) -> None:
    """Put files, or rows as `put_many` takes them, by a writer, which makes the data set if it is
    missing."""
    with winkfs.dataset.create(root, **settings) as opened:
        opened.put_many(files.items() if isinstance(files, Mapping) else files)


def commit(
    root: str | Path, fills: Iterable[Any], *, operation: str = "append", removed: Any = None,
    **settings: Any,
) -> int:  # fmt: skip
    """Commit a container for each function that fills one -> the generation."""
    job = begin(root, operation)
    records = []
    for number, fill in enumerate(fills):
        base = job.attempt(f"{number:05}-0")
        with winkfs.create(base, **settings) as container:
            fill(container)
        records.append(job.seal(base))
    return job.commit(records, removed=removed)


def sealed(
    job: Transaction, files: Files, attempt: str = "00000-0", **settings: Any
) -> ShardRecord:
    """Make a container of a job and seal it -> its record, to be committed."""
    return job.seal(str(stored.make(job.attempt(attempt), files, **settings)))


def begun(root: str | Path, files: Files, **how: Any) -> tuple[Transaction, ShardRecord]:
    """Begin a job and seal a container of it -> the job, and the record that it may commit."""
    job = begin(root, **how)
    return job, sealed(job, files)


def delete(root: str | Path, *names: str) -> int:
    """Commit a shard that deletes these names -> the generation."""
    job = begin(root)
    base = job.attempt("00000-0")
    with winkfs.create(base) as container:
        container.put_many((name, b"") for name in names)
        container.sync()
        tombs_at = container.store.kv.end
        for name in names:
            container.delete(name)
    return job.commit([job.seal(base, tombs_at)])


CALLS = ("replace", "link", "unlink", "fsync", "fdatasync", "rmdir", "open", "mkdir", "pwritev")
NEED_ROOM = ("replace", "link", "fsync", "fdatasync", "mkdir", "pwritev")


def crash_after(
    patch: Any,
    number: int,
    what: Callable[[], BaseException],
    calls: Iterable[str] = CALLS,
) -> None:
    """After `number` calls to the disk by way of `os`, all of them raise what `what` gives."""
    done = 0

    def wrapped(call: Any) -> Any:
        def counting(*args: Any, **settings: Any) -> Any:
            nonlocal done
            done += 1
            if done > number:
                raise what()
            return call(*args, **settings)

        return counting

    for name in calls:
        patch.setattr(os, name, wrapped(getattr(os, name)))


def manifest(root: str | Path, number: int) -> Any:
    """Return what a manifest has."""
    return json.loads(Path(f"{root}/_winkfs/{number:020}.json").read_bytes())


def forge(root: str | Path, number: int, change: Callable[[Any], None]) -> None:
    """Change what a manifest says, and give it the checksum of that."""
    path = Path(f"{root}/_winkfs/{number:020}.json")
    values = manifest(root, number)
    del values["xxh3"]
    change(values)
    path.write_bytes(signed(json.dumps(values, separators=(",", ":"))[:-1].encode()))
    path.with_suffix(".copy").unlink(missing_ok=True)


def signed(text: bytes) -> bytes:
    """A manifest of this text, which lacks its last brace."""
    return text + b',"xxh3":"%016x"}\n' % xxhash.xxh3_64_intdigest(text)
