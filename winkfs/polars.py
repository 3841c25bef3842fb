"""Polars: a lazy frame of the files of a store, which reads only what a query needs.

    import winkfs.polars
    files = winkfs.polars.scan("corpus")
    files.filter(pl.col("lang") == "de").select("path", "content").collect()

Columns that a query does not use are not read, contents above all. Filters become a `where` as far
as that has them, so that blocks of the catalog and files are left out; Polars applies them, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from winkfs.errors import need
from winkfs.names import Name, to_name, to_str
from winkfs.reader import BATCH_BYTES

if TYPE_CHECKING:
    import polars as pl

    from winkfs.registry import AsOf
    from winkfs.units import Time

SIGNS: Final = {
    "Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">=",
}  # fmt: skip
NUMBERS: Final = ("int64", "float64")
BUILT_IN: Final = {"path": "string", "size": "int64", "mtime": "timestamp", "ftype": "int64"}
MOST_WORDS: Final = 1000  # of a list in a condition
Node = dict[str, Any]


def scan(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    prefix: Name = "",
    since: Time | None = None,
    until: Time | None = None,
    as_of: AsOf | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> pl.LazyFrame:
    """Return a lazy frame of the files of a container, data set or other store.

    columns, where, prefix, since, until, batch_bytes  see `Reader.to_batches`
    as_of   of a data set, see `winkfs.open`; None: the newest state when the frame is collected,
            with the columns of now
    raises  as `winkfs.open`; ValueError; Refusal without polars. While it is collected:
            ComputeError of Polars, with the line of winkfs's own error
    cost    opens the store once now, and once for each scan of a query
    """
    need("polars", "winkfs.polars")
    import polars as pl
    from polars.io.plugins import register_io_source

    from winkfs.registry import open_silently

    options: dict[str, Any] = {
        "where": where, "prefix": prefix, "since": since, "until": until,
        "batch_bytes": batch_bytes,
    }  # fmt: skip
    base = os.path.abspath(os.fspath(path))
    with open_silently(base, as_of=as_of) as reader:
        shape = reader.to_batches(columns, **options).schema
        kinds = {**reader.columns, **BUILT_IN}
        filters = reader.takes_where
    schema = pl.DataFrame(shape.empty_table()).schema

    def read(
        wanted: list[str] | None, predicate: pl.Expr | None, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        also = condition(predicate, kinds) if predicate is not None and filters else None
        asked = " and ".join(f"({text})" for text in (where, also) if text)
        with open_silently(base, as_of=as_of) as reader:
            names = wanted if wanted is not None else list(schema)
            found = reader.to_batches(
                names or ["size"], **{**options, "where": asked or None}
            )  # a frame without columns has no rows
            for batch in found:
                frame = pl.DataFrame(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                if rows is not None:
                    frame = frame.head(rows)
                    rows -= len(frame)
                yield frame
                if rows == 0:
                    return

    return register_io_source(read, schema=schema)


# --- filters as conditions ---


def condition(predicate: pl.Expr, kinds: dict[str, str]) -> str | None:
    """Return a condition, see `container.where`, that is true where the filter is; None: there is
    none. Parts of an `and` that have none are left out.

    kinds  types of columns
    """
    try:
        node = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # the form is not a promise of Polars: without it nothing is pushed down
        return None
    found = [text for part in _parts(node) if (text := _exact(part, kinds))]
    return " and ".join(found) or None


def _parts(node: Node) -> list[Node]:
    """Return the parts of a conjunction."""
    binary = node.get("BinaryExpr", {})
    if binary.get("op") == "And":
        return _parts(binary["left"]) + _parts(binary["right"])
    return [node]


def _exact(node: Node, kinds: dict[str, str]) -> str | None:
    """Return a condition that is true, false and null where an expression is; None: none is
    known."""
    if "BinaryExpr" in node:
        return _binary(node["BinaryExpr"], kinds)
    if "Column" in node and kinds.get(node["Column"]) == "bool":
        return quoted(node["Column"])
    if "Function" in node:
        return _function(node["Function"], kinds)
    return None


def _binary(node: Node, kinds: dict[str, str]) -> str | None:
    op = node["op"]
    if op in ("And", "Or"):
        both = [_exact(node[side], kinds) for side in ("left", "right")]
        return None if None in both else f"({both[0]} {op.lower()} {both[1]})"
    if op not in SIGNS:
        return None
    for column, other, turned in (("left", "right", False), ("right", "left", True)):
        name = node[column].get("Column")
        text = _literal(node[other], kinds[name]) if name in kinds else None
        if name == "path" and text is not None:  # escaped names have another order
            text = _raw(text) if op in ("Eq", "NotEq") else None
        if text is not None:
            parts = [quoted(name), SIGNS[op], text]
            return f"({' '.join(reversed(parts) if turned else parts)})"
    return None


def _function(node: Node, kinds: dict[str, str]) -> str | None:
    first, *rest = node["input"]
    kind, which = next(iter(node["function"].items()))
    if kind == "Boolean" and which == "Not":
        inner = _exact(first, kinds)
        return inner and f"(not {inner})"
    name = first.get("Column")
    if name not in kinds:
        return None
    column, of = quoted(name), kinds[name]
    if kind == "Boolean" and which in ("IsNull", "IsNotNull"):
        return f"({column} is {'' if which == 'IsNull' else 'not '}null)"
    if kind == "Boolean" and isinstance(which, dict) and "IsBetween" in which:
        low, high = (_literal(one, of) for one in rest)
        if which["IsBetween"].get("closed") == "Both" and low and high:
            return f"({column} between {low} and {high})"
    if kind == "Boolean" and isinstance(which, dict) and "IsIn" in which:
        return _in(column, of, rest[0])
    if kind == "StringExpr" and which in ("StartsWith", "EndsWith") and of == "string":
        text = _value(rest[0])
        odd = name == "path" and (which == "EndsWith" or "\\" in str(text))
        if isinstance(text, str) and not odd:
            same = "".join(f"\\{char}" if char in "%_\\" else char for char in text)
            return f"({column} like {_text(f'{same}%' if which == 'StartsWith' else f'%{same}')})"
    return None


def _in(column: str, kind: str, node: Node) -> str | None:
    values = _value(node)
    if not isinstance(values, list) or not 0 < len(values) <= MOST_WORDS or None in values:
        return None
    texts = [written(value, kind) for value in values]
    if column == quoted("path"):
        texts = [text and _raw(text) for text in texts]
    return None if None in texts else f"({column} in ({', '.join(map(str, texts))}))"


def _literal(node: Node, kind: str) -> str | None:
    return written(_value(node), kind) if "Literal" in node else None


def _raw(text: str) -> str:
    """Return a path as the name that it stands for: see `names.to_name`."""
    return to_str(to_name(text.encode()))


def _value(node: Node) -> Any:
    """Return the value of a literal; None: it is not known."""
    import polars as pl

    if "Literal" not in node:
        return None
    try:
        found = pl.select(pl.Expr.deserialize(json.dumps(node).encode(), format="json")).to_series()
    except Exception:  # a form that this Polars does not read back
        return None
    value = found[0] if len(found) == 1 else found
    return value.to_list() if isinstance(value, pl.Series) else value


def written(value: Any, kind: str) -> str | None:
    """Return a literal of a condition for a column of this type; None: there is none."""
    if isinstance(value, bool):
        return str(value).lower() if kind == "bool" else None
    if isinstance(value, str):
        return _text(value) if kind == "string" else None
    if isinstance(value, int | float | Decimal):
        fits = kind in NUMBERS or (kind.startswith("decimal") and not isinstance(value, float))
        return str(value) if fits and math.isfinite(value) else None
    if isinstance(value, datetime):
        if kind == "timestamp" and value.tzinfo is not None:
            return _text(value.astimezone(UTC).isoformat())
        return _text(value.isoformat()) if kind == "datetime" and value.tzinfo is None else None
    if isinstance(value, date):
        return _text(value.isoformat()) if kind == "date" else None
    return None


def quoted(name: str) -> str:
    return f"`{name}`"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
