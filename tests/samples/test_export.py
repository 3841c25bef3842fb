"""Exports as WebDataset, MDS and Parquet, read by tarfile, json and pyarrow, and taken in."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import stored
from commands import Run, run

import winkfs
import winkfs.dataset
from winkfs.archive.items import ItemSource, Note, Ratio
from winkfs.archive.packer import Packer, PackReport
from winkfs.archive.parquet import ParquetColumns
from winkfs.archive.tar import Tarball
from winkfs.samples import intake, mds, webdataset

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
__all__ = ["run"]  # a fixture
COLUMNS = {
    "lang": "string", "score": "float64", "n": "int64", "day": "date", "tags": "list<string>",
    "at": "timestamp", "price": "decimal(6,2)", "ok": "bool", "raw": "binary",
}  # fmt: skip
VALUES = {
    "lang": "dé", "score": 0.25, "n": -3, "day": datetime.date(2026, 1, 2), "tags": ["a", None],
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
    "price": decimal.Decimal("1.50"), "ok": True, "raw": b"\xff\0",
}  # fmt: skip
NAMES = [b"img/0.jpg", b"img/0.txt", b"img/1.jpg", b"odd/\xff\xfe.bin", b"x" * 300 + b".txt"]
FILES = [(name, b"\xff" + name * 3, 1_700_000_000 + i, VALUES) for i, name in enumerate(NAMES)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return stored.make(tmp_path / "c", FILES, columns=COLUMNS)


def pack(path: Path, sources: Sequence[ItemSource], notes: list[Note]) -> winkfs.Reader:
    with winkfs.create(path) as made:
        for source in sources:
            Packer(made, PackReport(), notes.append, None).run(source)
    return winkfs.open(path)


def shards(
    folder: Path, notes: list[Note], known: dict[str, str] | None = None
) -> list[ItemSource]:
    columns, below = ParquetColumns(), str(folder.parent)
    return [
        intake.MdsSamples(
            str(folder), shard, "", notes.append, below, columns, Ratio(), known or {}
        )
        for shard in intake.shards_in(str(folder))
    ]


def rows(reader: winkfs.Reader, columns: Sequence[str] = tuple(COLUMNS)) -> list[Any]:
    return reader.to_arrow(["name_raw", *columns, "content"], order="name").to_pylist()


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def test_files_of_a_stem_are_a_sample(base: Path, tmp_path: Path) -> None:
    report = winkfs.export(base, webdataset=tmp_path / "out/p-%03d.tar", maxcount=2)
    assert (report.files, report.samples, report.failed) == (5, 4, 0)
    assert [Path(path).name for path in report.shards] == ["p-000.tar", "p-001.tar"]
    found = members(tmp_path / "out/p-000.tar")
    assert list(found) == ["img/0.jpg", "img/0.txt", "img/0.json", "img/1.jpg", "img/1.json"]
    values = json.loads(found["img/0.json"])
    assert values["at"] == "2026-01-02T03:04:05.000006Z" and values["price"] == "1.50"
    found = members(tmp_path / "out/p-001.tar")
    assert next(os.fsencode(name) for name in found) == NAMES[3]


@pytest.mark.parametrize("by", ["stem", "file"])
def test_webdataset_comes_back(base: Path, tmp_path: Path, by: str) -> None:
    out = winkfs.export(base, webdataset=tmp_path / "p-%d.tar.gz", by=by, maxsize=4000).shards
    assert len(out) > 1
    notes: list[Note] = []
    sources = [
        intake.WebSamples(Tarball(path, notes.append, str(tmp_path)), notes.append, COLUMNS)
        for path in out
    ]
    with pack(tmp_path / "again", sources, notes) as again, winkfs.open(base) as old:
        assert rows(again) == rows(old)
        assert [e.mtime_ns for e in again.scan()] == [e.mtime_ns for e in old.scan()]
    assert notes == []


def test_mds_comes_back(base: Path, tmp_path: Path) -> None:
    report = winkfs.export(base, mds=tmp_path / "m", maxsize=2000)
    index = json.loads((tmp_path / "m/index.json").read_text())
    assert sum(shard["samples"] for shard in index["shards"]) == report.samples == 5
    assert len(report.shards) == len(index["shards"]) > 1
    for shard in index["shards"]:
        file = tmp_path / "m" / shard["raw_data"]["basename"]
        assert file.stat().st_size == shard["raw_data"]["bytes"] <= 2000
    notes: list[Note] = []
    sources = shards(tmp_path / "m", notes, COLUMNS)
    with pack(tmp_path / "again", sources, notes) as again, winkfs.open(base) as old:
        assert rows(again) == rows(old)
    assert notes == []


def test_parquet_has_row_groups_and_comes_back(base: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    winkfs.export(base, parquet=tmp_path / "one.parquet", row_group=1)
    with pq.ParquetFile(tmp_path / "one.parquet") as file, winkfs.open(base) as old:
        assert file.schema_arrow == old.to_batches().schema
        assert file.read().to_pylist() == old.to_arrow().to_pylist()
    assert len(winkfs.export(base, parquet=tmp_path / "many", maxcount=2).shards) == 3
    assert pq.read_table(tmp_path / "many").num_rows == 5


def test_records_are_samples(tmp_path: Path) -> None:
    from winkfs.stores import messagestore
    from winkfs.stores.messagestore import MessageStore

    messagestore.create(str(tmp_path / "box"))
    with MessageStore(str(tmp_path / "box"), "a") as box:
        box.write(b"%016d" % 1, b"hello")
    report = winkfs.export(tmp_path / "box", webdataset=tmp_path / "p.tar")
    found = members(tmp_path / "p.tar")
    content, columns = found.values()
    assert report.samples == 1 and content == b"hello" and json.loads(columns)["refs"] == 1
    assert [name.rpartition(".")[2] for name in found] == ["bin", "json"]
    assert winkfs.export(tmp_path / "box", mds=tmp_path / "m").samples == 1


def test_nulls_of_mds_are_reported(tmp_path: Path) -> None:
    stored.make(tmp_path / "c", [("a", b"1", 1, {"n": 1}), ("b", b"2")], columns={"n": "int64"})
    notes: list[Note] = []
    winkfs.export(tmp_path / "c", mds=tmp_path / "m", note=notes.append)
    assert [(note.name, note.kept, note.what) for note in notes] == [
        (b"b", True, "column n: MDS has no null, so it is 0")
    ]


def test_names_that_webdataset_cannot_hold(tmp_path: Path) -> None:
    names = ["A.X", "A.x", "__m__/a.txt", "d/.hidden", "dot.", "none"]
    stored.make(tmp_path / "c", [(name, b"1") for name in names])
    notes: list[Note] = []
    report = winkfs.export(tmp_path / "c", webdataset=tmp_path / "p.tar", note=notes.append)
    assert list(members(tmp_path / "p.tar")) == ["A.X", "none.bin"]
    assert [os.fsdecode(note.name) for note in notes] == names[1:5] and report.failed == 4
    report = winkfs.export(tmp_path / "c", webdataset=tmp_path / "q.tar", by="file")
    found = members(tmp_path / "q.tar")
    assert report.failed == 0
    assert {json.loads(found[n])["__path__"] for n in found if n.endswith("json")} == set(names)


def test_a_json_of_the_sample_stays(tmp_path: Path) -> None:
    files = [("a.json", b'{"x": 1}', 1, {"n": 5}), ("a.txt", b"t", 1, {"n": 6})]
    stored.make(tmp_path / "c", files, columns={"n": "int64"})
    notes: list[Note] = []
    winkfs.export(tmp_path / "c", webdataset=tmp_path / "p.tar", note=notes.append)
    found = members(tmp_path / "p.tar")
    assert list(found) == ["a.json", "a.txt", "a.columns.json"]
    assert found["a.columns.json"] == b'{"n": 5}'
    assert [note.name for note in notes] == [b"a.txt"] and "another value" in notes[0].what


def test_selection_and_generation(tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.add_columns({"lang": "string"})
        made.put("a/1", b"1", columns={"lang": "de"})
    with winkfs.open(tmp_path / "set") as made:
        first = made.generation
    with winkfs.open(tmp_path / "set", "a") as made:
        made.put("a/2", b"2", columns={"lang": "fr"})
        made.put("b/3", b"3", columns={"lang": "de"})
    out = tmp_path / "out"
    for number, (options, files) in enumerate((
        ({}, 3), ({"where": "lang = 'de'"}, 2), ({"prefix": "a/"}, 2), ({"as_of": first}, 1),
        ({"where": "lang = 'it'"}, 0),
    )):  # fmt: skip
        assert winkfs.export(tmp_path / "set", mds=out / f"{number}", **options).files == files
        name = out / f"{number}.parquet"
        assert winkfs.export(tmp_path / "set", parquet=name, **options).files == files
        assert len(pa.parquet.read_table(name)) == files
        name = out / f"{number}.tar"
        assert winkfs.export(tmp_path / "set", webdataset=name, **options).files == files


def test_nothing_is_replaced_without_force(base: Path, tmp_path: Path) -> None:
    for kind, out in (("webdataset", "w/p-%d.tar"), ("mds", "m"), ("parquet", "q")):
        winkfs.export(base, **{kind: tmp_path / out}, maxcount=1)  # type: ignore[arg-type]
        with pytest.raises(FileExistsError, match="--force"):
            winkfs.export(base, **{kind: tmp_path / out})  # type: ignore[arg-type]
        winkfs.export(base, **{kind: tmp_path / out}, force=True)  # type: ignore[arg-type]
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("[wmq]/*"))
    shards = ["m/index.json", "m/shard.00000.mds", "q/part-00000.parquet", "w/p-0.tar"]
    assert found == shards


def test_a_failed_export_leaves_nothing(base: Path, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    for kind, out in (("webdataset", "w/p-%d.tar"), ("mds", "m"), ("parquet", "q")):
        with pytest.raises(KeyboardInterrupt):
            winkfs.export(base, **{kind: tmp_path / out}, maxcount=1, progress=stop)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def test_a_damaged_file_costs_itself(base: Path, tmp_path: Path, run: Run) -> None:
    data = Path(f"{base}.data")
    content = data.read_bytes()
    at = content.index(b"\xff" + NAMES[2])
    data.write_bytes(content[: at + 1] + b"!" + content[at + 2 :])
    done = run("export", base, "--mds", tmp_path / "m", "--json")
    assert done.status == 1 and "img/1.jpg" in done.err
    assert json.loads(done.out)["files"] == 4 and json.loads(done.out)["failed"] == 1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--mds", "m", "--parquet", "p"], "one of --webdataset"),
        ([], "one of --webdataset"),
        (["--webdataset", "p-%06d.zip"], "ends with .tar"),
        (["--webdataset", "%d/p-%06d.tar"], "one %06d"),
        (["--webdataset", "p.tar", "--maxcount", "1"], "maxcount"),
        (["--mds", "m", "--maxsize", "5G"], "maxsize"),
        (["--mds", "c.data"], "a file is there"),
        (["--mds", "s3://b/m"], "file system"),
        (["--mds", "m", "--columns", "nope"], "no column 'nope'"),
        (["--mds", "m", "--where", "nope = 1"], "nope"),
        (["--mds", "m", "--as-of", "1"], "no generations"),
    ],
)
def test_wrong_arguments_are_one_line(
    base: Path, tmp_path: Path, options: list[str], what: str, run: Run
) -> None:
    done = run("export", base, *options)
    assert done.status in (1, 2) and what in done.err and done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


# --- samples of others ---


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_json_of_others_becomes_columns(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", {
        "0.jpg": b"J0", "0.json": b'{"label": 3, "score": 1, "tags": ["x"]}',
        "1.jpg": b"J1", "1.json": b'{"label": 4, "score": 0.5, "box": {"x": 1}}',
        "2.json": b'{"alone": 1}', "3.jpg": b"J3", "3.json": b"not json",
        "4.jpg": b"J4", "4.json": b'{"label": "five"}', "README": b"r",
    })  # fmt: skip
    notes: list[Note] = []
    tar = Tarball(str(path), notes.append, str(tmp_path))
    assert intake.kinds_of(tar, {}) == {"score": "float64", "tags": "list<string>"}
    known = {"label": "int64", "score": "float64", "tags": "list<string>"}
    with pack(tmp_path / "c", [intake.WebSamples(tar, notes.append, known)], notes) as made:
        assert list(made) == [
            "0.jpg",
            "1.jpg",
            "1.json",
            "2.json",
            "3.jpg",
            "3.json",
            "4.jpg",
            "4.json",
            "README",
        ]
        found = made.to_arrow(["path", "label", "score", "tags"], order="name").to_pylist()
        assert found[0] == {"path": "0.jpg", "label": 3, "score": 1.0, "tags": ["x"]}
        assert found[6]["label"] is None
    assert any("box" in note.what for note in notes)
    assert any("label: a value that does not fit" in note.what for note in notes)


def mds_of(folder: Path, columns: dict[str, tuple[str, int]], samples: list[list[bytes]]) -> Path:
    """Write a data set as the format's own page describes it."""
    folder.mkdir()
    found = [mds.Column(name, *columns[name]) for name in columns]
    config = json.dumps(mds.config_of(found, 1 << 26)).encode()
    body = []
    for values in samples:
        head = b"".join(len(v).to_bytes(4, "little")
                        for v, c in zip(values, found, strict=True) if not c.size)  # fmt: skip
        body.append(head + b"".join(values))
    data = mds.encode_head(list(map(len, body)), config) + b"".join(body)
    (folder / "shard.00000.mds").write_bytes(data)
    record = mds.shard_record("shard.00000.mds", len(data), len(samples), found, 1 << 26)
    (folder / "index.json").write_bytes(mds.index_text([record]))
    return folder


