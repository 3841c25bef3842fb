"""Exports read by WebDataset and MosaicML Streaming themselves, and what these write, taken in.

`make test-tools` installs WebDataset; MosaicML Streaming runs where it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tables import COLUMNS, DOCUMENTS, SIZES, documents_in, run_program

import winkfs
from winkfs.archive.items import Note, Ratio
from winkfs.archive.packer import Packer, PackReport
from winkfs.archive.parquet import ParquetColumns
from winkfs.archive.tar import Tarball
from winkfs.samples import intake

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
WEB = """import json, warnings
import webdataset
warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the collector
found = list(webdataset.WebDataset("out-{000..002}.tar", shardshuffle=False).decode())
print(json.dumps([[row["__key__"] for row in found], sum(len(row["html"]) for row in found),
                  [row["json"]["lang"] for row in found]]))
with webdataset.ShardWriter("theirs-%03d.tar", maxcount=3, verbose=0) as writer:
    for number in range(5):
        writer.write({"__key__": f"x/{number}", "txt": f"text {number}", "json": {"n": number}})"""
MDS = """import json
import streaming
found = streaming.StreamingDataset(local="mds", shuffle=False, batch_size=1)
rows = [found[number] for number in range(len(found))]
print(json.dumps([[row["path"] for row in rows], sum(len(row["content"]) for row in rows)]))
columns = {"text": "str", "n": "int", "w": "float32"}
with streaming.MDSWriter(out="theirs", columns=columns, compression="zstd", hashes=["sha1"],
                         size_limit=200) as writer:
    for number in range(5):
        writer.write({"text": f"text {number}", "n": number, "w": number / 2})"""
NAMES = [row[0] for row in DOCUMENTS]


def test_webdataset(tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="not installed: make test-tools")
    base = documents_in(tmp_path / "c", "container")
    winkfs.export(base, webdataset=tmp_path / "out-%03d.tar", maxcount=8)
    keys, size, langs = json.loads(run_program(WEB, tmp_path))
    assert [f"{key}.html" for key in keys] == NAMES and size == SIZES
    assert langs == [(row[3] or {}).get("lang") for row in DOCUMENTS]
    notes: list[Note] = []
    with winkfs.create(tmp_path / "again") as made:
        for path in sorted(map(str, tmp_path.glob("theirs-*.tar"))):
            tar = Tarball(path, notes.append, str(tmp_path))
            source = intake.WebSamples(tar, notes.append, intake.kinds_of(tar, {}))
            Packer(made, PackReport(), notes.append, None).run(source)
        found = made.to_arrow(["path", "n", "content"]).to_pylist()
    assert found == [
        {"path": f"x/{i}.txt", "n": i, "content": b"text %d" % i} for i in range(5)
    ] and not notes  # fmt: skip


def test_mosaicml_streaming(tmp_path: Path) -> None:
    pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    base = documents_in(tmp_path / "c", "data set")
    winkfs.export(base, mds=tmp_path / "mds", maxsize=1000, columns=list(COLUMNS))
    names, size = json.loads(run_program(MDS, tmp_path).splitlines()[0])
    assert sorted(names) == NAMES and size == SIZES
    notes: list[Note] = []
    with winkfs.create(tmp_path / "again") as made:
        for shard in intake.shards_in(str(tmp_path / "theirs")):
            source = intake.MdsSamples(
                str(tmp_path / "theirs"), shard, "", notes.append, str(tmp_path), ParquetColumns(),
                Ratio(), {},
            )  # fmt: skip
            Packer(made, PackReport(), notes.append, None).run(source)
        found = made.to_arrow(["n", "w", "content"]).to_pylist()
    assert found == [{"n": i, "w": i / 2, "content": b"text %d" % i} for i in range(5)]
    assert notes == []
