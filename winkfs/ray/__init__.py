"""Ray Data: stores as a source of a Dataset, and data sets as its sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.ray.datasink import WinkDatasink as WinkDatasink
    from winkfs.ray.datasource import WinkDatasource as WinkDatasource
    from winkfs.ray.opening import read as read
    from winkfs.ray.opening import write as write

_HOMES = {
    "WinkDatasink": "datasink", "WinkDatasource": "datasource", "read": "opening",
    "write": "opening",
}  # fmt: skip
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
