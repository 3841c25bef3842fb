"""Files of containers, data sets and stores as Arrow batches, and files that Arrow gives."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import stored
from flips import flip
from refusals import all_raise, each_raises
from seam import bytes_read, disk_calls

import winkfs
import winkfs.dataset
from winkfs.errors import Closed, CorruptError, Refusal, StalePlan
from winkfs.stores.ledgerq import Queue
from winkfs.stores.messagestore import MessageStore

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
COLUMNS = {"lang": "string", "score": "float64"}
NAMES = ["path", "size", "mtime", *COLUMNS, "content"]


def row(i: int) -> tuple[Any, ...]:
    values = {"lang": "de" if i % 3 else "en", "score": i / 10} if i % 5 else None
    return f"d{i % 7}/{i:04}", bytes([i % 251]) * (i * 7 % 900), 1_700_000_000 + i, values


def record(i: int) -> dict[str, Any]:
    name, data, mtime, values = row(i)
    values = values or dict.fromkeys(COLUMNS)
    return {"path": name, "size": len(data), "mtime": datetime.fromtimestamp(mtime, UTC),
            **values, "content": data}  # fmt: skip


RECORDS = sorted(map(record, range(300)), key=lambda found: found["path"])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return stored.make(tmp_path / "c", map(row, range(300)), columns=COLUMNS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set of three commits; files of the second one were replaced, or deleted."""
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.add_columns(COLUMNS)
        made.put_many(row(i)[:3] for i in range(100, 220))
    stored.change(tmp_path / "set", {"gone": b"soon"})
    with winkfs.open(tmp_path / "set", "a") as made:
        made.put_many(map(row, range(300)))
        made.delete("gone")
    return tmp_path / "set"


