"""Stores as data sets of Hugging Face: `iterable` and `load_dataset`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from winkformats.disk.paths import absolute
from winkfs.errors import WinkError, need
from winkfs.names import Name
from winkfs.reader import BATCH_BYTES, need_arrow
from winkfs.units import as_int

if TYPE_CHECKING:
    import datasets

    from winkfs.arrow.reading import OnError
    from winkfs.hf.builder import WinkBuilder
    from winkfs.registry import AsOf
    from winkfs.units import Time

SHARDS: Final = 64
Paths = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]


def iterable(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    shards: int = SHARDS,
    where: str | None = None,
    prefix: Name = "",
    since: Time | None = None,
    until: Time | None = None,
    as_of: AsOf | None = None,
    batch_bytes: int = BATCH_BYTES,
    features: datasets.Features | None = None,
    on_error: OnError = "raise",
) -> datasets.IterableDataset:
    """Return the files of a store as an IterableDataset, at the state of this call.

    columns, where, prefix, since, until, batch_bytes  see `Reader.to_batches`
    shards    into how many parts they are divided, for workers, nodes and `shuffle`; fewer if there
              are fewer files
    as_of     see `winkfs.open`
    features  to which the columns are cast, such as datasets.Image() for content; None: as they are
    on_error  of a damaged file: "raise"; "skip": it is left out, with a DamageWarning; or a
              function of a module, called with a line for each, where it is read
    raises    what `winkfs.open` raises; ValueError; Refusal without datasets
    cost      positions of the files, no content. `state_dict` resumes exactly, and reads the part
              of a shard before that place again
    """
    found = _builder(
        {"train": path}, columns, shards, as_of, features, None, on_error, where=where,
        prefix=prefix, since=since, until=until, batch_bytes=batch_bytes,
    )  # fmt: skip
    return found.as_streaming_dataset(split="train")


def load_dataset(
    path: Paths,
    columns: Sequence[str] | None = None,
    *,
    split: str | None = None,
    streaming: bool = False,
    shards: int = SHARDS,
    where: str | None = None,
    prefix: Name = "",
    since: Time | None = None,
    until: Time | None = None,
    as_of: AsOf | None = None,
    batch_bytes: int = BATCH_BYTES,
    features: datasets.Features | None = None,
    num_proc: int | None = None,
    cache_dir: str | None = None,
    keep_in_memory: bool = False,
    on_error: OnError = "raise",
) -> Any:
    """Return stores as `datasets.load_dataset` returns other files.

    path       of a store; a dict of several has a split for each: {"train": .., "test": ..}
    split      one of these; None: all, in a dict ("train" if path is one)
    streaming  True: see `iterable`. False: a copy in the cache of Hugging Face, which is made once
               for each state of the stores
    num_proc   processes that make this copy; cache_dir, keep_in_memory: as there
    others     see `iterable`
    raises     as `iterable`; CorruptError, if the copy meets damage
    """
    paths = dict(path) if isinstance(path, Mapping) else {"train": path}
    found = _builder(
        paths, columns, shards, as_of, features, cache_dir, on_error, where=where, prefix=prefix,
        since=since, until=until, batch_bytes=batch_bytes,
    )  # fmt: skip
    asked = {word.partition("[")[0] for word in (split or "all").split("+")}
    if missing := asked - {*paths, "all"}:
        raise ValueError(f"there is no split {missing.pop()!r}: there are {', '.join(paths)}")
    if streaming:
        made = found.as_streaming_dataset(split=split)
        return made if split is not None else need("datasets", "").IterableDatasetDict(made)
    try:
        found.download_and_prepare(num_proc=num_proc)
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, WinkError):
            raise cause from None
        raise
    empty = [name for name, parts in found.config.parts.items() if parts == [None]]
    if not empty or (split is not None and split not in empty):
        return found.as_dataset(split=split, in_memory=keep_in_memory)
    made = {name: _empty(found) for name in empty}
    for name in paths.keys() - empty:
        made[name] = found.as_dataset(name, in_memory=keep_in_memory)
    return made[split] if split is not None else need("datasets", "").DatasetDict(made)


def _empty(builder: WinkBuilder) -> Any:
    """Return a Dataset without rows, which Hugging Face refuses to read from a cache."""
    import datasets

    return datasets.Dataset(builder.info.features.arrow_schema.empty_table())


def _builder(
    paths: Mapping[str, Any], columns: Sequence[str] | None, shards: int, as_of: Any, features: Any,
    cache_dir: str | None, on_error: OnError, **options: Any,
) -> WinkBuilder:  # fmt: skip
    need("datasets", "winkfs.hf", "hf")
    options["problem"] = need_arrow().problem_of(on_error)
    from winkfs.hf.builder import builder_of

    if not paths:
        raise ValueError("path has no split")
    known = {str(name): absolute(os.fspath(path)) for name, path in paths.items()}
    shards = as_int(shards, "shards", 1)
    return builder_of(known, shards, as_of, features, cache_dir, columns=columns, **options)
