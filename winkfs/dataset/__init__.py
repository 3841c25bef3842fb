"""Data sets: a folder of containers (shards) and numbered, immutable manifests that name them.

    DIR/_winkfs/00000000000000000007.json   manifest of generation 7, see `manifest`
    DIR/_winkfs/00000000000000000007.hidden derived, see `hidden`
    DIR/JOB/NAME.data .idx .cat             the shards that the commit of JOB added
    DIR/_pending/JOB/                       shards of a job that is not committed

Of several files with one name, that of the shard with the highest rank wins. A shard is an ordinary
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
