"""Names of a package that are imported on first use: `winkfs --help` must not wait for numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    namespace  its `globals()`, where what was asked for stays
    homes      name -> the module of the package that has it
    """

    def find(name: str) -> Any:
        package = namespace["__name__"]
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        namespace[name] = value
        return value

    return find
