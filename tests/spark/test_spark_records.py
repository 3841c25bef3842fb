"""Stores of records as Spark rows and as input of `pipeline ingest`, while a writer goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import shelf
from shelf import COUNTING, REAL, made
from sparking import SparkSession, run_code

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark]

LARGE = 4_000_000  # bytes of a body that has a file of its own in a message store
BODIES = [b"", b"x", *(b"%d," % number * 99 for number in range(300)), bytes(LARGE)]

READ = """
import hashlib, json
import winkfs.spark
path, many = sys.argv[1:3]

def load(**options):
    return winkfs.spark.read(spark, path, **options)

def say(**facts):
    print(json.dumps(facts))

whole = load()
say(columns=[f"{f.name} {f.dataType.simpleString()}" for f in whole.schema])
rows = whole.collect()
digest = lambda body: hashlib.md5(bytes(body)).hexdigest()
say(rows=sorted([str(r.id), r.size, digest(r.content)] for r in rows))
say(there=all(0 <= r.offset for r in rows) and len({(r.file, r.offset) for r in rows}) == len(rows))
say(refs=sorted({r.refs for r in rows}) if "refs" in whole.columns else None)
cut = load(splitBytes="64k")
say(tasks=cut.rdd.getNumPartitions() > 1, same=sorted(map(str, cut.drop("content").collect())) ==
    sorted(map(str, whole.drop("content").collect())))
small = load(columns="path,mtime,id,size,_container")
say(same=sorted(str(r.id) for r in small.collect()) == sorted(r.path for r in small.collect()))
say(mtime=small.agg({"mtime": "min"}).collect()[0][0].year > 2000, count=small.count())
say(chosen=[load(minSize="1", maxSize="1").count(), load(paths=[str(rows[7].id)]).count()])
both = spark.read.format("winkfs").load([path, many])
say(both=both.count())
for wrong in ({"where": "size > 1"}, {"orderBy": "path"}, {"content": "ref"}, {"asOf": "1"}):
    try:
        load(**wrong).collect()
    except Exception as error:
        words = ("containers and data sets", "for a data set")
        say(refused=[word for word in words if word in str(error)][:1])
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", REAL)
def test_records_are_rows(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    ids = made(tmp_path / "s", kind, BODIES)
    other = made(tmp_path / "t", kind, [b"1", b"2"])
    out = run_code(spark, READ, tmp_path / "s", tmp_path / "t")
    text = "bigint" if kind not in COUNTING else "string"
    columns = [f"id {text}", "size bigint", "content binary", "file string", "offset bigint"]
    rows = sorted(
        [id, len(body), hashlib.md5(body).hexdigest()]
        for id, body in zip(ids, BODIES, strict=True)
    )  # fmt: skip
    assert reported(out) == {
        "columns": [columns + ["refs bigint"] * (kind in COUNTING)], "rows": [rows],
        "there": [True], "refs": [[1] if kind in COUNTING else None],
        "tasks": [True], "same": [True, True], "mtime": [True], "count": [len(ids)],
        "chosen": [[1, 1]], "both": [len(ids) + len(other)],
        "refused": [["containers and data sets"]] * 3 + [["for a data set"]],
    }  # fmt: skip


def reported(out: str) -> dict[str, list[Any]]:
    import json

    found: dict[str, list[Any]] = {}
    for line in out.splitlines():
        for name, value in json.loads(line).items():
            found.setdefault(name, []).append(value)
    return found


DAMAGED = """
whole = spark.read.format("winkfs").option("mode", "PERMISSIVE").load(sys.argv[1])
print(sorted((r.size, bytes(r.content) if r.content is not None else None, r._error is not None)
             for r in whole.collect()))
print(spark.read.format("winkfs").option("mode", "DROPMALFORMED").load(sys.argv[1]).count())
print(spark.read.format("winkfs").option("maxContentBytes", "4").option("mode", "DROPMALFORMED")
      .load(sys.argv[1]).count())
print(spark.read.format("winkfs").option("columns", "id,size").load(sys.argv[1]).count())
try:
    spark.read.format("winkfs").load(sys.argv[1]).collect()
except Exception as error:
    print("another message" in str(error))
"""


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, str]:
    """A message store with three records, and the id of one that is damaged."""
    _, bad, _ = made(tmp_path / "s", "message", [b"good", b"DAMAGED", b"longer"])
    file = tmp_path / "s/0.sqs"
    data = file.read_bytes()
    assert data.count(bytes.fromhex(bad)) == 1
    file.write_bytes(data.replace(bytes.fromhex(bad), bytes(16)))
    return tmp_path / "s", bad


