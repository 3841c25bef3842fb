"""Loaders for training: rows in any order, a sampler that resumes exactly, a stream.

    Rows     the files of a store by number, for map-style loaders
    Sampler  batches of numbers in an order that a key determines; its state is one number
    Stream   the rows of a Sampler, read ahead, for iterable-style loaders

They need numpy alone; torch is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.loaders.rows import Rows as Rows
    from winkfs.loaders.sampler import Sampler as Sampler
    from winkfs.loaders.stream import Stream as Stream

_HOMES = {"Rows": "rows", "Sampler": "sampler", "Stream": "stream"}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