@pytest.fixture(params=["base", "root"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def opened(path: Path) -> Iterator[winkfs.Reader]:
    with winkfs.open(path) as opened:
        yield opened


def by_path(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.sort_by("path").to_pylist()
    return found


# --- all files ---


@pytest.mark.slow
@pytest.mark.parametrize("order", [None, "disk", "name"])
def test_all_files(opened: winkfs.Reader, order: Any) -> None:
    found = opened.to_arrow(order=order)
    assert found.schema.names == NAMES
    assert by_path(found) == RECORDS
    if order == "name":
        assert found.to_pylist() == RECORDS


def test_the_stream_of_arrow(opened: winkfs.Reader) -> None:
    assert by_path(pa.table(opened)) == RECORDS


def test_chosen_columns(opened: winkfs.Reader) -> None:
    found = opened.to_arrow(["score", "path"])
    assert found.schema.names == ["score", "path"]
    assert by_path(found) == [{name: r[name] for name in ("score", "path")} for r in RECORDS]
    without = opened.to_arrow(content=False)
    assert without.schema.names == NAMES[:-1] and len(without) == 300


def test_no_content_is_read_where_none_is_asked_for(base: Path) -> None:
    with winkfs.open(base) as c, disk_calls() as calls:
        assert len(c.to_arrow(["path", "lang"])) == 300
        assert bytes_read(calls, ".data") < 100_000 < sum(r["size"] for r in RECORDS)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("order", ["disk", "name"])
@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ({"where": "lang = 'de' and size > 500"}, lambda r: r["lang"] == "de" and r["size"] > 500),
        ({"where": "score is null"}, lambda r: r["score"] is None),
        ({"prefix": "d3/"}, lambda r: r["path"].startswith("d3/")),
        ({"since": 1_700_000_100}, lambda r: r["mtime"].timestamp() >= 1_700_000_100),
        ({"since": 1_700_000_010, "until": 1_700_000_020, "prefix": "d"},
         lambda r: 10 <= r["mtime"].timestamp() - 1_700_000_000 < 20),
        ({"where": "size > 5000"}, lambda r: False),
    ],
)  # fmt: skip
def test_chosen_files(opened: winkfs.Reader, choice: Any, meant: Any, order: Any) -> None:
    assert by_path(opened.to_arrow(order=order, **choice)) == list(filter(meant, RECORDS))


def test_columns_beside_the_usual_ones(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put("x", b"1", mtime_ns=1_234_567_891, mode=0o640)
        c.put(b"\xff", b"")
        c.mkdir("d")
        c.symlink("x", "l")
        names = ["path", "name_raw", "mtime_ns", "ftype", "mode", "content"]
        tables = [c.to_arrow(names, include_dirs=True)]
    with winkfs.open(tmp_path / "c") as c:
        tables += [c.to_arrow(names, include_dirs=True, order=o) for o in ("disk", "name")]
        assert c.to_arrow(["path"])["path"].to_pylist() == ["x", "\\xff"]
    for table in tables:
        found = {r["path"]: r for r in table.to_pylist()}
        assert set(found) == {"x", "\\xff", "d", "l"}
        assert found["x"] == {"path": "x", "name_raw": b"x", "mtime_ns": 1_234_567_891,
                              "ftype": 102, "mode": 0o640, "content": b"1"}  # fmt: skip
        assert (found["\\xff"]["name_raw"], found["\\xff"]["mode"]) == (b"\xff", 0o644)
        assert (found["d"]["ftype"], found["l"]["content"]) == (100, b"x")


def test_a_batch_is_as_large_as_asked_for(opened: winkfs.Reader) -> None:
    for order in ("disk", "name"):
        sizes = [
            (batch.num_rows, sum(map(len, batch["content"].to_pylist())))
            for batch in opened.to_batches(batch_bytes=2000, order=order)
        ]
        assert all(total <= 2000 or rows == 1 for rows, total in sizes)
        assert sum(rows for rows, _ in sizes) == 300 and len(sizes) > 60


def test_compressed_and_large_files(tmp_path: Path) -> None:
    files = {f"f{i}": b"same text " * 200 + bytes([i]) for i in range(40)} | {
        "big": b"ab" * 3_000_000
    }
    stored.make(tmp_path / "c", files, compress="zstd")
    with winkfs.open(tmp_path / "c", "a") as c:
        c.append("big", b"end")
    files["big"] += b"end"
    with winkfs.open(tmp_path / "c") as c:
        for order in ("disk", "name"):
            found = c.to_arrow(["path", "content"], order=order)
            assert dict(zip(*found.to_pydict().values(), strict=True)) == files


def test_an_empty_store(tmp_path: Path) -> None:
    stored.make(tmp_path / "c")
    winkfs.dataset.create(tmp_path / "set").close()
    for path in (tmp_path / "c", tmp_path / "set"):
        with winkfs.open(path) as opened:
            assert opened.to_arrow().num_rows == opened.to_arrow(order="name").num_rows == 0
            assert opened.parts(3) == [] and opened.read_rows([]).num_rows == 0


# --- a moment ---


def test_a_writer_sees_its_own_changes(path: Path) -> None:
    with winkfs.open(path, "a") as writer:
        writer.put("new", b"not synced", columns={"lang": "fr"})
        writer.delete("d0/0000")
        writer.put("d1/0001", b"XY")
        found = {r["path"]: r for r in writer.to_arrow().to_pylist()}
        assert len(found) == 300 and "d0/0000" not in found
        assert (found["new"]["content"], found["new"]["lang"]) == (b"not synced", "fr")
        assert found["d1/0001"]["content"] == b"XY"
        each_raises(
            (ValueError, "sync, and open it for reading", lambda: writer.to_arrow(order="disk")),
            (ValueError, "sync, and open it for reading", lambda: writer.parts(2)),
            (ValueError, "for reading", lambda: writer.read_rows([1])),
        )


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("order", ["disk", "name"])
def test_later_changes_are_not_seen(path: Path, order: Any) -> None:
    with winkfs.open(path) as opened:
        batches = opened.to_batches(["path", "content"], batch_bytes=1000, order=order)
        first = next(iter(batches))
        stored.change(path, {"d9/later": b"1", RECORDS[-1]["path"]: b"changed"})
        rest = batches.read_all()
    found = first.to_pylist() + rest.to_pylist()
    assert len(found) == 300
    assert sum(r["content"] == b"changed" for r in found) == 0


def test_a_container_that_is_replaced_ends_the_read(base: Path) -> None:
    with winkfs.open(base) as c:
        parts = c.parts(2)
    stored.make(base.with_name("other"), {"x": b"y"})
    os.replace(f"{base.with_name('other')}.data", f"{base}.data")
    with pytest.raises(StalePlan, match="another container"):
        parts[0].to_arrow()


def test_a_closed_reader(path: Path) -> None:
    opened = winkfs.open(path)
    opened.close()
    all_raise(Closed, [opened.to_batches, opened.to_arrow, lambda: opened.parts(2)])


# --- parts and rows ---


@pytest.mark.few(1)
@pytest.mark.slow
def test_parts_are_all_files_once(opened: winkfs.Reader) -> None:
    for count in (1, 2, 3, 7, 1000):
        parts = opened.parts(count)
        assert 0 < len(parts) <= min(count, 300)
        tables = [part.to_arrow() for part in parts]
        assert all(tables)  # none is empty
        found = pa.concat_tables(tables)
        assert by_path(found) == RECORDS
    sizes = [sum(part.to_arrow()["size"].to_pylist()) for part in opened.parts(4)]
    assert max(sizes) < 2 * min(sizes)
    some = opened.parts(3, ["path"], where="lang = 'de'")
    assert sorted(r["path"] for part in some for r in part.to_arrow().to_pylist()) == [
        r["path"] for r in RECORDS if r["lang"] == "de"
    ]


@pytest.mark.few(1)
@pytest.mark.slow
def test_a_part_in_another_process(path: Path) -> None:
    with winkfs.open(path) as opened:
        parts = opened.parts(2)
    script = (
        "import pickle, sys\n"
        "part = pickle.load(sys.stdin.buffer)\n"
        "print(part.to_arrow().num_rows, part.schema.names)"
    )
    found = [
        subprocess.run([sys.executable, "-c", script], input=pickle.dumps(part),
                       capture_output=True, check=True).stdout.decode().split(" ", 1)
        for part in parts
    ]  # fmt: skip
    assert sum(int(count) for count, _ in found) == 300
    assert {names.strip() for _, names in found} == {str(NAMES)}


def test_rows_by_their_references(opened: winkfs.Reader) -> None:
    table = opened.to_arrow(["path", "content"], content="ref")
    assert table.schema.names == ["path", "content", "ref"]
    refs = opened.to_arrow(content="ref")["ref"].to_numpy()
    paths = opened.to_arrow(["path"], order="disk")["path"].to_pylist()
    wanted = [5, 250, 3, 5, 299, 0]
    found = opened.read_rows(refs[wanted], ["path", "content"]).to_pylist()
    model = {r["path"]: r["content"] for r in RECORDS}
    assert found == [{"path": paths[i], "content": model[paths[i]]} for i in wanted]
    assert opened.read_rows(list(refs[:3]), content=False).schema.names == NAMES[:-1]
    each_raises(
        (ValueError, "reference to no file", lambda: opened.read_rows([9 << 44])),
        (CorruptError, "at byte", lambda: opened.read_rows([int(refs[0]) + 3])),
        (TypeError, "whole numbers", lambda: opened.read_rows(["d0/0000"])),
        (ValueError, "leave order out", lambda: opened.to_batches(content="ref", order="name")),
    )


# --- what is wrong ---


def test_wrong_arguments(opened: winkfs.Reader) -> None:
    each_raises(
        (ValueError, "no column 'nope'", lambda: opened.to_batches(["nope"])),
        (ValueError, "twice: path", lambda: opened.to_batches(["path", "path"])),
        (TypeError, "list of names", lambda: opened.to_batches("path")),
        (ValueError, "no column 'nope'", lambda: opened.to_batches(where="nope = 1")),
        (ValueError, "content is True", lambda: opened.to_batches(content="inline")),
        (ValueError, "'disk' or 'name'", lambda: opened.to_batches(order="path")),
        (ValueError, "batch_bytes", lambda: opened.to_batches(batch_bytes=0)),
        (TypeError, "where is a text", lambda: opened.to_batches(where=1)),
        (ValueError, "n must be", lambda: opened.parts(0)),
    )


@pytest.mark.parametrize("order", ["disk", "name"])
def test_a_damaged_file_costs_itself(base: Path, order: Any) -> None:
    stored.flip_text(f"{base}.data", row(64)[1][:50])
    with winkfs.open(base) as c:
        with pytest.raises(CorruptError, match="checksum"):
            c.to_arrow(order=order)
        lines: list[str] = []
        found = c.to_arrow(order=order, problem=lines.append)
        assert by_path(found) == [r for r in RECORDS if r["path"] != row(64)[0]]
        assert len(lines) == 1 and lines[0].startswith(f"{row(64)[0]}: ") and "checksum" in lines[0]
        assert len(c.to_arrow(content=False)) == 300


def test_a_damaged_inode_costs_itself(base: Path) -> None:
    flip(f"{base}.data", Path(f"{base}.data").read_bytes().rindex(b"d1/0064/I0") + 20)
    Path(f"{base}.cat").unlink()
    with winkfs.open(base) as c:
        for order in ("disk", "name"):
            lines: list[str] = []
            found = c.to_arrow(["path"], order=order, problem=lines.append, content=True)
            assert len(found) == 299 and len(lines) == 1 and "checksum" in lines[0]


def test_a_file_that_no_value_holds(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winkfs.arrow.reading.LARGEST", 800)
    with winkfs.open(base) as c:
        with pytest.raises(Refusal, match="of a value in Arrow"):
            c.to_arrow()
        lines: list[str] = []
        assert len(c.to_arrow(problem=lines.append)) + len(lines) == 300 and lines
        assert len(c.to_arrow(where="size <= 800")) == 300 - len(lines)


def test_two_threads(opened: winkfs.Reader) -> None:
    found: list[Any] = []
    orders: list[Any] = ["disk", "name", "disk", "name"]
    threads = [
        threading.Thread(target=lambda o=o: found.append(by_path(opened.to_arrow(order=o))))
        for o in orders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [RECORDS] * len(orders)


# --- other stores ---


def test_messages_of_a_queue(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", "a", make=True) as queue:
        for i in range(50):
            queue.push(b"m%d" % i, priority=2)
    with winkfs.open(tmp_path / "q") as opened:
        found = opened.to_arrow().to_pylist()
        assert [(r["id"], r["priority"], r["content"]) for r in found] == [
            (i + 1, 2, b"m%d" % i) for i in range(50)
        ]
        parts = [part.to_arrow()["content"].to_pylist() for part in opened.parts(4)]
        assert len(parts) > 1
        assert sorted(itertools.chain(*parts)) == sorted(r["content"] for r in found)
        each_raises(
            (ValueError, "is a queue: where is for", lambda: opened.to_batches(where="id = 1")),
            (ValueError, "order='name' is for", lambda: opened.to_batches(order="name")),
            (ValueError, "for containers and data sets", lambda: opened.to_batches(content="ref")),
            (ValueError, "for containers and data sets", lambda: opened.read_rows([1])),
        )


def test_messages_of_a_message_store(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with MessageStore(tmp_path / "m", "a", make=True) as store:
        ids = [bytes([i]) * 16 for i in range(20)]
        store.write_many((id, b"x" * i) for i, id in enumerate(ids))
    with winkfs.open(tmp_path / "m") as opened:
        found = {r["path"]: r["content"] for r in opened.to_arrow().to_pylist()}
        assert found == {id.hex(): b"x" * i for i, id in enumerate(ids)}


# --- files that Arrow gives ---


@pytest.mark.slow
def test_files_from_streams(base: Path, tmp_path: Path) -> None:
    with winkfs.open(base) as c:
        sources = [c, c.to_arrow(), c.to_batches(), c.to_arrow().to_batches()[0]]
        for number, source in enumerate(sources):
            with winkfs.create(tmp_path / f"copy{number}", columns=COLUMNS) as copy:
                assert copy.put_batch(source) == 300
                assert by_path(copy.to_arrow()) == RECORDS
            with winkfs.dataset.create(tmp_path / f"set{number}") as made:
                made.add_columns(COLUMNS)
                made.put_batch(source if source is not sources[2] else c)
                assert by_path(made.to_arrow()) == RECORDS


def test_names_that_are_no_text_come_back(tmp_path: Path) -> None:
    files = {b"\xff\xfe": b"1", b"a\\x41": b"2", "ä".encode(): b"3"}
    stored.make(tmp_path / "c", files)
    with winkfs.open(tmp_path / "c") as c, winkfs.create(tmp_path / "copy") as copy:
        copy.put_batch(c)
        assert {os.fsencode(name): data for name, data in copy.items()} == files
        found = c.to_arrow(["name_raw", "content", "mtime_ns"]).rename_columns(
            ["name", "content", "mtime_ns"]
        )
    with winkfs.create(tmp_path / "raw") as raw:
        raw.put_batch(found)
        assert {os.fsencode(name): data for name, data in raw.items()} == files
        assert raw.stat(b"\xff\xfe").mtime_ns == stored.stat(tmp_path / "c", b"\xff\xfe").mtime_ns


def test_views_and_categories(tmp_path: Path) -> None:
    table = pa.table({
        "path": pa.array(["a", "b"], pa.string_view()),
        "content": pa.array([b"1", b"22"], pa.binary_view()),
        "lang": pa.array(["de", None]).dictionary_encode(),
        "score": pa.array([1, 2], pa.int32()),
    })  # fmt: skip
    with winkfs.create(tmp_path / "c", columns=COLUMNS) as c:
        assert c.put_batch(table) == 2
        assert c.read("b") == b"22" and c.getcolumns("a") == {"lang": "de", "score": 1.0}
        each_raises((TypeError, "or a Table or stream, not list", lambda: c.put_batch([])))


@pytest.mark.slow
def test_where_reads_the_blocks_that_may_match(tmp_path: Path) -> None:
    rows = ((f"{i:06}", b"", 1, {"day": i // 1000}) for i in range(40_000))
    base = stored.make(tmp_path / "c", rows, columns={"day": "int64"})
    winkfs.reindex(base)
    whole = Path(f"{base}.cat").stat().st_size
    for order in ("name", None):
        with winkfs.open(base) as c, disk_calls() as calls:
            found = c.to_arrow(["path"], where="day = 20", order=order)
        assert found["path"].to_pylist() == [f"{i:06}" for i in range(20_000, 21_000)]
        assert bytes_read(calls, ".cat") < whole / 4
        assert bytes_read(calls, ".data", 8192) < 20_000  # of inodes alone: 5 MB