def test_a_damaged_record_follows_the_mode(damaged: tuple[Path, str], spark: SparkSession) -> None:
    out = run_code(spark, DAMAGED, damaged[0])
    rows = [(4, b"good", False), (6, b"longer", False), (7, None, True)]
    assert out.splitlines() == [str(rows), "2", "1", "3", "True"]


WHILE = """
import subprocess
from pathlib import Path
writer = subprocess.Popen([sys.executable, "-c", sys.argv[2], *sys.argv[1:2], *sys.argv[3:]])
kept = set(Path(sys.argv[4]).read_text().split())
rounds = 0
while writer.poll() is None:
    rows = spark.read.format("winkfs").option("splitBytes", "64k").load(sys.argv[1]).collect()
    ids = [str(row.id) for row in rows]
    assert len(ids) == len(set(ids)), len(ids) - len(set(ids))
    assert kept <= set(ids), len(kept - set(ids))
    assert all(row.content.startswith(b"needle") and len(row.content) == row.size for row in rows)
    rounds += 1
print(writer.returncode, rounds > 0)
rows = spark.read.format("winkfs").load(sys.argv[1]).select("id").collect()
print({str(row.id) for row in rows} == kept | set(Path(sys.argv[3]).read_text().split()))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", REAL)
def test_spark_reads_while_a_writer_goes_on(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """What is there all the time comes once, whatever is moved."""
    ids = made(tmp_path / "s", kind, [b"needle %d\n" % number * 20 for number in range(1000)])
    (tmp_path / "ids").write_text("\n".join(ids[:100]))
    (tmp_path / "kept").write_text("\n".join(ids[100:]))
    arguments = (tmp_path / "s", shelf.WRITER, tmp_path / "ids", tmp_path / "kept", "2")
    out = run_code(spark, WHILE, *arguments)
    assert out.splitlines() == ["0 True", "True"]


INGEST = """
from winkfs.spark.jobs import ingest
bad = []
for again in range(3):
    done = ingest.run(spark, sys.argv[1:3], sys.argv[3], bad=bad.append)
    print(done["files"], done["bytes"], done["skipped"], done["units"], len(bad))
    if again == 1:
        import winkfs
        with winkfs.open(sys.argv[1], "a") as store:
            store.put(None, b"one more")
            store.sync()
"""


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", REAL)
def test_ingest_takes_a_store(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    import winkfs

    ids = made(tmp_path / "s", kind, BODIES)
    other = REAL[kind == REAL[0]]
    more = made(tmp_path / "t", other, [b"a", b"b"])
    out = run_code(spark, INGEST, tmp_path / "s", tmp_path / "t", tmp_path / "out")
    size = sum(map(len, BODIES))
    first, second, third = out.splitlines()
    assert first == f"{len(BODIES) + 2} {size + 2} 0 2 0"
    assert second == "0 0 2 0 0"
    assert third.split()[2:] == ["1", "1", "0"] and int(third.split()[0]) >= 1
    with winkfs.open(tmp_path / "out") as target:
        assert len(target) == len(BODIES) + 3
        for id, body in zip((*ids, *more), (*BODIES, b"a", b"b"), strict=True):
            assert target[id] == body


def test_ingest_reports_a_bad_record(
    damaged: tuple[Path, str], spark: SparkSession, tmp_path: Path
) -> None:
    path, bad = damaged
    code = INGEST.replace("print(", "print([b.name for b in bad], ", 1)
    code = code.replace("range(3)", "range(1)")
    out = run_code(spark, code, path, path, tmp_path / "out")
    assert out.startswith(f"['{bad}', '{bad}'] 4 20 0 2 2")
