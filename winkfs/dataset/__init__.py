"""Data sets: a folder of containers (shards) and numbered, immutable manifests that name them.

    DIR/_winkfs/00000000000000000007.json   manifest of generation 7, see `manifest`
    DIR/_winkfs/00000000000000000007.hidden derived, see `hidden`
    DIR/JOB/NAME.data .idx .cat             the shards that the commit of JOB added
    DIR/_pending/JOB/                       being written

The newest file of a name wins: a shard of a higher rank over one of a lower. A shard is an ordinary
container and never changes once it is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.dataset.dataset import Dataset as Dataset
    from winkfs.dataset.dataset import create as create
    from winkfs.dataset.dataset import open as open
    from winkfs.dataset.manifest import is_dataset as is_dataset
    from winkfs.dataset.transaction import begin as begin

_HOMES = {
    "Dataset": "dataset",
    "begin": "transaction",
    "create": "dataset",
    "is_dataset": "manifest",
    "open": "dataset",
}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
