"""Digest sets: hashes, size, time, title and language of documents, indexed by path.

    DIR/digests.json               entries, shards: [{contid, entries, size}]; see `results`
    DIR/<job>/shard-0003.kvseq     the records of a shard; see `digestshard`
    DIR/<job>/shard-0003.hindex    hash of the path -> position

A path with the XXH3-64 S is in shard (S >> 32) * n >> 32 of n shards, so a look-up reads one shard.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from winkformats import hashing
from winkformats.errors import FormatError
from winkfs.errors import Closed, warn_of_damage
from winkfs.names import Name, to_bytes
from winkfs.results import store as results
from winkfs.results.digestshard import SUFFIXES, DigestShard
from winkfs.results.digestshard import Digest as Digest

NAME: Final = "digests"
MAX_SHARDS: Final = 1 << 16
IN_RECORD: Final = ("contid", "size", "entries")  # of a shard, in the record
LOOKUP_BATCH: Final = 1 << 14  # paths looked up at a time


def shard_of(s: Any, shards: int) -> Any:
    """Return the shard of a path from its XXH3-64: an int, or uint64[n]."""
    return (s >> 32) * shards >> 32


def shard_name(number: int) -> str:
    return f"shard-{number:04d}"


class Digests:
    """An open, immutable digest set.

    problems  a line for each damaged range of a shard without an intact index, once it is found

    cost      a shard is opened and mapped when it is first needed
    warns     DamageWarning for each new line of `problems`
    """

    def __init__(self, path: str | os.PathLike[str], *, warn: bool = True) -> None:
        """Open a digest set; warn: issue DamageWarnings. Raises NoSuchFile; FormatError."""
        folder, record = results.load(path, NAME, "digest set")
        try:
            self._ids = [
                tuple(int(shard[name]) for name in IN_RECORD) for shard in record["shards"]
            ]
            self._entries = int(record["entries"])
            if not 1 <= len(self._ids) <= MAX_SHARDS or self._entries < 0:
                raise ValueError(f"{len(self._ids)} shards, {self._entries} entries")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"{path}: the record lacks or spoils {error}: make it anew") from None
        self.path, self.record = os.fspath(path), record
        self._folder = folder
        self._shards: list[DigestShard | None] = [None] * len(self._ids)
        self.problems: list[str] = []
        self._warn = warn
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close all shards. Idempotent."""
        self._closed = True
        for shard in self._shards:
            if shard is not None:
                shard.close()
        self._shards = []

    def __len__(self) -> int:
        return self._entries

    def __contains__(self, path: Name) -> bool:
        return self.get(path) is not None

    def get(self, path: Name) -> Digest | None:
        """Return the digest of a document, None if the set has none of that path.

        raises  CorruptError: it is damaged, or not found in a shard with damaged digests; OSError
        cost    two reads, if the pages are not in the cache
        """
        key = to_bytes(path)
        s = hashing.hash_key(hashing.XXH3, key)[0]
        return self.shard(shard_of(s, len(self._ids))).get(key, s)

    def get_many(self, paths: Iterable[Name]) -> list[Digest | None]:
        """Return the digests of many documents, in the order of their paths.

        raises  as `get`; after damage use `get` to read the others
        """
        keys = _keys(list(paths))
        found: list[Digest | None] = []
        for at in range(0, len(keys), LOOKUP_BATCH):
            found += self._get_many(keys[at : at + LOOKUP_BATCH])
        return found

    def _get_many(self, keys: list[bytes]) -> list[Digest | None]:
        s, _ = hashing.hash_keys(hashing.XXH3, keys)
        numbers = shard_of(s, len(self._ids))
        order = np.argsort(numbers, kind="stable")
        found: list[Digest | None] = [None] * len(keys)
        cuts = np.flatnonzero(np.diff(numbers[order], prepend=np.uint64(MAX_SHARDS)))
        for a, b in zip(cuts.tolist(), [*cuts.tolist()[1:], len(keys)], strict=True):
            rows = order[a:b].tolist()
            shard = self.shard(int(numbers[rows[0]]))
            answers = shard.get_many([keys[row] for row in rows], s[rows])
            for row, answer in zip(rows, answers, strict=True):
                found[row] = answer
        return found

    def items(self) -> Iterator[tuple[str, Digest]]:
        """Yield all paths with their digests, shard by shard.

        raises  CorruptError, OSError after all undamaged digests
        cost    a pass over all shards, which leaves the page cache unchanged
        """
        problems: list[FormatError | OSError] = []
        for number in range(len(self._ids)):
            try:
                yield from self.shard(number).items()
            except (FormatError, OSError) as error:
                problems.append(error)
        if problems:
            raise problems[0]

    @property
    def shards(self) -> int:
        return len(self._ids)

    def index_path(self, number: int) -> Path:
        """Return the path of the hindex of a shard."""
        return self._folder / f"{shard_name(number)}.hindex"

    def shard(self, number: int) -> DigestShard:
        """Return a shard, which is opened at the first call. Raises FormatError; OSError."""
        if self._closed:
            raise Closed("the digest set is closed", self.path)
        shard = self._shards[number]
        if shard is None:
            shard = DigestShard(
                self._folder / shard_name(number), *self._ids[number], on_damage=self._note
            )
            self._shards[number] = shard
        return shard

    def _note(self, lines: list[str]) -> None:
        new = [line for line in lines if line not in self.problems]
        self.problems += new
        if self._warn:
            warn_of_damage(self.path, new)


open = Digests


def _keys(paths: list[Name]) -> list[bytes]:
    """Encode paths as they are stored."""
    try:  # one encode for all of them
        keys = "\0".join(paths).encode("utf-8", "surrogateescape").split(b"\0")  # type: ignore[arg-type]
        if len(keys) == len(paths):
            return keys
    except TypeError:  # some are bytes
        pass
    return list(map(to_bytes, paths))


def publish(folder: Path, shards: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Publish the shards in a folder of `results.begin` as the digest set.

    shards  result of each `DigestShardWriter.finish`, in the order of their numbers
    record  further fields of the JSON, such as the source
    """
    for number, shard in enumerate(shards):
        for suffix in SUFFIXES:  # each attempt of a task has written under a different name
            os.replace(
                folder / f"{shard['file']}{suffix}", folder / f"{shard_name(number)}{suffix}"
            )
    kept = [{name: shard[name] for name in sorted(IN_RECORD)} for shard in shards]
    entries = sum(shard["entries"] for shard in kept)
    results.finish(folder, NAME, record | {"entries": entries, "shards": kept})
