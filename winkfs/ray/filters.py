"""Filters of Ray Data as conditions of `where`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from winkfs.names import to_name, to_str
from winkfs.polars import BUILT_IN, MOST_WORDS, quoted, written

SIGNS: Final = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TURNED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def condition(expression: Any, columns: Mapping[str, str]) -> str | None:
    """Return a condition that is true where the filter is, maybe also elsewhere; None: there is
    none. Parts of an `and` that have none are left out.

    columns  types of the user's columns
    """
    kind, kinds = type(expression).__name__, {**columns, **BUILT_IN}
    if kind == "BinaryExpr":
        op = expression.op.value
        if op in ("and", "or"):
            both = [condition(side, columns) for side in (expression.left, expression.right)]
            found = [text for text in both if text is not None]
            if len(found) < 2 and (op == "or" or not found):
                return None
            return f"({f' {op} '.join(found)})"
        return _comparison(op, expression.left, expression.right, kinds)
    if kind == "UnaryExpr" and expression.op.value in ("is_null", "is_not_null"):
        name = _column(expression.operand, kinds)
        return name and f"({quoted(name)} {expression.op.value.replace('_', ' ')})"
    return None


def _comparison(op: str, left: Any, right: Any, kinds: Mapping[str, str]) -> str | None:
    if _column(left, kinds) is None:
        left, right, op = right, left, TURNED.get(op, op)
    name = _column(left, kinds)
    if name is None or type(right).__name__ != "LiteralExpr":
        return None
    value = right.value
    if op == "in" and isinstance(value, list | tuple) and 0 < len(value) <= MOST_WORDS:
        texts = [_text(name, each, kinds[name]) for each in value]
        return None if None in texts else f"({quoted(name)} in ({', '.join(map(str, texts))}))"
    if op not in SIGNS or (name == "path" and op not in ("eq", "ne")):  # escapes sort otherwise
        return None
    text = _text(name, value, kinds[name])
    return text and f"({quoted(name)} {SIGNS[op]} {text})"


def _column(expression: Any, kinds: Mapping[str, str]) -> str | None:
    name = getattr(expression, "name", None) if _is_column(expression) else None
    return name if name in kinds else None


def _is_column(expression: Any) -> bool:
    return type(expression).__name__ == "ColumnExpr"


def _text(name: str, value: Any, kind: str) -> str | None:
    if name == "path" and isinstance(value, str):
        value = to_str(to_name(value.encode()))
    return written(value, kind)


def columns_of(expression: Any) -> set[str]:
    """Return the columns that a filter uses."""
    if _is_column(expression):
        return {expression.name}
    found: set[str] = set()
    for each in getattr(expression, "__dict__", {}).values():
        for one in each if isinstance(each, list | tuple) else (each,):
            if hasattr(one, "to_pyarrow"):
                found |= columns_of(one)
    return found