def test_samples_of_mds_without_a_path(tmp_path: Path) -> None:
    folder = mds_of(
        tmp_path / "m",
        {"image": ("jpeg", 0), "label": ("int", 8), "mask": ("ndarray:uint8", 0),
         "meta": ("json", 0), "size": ("int", 8), "w": ("float32", 4)},
        [[b"J", (5).to_bytes(8, "little"), b"M", b'{"a": 1}', bytes(8), b"\0\0\0\x3f"]],
    )  # fmt: skip
    notes: list[Note] = []
    with pack(tmp_path / "c", shards(folder, notes), notes) as made:
        assert dict(made.items()) == {
            "shard.00000/000000.image.jpg": b"J", "shard.00000/000000.mask.ndarray": b"M",
        }  # fmt: skip
        found = made.to_arrow(["label", "meta", "w"]).to_pylist()
        assert found == [{"label": 5, "meta": '{"a": 1}', "w": 0.5}] * 2
    assert len(notes) == 1 and "size" in notes[0].what


def test_texts_of_mds_are_files(tmp_path: Path) -> None:
    folder = mds_of(tmp_path / "m", {"text": ("str", 0)}, [[b"one"], [b"two"]])
    notes: list[Note] = []
    with pack(tmp_path / "c", shards(folder, notes), notes) as made:
        assert dict(made.items()) == {
            "shard.00000/000000.txt": b"one", "shard.00000/000001.txt": b"two"
        }  # fmt: skip


