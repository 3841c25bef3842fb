"""The builder of Hugging Face for stores, which passes batches of Arrow on as they are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import datasets
import pyarrow as pa
import xxhash

from winkfs.errors import need_installed
from winkfs.registry import open_silently

if TYPE_CHECKING:
    from winkfs.arrow.reading import Part

try:
    from datasets.builder import Key
except ImportError:  # before 4.5, when a key was any value
    Key = lambda shard, batch: (shard, batch)  # noqa: E731


@dataclass
class WinkConfig(datasets.BuilderConfig):  # type: ignore[misc]  # datasets is not typed for mypy
    """Configuration: the parts of the stores, and their schema.

    parts     name of a split -> its parts, each a shard of the data set
    schema    of all of them
    features  to which they are cast; None: those of the schema
    state     hash of the parts, which changes with the stores: by it the cache of Hugging Face is
              found
    """

    parts: Mapping[str, list[Part | None]] = field(default_factory=dict)
    schema: Any = None
    features: Any = None
    state: str = ""

    def create_config_id(self, config_kwargs: dict[str, Any], **more: Any) -> str:
        """Return the id of the cache. Parts are in it by their hash."""
        own = {"state": self.state, "features": config_kwargs.get("features")}
        return str(super().create_config_id(own, **more))


class WinkBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]  # the same
    """Builder of the splits of stores."""

    BUILDER_CONFIG_CLASS = WinkConfig

    def _info(self) -> Any:
        own = datasets.Features.from_arrow_schema(self.config.schema)
        return datasets.DatasetInfo(features=self.config.features or own)

    def _split_generators(self, _: Any) -> list[Any]:
        return [
            datasets.SplitGenerator(name=name, gen_kwargs={"parts": parts})
            for name, parts in self.config.parts.items()
        ]

    def _generate_shards(self, parts: list[Part | None]) -> Iterator[dict[str, Any]]:
        for number, part in enumerate(parts):
            if part is not None:
                yield {"base": part.base, "part": number}

    def _generate_tables(self, parts: list[Part | None]) -> Iterator[tuple[Any, pa.Table]]:
        for shard, part in enumerate(parts):
            for number, batch in enumerate(part.to_batches() if part is not None else ()):
                table = pa.Table.from_batches([batch])
                if self.config.features is not None:
                    table = datasets.table.table_cast(table, self.info.features.arrow_schema)
                yield Key(shard, number), table


def builder_of(
    paths: Mapping[str, str], shards: int, as_of: Any, features: Any, cache_dir: str | None,
    **options: Any,
) -> WinkBuilder:  # fmt: skip
    """Make the builder of stores, one a split.

    options  of `Reader.parts`
    raises   what opening them raises; ValueError
    """
    need_installed("winkfs.hf", "pyarrow")
    parts: dict[str, list[Any]] = {}
    schema = None
    for split, path in paths.items():
        with open_silently(path, as_of=as_of) as reader:
            found = reader.parts(shards, **options)
            mine = reader.to_batches(**options).schema
        if schema is not None and mine != schema:
            raise ValueError(f"{path}: has other columns than the splits before: name them")
        schema = mine
        parts[split] = list(found) or [None]
    try:
        state = xxhash.xxh3_128_hexdigest(pickle.dumps((parts, schema), 5))
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ValueError(
            "on_error is a function of a module, which workers find by its name"
        ) from None
    return WinkBuilder(
        cache_dir=cache_dir, dataset_name="winkfs", parts=parts, schema=schema, features=features,
        state=state,
    )  # fmt: skip
