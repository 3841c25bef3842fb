"""Hugging Face `datasets`: a store as an IterableDataset, or as a Dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.hf.loading import iterable as iterable
    from winkfs.hf.loading import load_dataset as load_dataset

_HOMES = {"iterable": "loading", "load_dataset": "loading"}
__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