def damaged(folder: Path, what: str) -> None:
    shard, index = folder / "shard.00000.mds", folder / "index.json"
    record = json.loads(index.read_text())
    first = record["shards"][0]
    if what == "cut":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif what == "missing":
        shard.unlink()
    elif what == "hash":
        first["raw_data"]["hashes"] = {"sha1": "00"}
    elif what == "count":
        first["samples"] = 1 << 31
    elif what == "offsets":
        data = bytearray(shard.read_bytes())
        data[8:12] = b"\xff\xff\xff\xff"
        shard.write_bytes(data)
    elif what == "bomb":
        shard.unlink()
        import zlib

        deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
        packed = deflate.compress(bytes(1 << 20)) + deflate.flush()
        (folder / "shard.00000.mds.gz").write_bytes(packed)
        first["zip_data"] = {"basename": "shard.00000.mds.gz", "bytes": len(packed), "hashes": {}}
        first["compression"] = "gz"
    index.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("what", "line", "left"),
    [
        ("cut", "cut", 1), ("missing", "missing", 0), ("hash", "its sha1", 0),
        ("count", "samples", 0), ("offsets", "offsets", 0), ("bomb", "unpacks to more", 0),
    ],
)  # fmt: skip
def test_damage_of_mds(tmp_path: Path, what: str, line: str, left: int) -> None:
    folder = mds_of(tmp_path / "m", {"data": ("bytes", 0)}, [[b"one"], [b"two"]])
    damaged(folder, what)
    notes: list[Note] = []
    found: list[Any] = []
    try:
        for source in shards(folder, notes):
            found += source.items(by_mtime=False)
    except winkfs.FormatError as error:
        notes.append(Note(b"", str(error), True))
    assert len(found) == left and any(line in note.what for note in notes)
    assert all("\n" not in note.what for note in notes)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"column_encodings": ["nope"]}, "no known encoding"),
        ({"format": "csv"}, "only mds is known"),
        ({"raw_data": {"basename": "../x", "bytes": 1}}, "outside"),
        ({"samples": "many"}, "not an index"),
        ({"column_names": []}, "not an index"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    folder = mds_of(tmp_path / "m", {"data": ("bytes", 0)}, [[b"one"]])
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= change
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(winkfs.FormatError, match=line) as caught:
        intake.shards_in(str(folder))
    assert "\n" not in str(caught.value)


def packed_by(codec: str, data: bytes) -> bytes:
    if codec == "zstd":
        zstd = pytest.importorskip("zstandard")
        return bytes(zstd.compress(data))
    if codec in ("gz", "bz2"):
        return gzip.compress(data) if codec == "gz" else bz2.compress(data)
    return bytes(pa.compress(data, codec={"br": "brotli"}.get(codec, codec), asbytes=True))


@pytest.mark.parametrize("codec", ["zstd:7", "gz", "bz2:9", "br:3", "snappy", "lz4"])
def test_compressed_shards(tmp_path: Path, codec: str) -> None:
    folder = mds_of(tmp_path / "m", {"data": ("bytes", 0)}, [[b"one"]])
    shard, record = folder / "shard.00000.mds", json.loads((folder / "index.json").read_text())
    kind = codec.partition(":")[0]
    packed = packed_by(kind, shard.read_bytes())
    other = folder / f"shard.00000.mds.{kind}"
    other.write_bytes(packed)
    shard.unlink()
    file = {"basename": other.name, "bytes": len(packed), "hashes": {}}
    record["shards"][0] |= {"zip_data": file, "compression": codec}
    (folder / "index.json").write_text(json.dumps(record))

    def read() -> list[Any]:
        return [item.data for each in shards(folder, []) for item in each.items(by_mtime=False)]  # type: ignore[union-attr]

    if codec == "lz4":
        with pytest.raises(winkfs.FormatError, match="compressed by lz4"):
            read()
        return
    assert read() == [b"one"]
    other.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(winkfs.FormatError) as caught:
        read()
    assert "\n" not in str(caught.value)


def test_brace_lists() -> None:
    assert webdataset.brace_list("{a,b}-{08..10}.tar") == [
        "a-08.tar", "a-09.tar", "a-10.tar", "b-08.tar", "b-09.tar", "b-10.tar"
    ]  # fmt: skip
    assert webdataset.brace_list("{a}.tar") == ["{a}.tar"]
    with pytest.raises(ValueError, match="ends before"):
        webdataset.brace_list("{3..1}.tar")
