"""zarr: arrays in a store, and references to bytes of its files, as kerchunk writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import stored
from marks import only_with
from tables import run_program

import winkfs
import winkfs.dataset

only_with("zarr")
pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
WRITE = """import numpy as np, winkfs, zarr
cube = np.arange(10_000, dtype="i4").reshape(100, 100)
with winkfs.fs(STORE, "a") as fs:
    with fs.transaction:
        group = zarr.open_group(fs.get_mapper("a.zarr"), mode="w")
        group.create_array("x", data=cube, chunks=(10, 10))
        group.attrs["unit"] = "K"
    with fs.transaction:
        group["x"][:10, :10] = -1
    zarr.save_array(zarr.storage.FsspecStore.from_mapper(fs.get_mapper("b.zarr")), cube[:2])
array = zarr.open_array("wink://c.zarr::PATH", mode="w", shape=(10,), chunks=(5,), dtype="i4",
                        storage_options={"wink": {"mode": "a"}})
array[:] = 7
array.store.fs.sync_fs.close()"""
READ = """import numpy as np, pickle, winkfs, zarr
cube = np.arange(10_000, dtype="i4").reshape(100, 100)
cube[:10, :10] = -1
with winkfs.fs(STORE) as fs:
    group = zarr.open_group(fs.get_mapper("a.zarr"), mode="r")
    assert (group["x"][:] == cube).all() and group.attrs["unit"] == "K"
    saved = zarr.open_array(fs.get_mapper("b.zarr"), mode="r")[:]
    assert (saved == np.arange(200).reshape(2, 100)).all()
for form in ("PATH", "file://PATH"):
    group = zarr.open(f"wink://a.zarr::{form}", mode="r")
    assert (group["x"][5:15, ::7] == cube[5:15, ::7]).all()
    assert (pickle.loads(pickle.dumps(group["x"]))[50] == cube[50]).all()
assert (zarr.open_array("wink://c.zarr::PATH", mode="r")[:] == 7).all()
try:
    zarr.open_array("wink://none.zarr::PATH", mode="r")
except FileNotFoundError:
    print("there is none")"""
REFERENCES = """import fsspec, json, numpy as np, zarr
meta = {"shape": [4], "chunks": [2], "dtype": "<i4", "compressor": None, "filters": None,
        "fill_value": 0, "order": "C", "zarr_format": 2}
refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(meta),
        "x/0": ["wink://raw.bin", 4, 8], "x/1": ["raw.bin", 20, 8]}
fs = fsspec.filesystem("reference", fo={"version": 1, "refs": refs}, remote_protocol="wink",
                       remote_options={"fo": "PATH"}, asynchronous=False)
print(fs.cat("x/0") == np.array([1, 2], "i4").tobytes())
print(zarr.open_group(fs.get_mapper(), mode="r", zarr_format=2)["x"][:].tolist())"""


@pytest.mark.long
def test_arrays_in_a_store(tmp_path: Path) -> None:
    stores = [stored.make(tmp_path / "container"), tmp_path / "data set"]
    winkfs.dataset.create(stores[1]).close()
    for_each(stores, WRITE)
    for store in stores:
        with winkfs.open(store) as c:
            assert c.exists("a.zarr/x/c/9/9") and c.exists("b.zarr/zarr.json")
    with winkfs.open(stores[1], as_of=1) as first, winkfs.open(stores[1]) as last:
        name = "a.zarr/x/c/0/0"
        assert first.read(name) != last.read(name)
    assert for_each(stores, READ) == "there is none\n" * 2


def for_each(stores: list[Path], code: str) -> str:
    """Run a program with the path of each store, in one process."""
    parts = [code.replace("PATH", str(store)).replace("STORE", repr(str(store)))
             for store in stores]  # fmt: skip
    return run_program("\n".join(parts), stores[0].parent)


def test_references_into_a_store(tmp_path: Path) -> None:
    numbers = b"".join(n.to_bytes(4, "little") for n in range(8))
    base = stored.make(tmp_path / "store", {"raw.bin": numbers})
    found = run_program(REFERENCES.replace("PATH", str(base)), tmp_path)
    assert found == "True\n[1, 2, 5, 6]\n"
