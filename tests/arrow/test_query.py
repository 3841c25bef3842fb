"""winkfs.query and `winkfs query`: SQL over the files of a store."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
import stored
from commands import PROGRAM, invoke
from marks import only_with
from refusals import each_raises
from seam import bytes_read, disk_calls

import winkfs
import winkfs.dataset
from winkfs.errors import NoSuchFile, Refusal

only_with("duckdb")
pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
COLUMNS = {"lang": "string", "day": "date", "price": "decimal(9,2)", "tags": "list<string>"}
BY_LANG = "select lang, count(*) n, sum(size) s from files group by lang order by lang nulls last"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    rows = [
        (f"f{i:03}", b"%d" % i * 100, 1000 + i,
         {"lang": "de" if i % 2 else "en", "day": date(2026, 1, 1 + i % 20),
          "price": Decimal(i) / 4, "tags": [str(i)]} if i % 10 else None)
        for i in range(100)
    ]  # fmt: skip
    return stored.make(tmp_path / "c", rows, columns=COLUMNS)


def test_a_query_in_python(base: Path) -> None:
    with winkfs.query(base, BY_LANG) as found:
        rows = found.to_arrow().to_pylist()
    assert [(r["lang"], r["n"]) for r in rows] == [("de", 50), ("en", 40), (None, 10)]
    with winkfs.open(base) as c, winkfs.query(c, "select count(*) n from files") as found:
        assert [batch.to_pylist() for batch in found] == [[{"n": 100}]]
    with winkfs.query(base, "select a.path from files a join files b using (path)") as found:
        assert len(found.to_arrow()) == 100


def test_contents_are_read_where_they_are_named(base: Path) -> None:
    for sql, reads in [
        ("select count(*) from files", False),
        ("select * from files", False),
        ("select count(*) from files where octet_length(content) > 100", True),
    ]:
        with disk_calls() as calls, winkfs.query(base, sql) as found:
            found.to_arrow()
        assert (bytes_read(calls, "c.data", 8192) >= 19_000) is reads
    with winkfs.query(base, "select content from files", where="size = 100") as found:
        assert found.to_arrow()["content"].to_pylist() == [b"%d" % i * 100 for i in range(10)]


def test_where_and_generations(tmp_path: Path) -> None:
    winkfs.dataset.create(tmp_path / "set").close()
    for i in range(3):
        stored.change(tmp_path / "set", {f"f{i}": b"x" * i})
    count = "select count(*) n from files"
    for how, n in [({}, 3), ({"as_of": 2}, 2), ({"where": "size > 1"}, 1)]:
        with winkfs.query(tmp_path / "set", count, **how) as found:  # type: ignore[arg-type]
            assert found.to_arrow()["n"].to_pylist() == [n]


def test_the_command(base: Path) -> None:
    done = invoke("query", base, BY_LANG)
    assert (done.exit_code, done.stdout) == (0, "lang,n,s\nde,50,9500\nen,40,7600\n,10,1900\n")
    done = invoke("query", base, "select * from files where path = 'f007'", "--json")
    assert json.loads(done.stdout) == {
        "path": "f007", "size": 100, "mtime": "1970-01-01T00:16:47Z", "lang": "de",
        "day": "2026-01-08", "price": "1.75", "tags": ["7"],
    }  # fmt: skip
    done = invoke(
        "query", base, "select path, tags from files", "--where", "path='f007'", "--table"
    )
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["path", "tags"],
        ["f007", '["7"]'],
    ]


SOME = "(select size from files, range(600))"
COMPARED = f"select count(*) n from {SOME} a, {SOME} b, {SOME} c where a.size + b.size < c.size"


@pytest.mark.long
def test_a_long_query_can_be_interrupted(base: Path) -> None:
    for sql in ("select path from files, range(1000000000000)", f"select 1 union all {COMPARED}"):
        command = [*PROGRAM, "query", str(base), sql, "--csv"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            # its header, or what came before the long part; DuckDB may begin with the long one
            select.select([process.stdout], [], [], 5)
            process.send_signal(signal.SIGINT)
            try:
                _, error = process.communicate(timeout=60)
            finally:
                process.kill()  # one that hangs holds up what follows
        assert (process.returncode, error) == (130, b"winkfs: interrupted\n")


def test_what_is_wrong(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each_raises(
        (Refusal, r"c: Parser Error: syntax error at or near \"selekt\"$",
         lambda: winkfs.query(base, "selekt 1")),
        (Refusal, 'Referenced column "nope" not found', lambda: winkfs.query(
            base, "select nope from files")),
        (ValueError, "no column 'nope'", lambda: winkfs.query(base, "select 1", where="nope = 1")),
        (NoSuchFile, "no such container", lambda: winkfs.query(tmp_path / "none", "select 1")),
        (TypeError, "a query is a text", lambda: winkfs.query(base, 1)),  # type: ignore[arg-type]
    )  # fmt: skip
    stored.flip_text(f"{base}.data", b"77777777")
    done = invoke("query", base, "select max(content) from files")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and "checksum" in done.stderr
    assert "Traceback" not in done.stderr
    assert invoke("query", base, "select max(size) from files").exit_code == 0
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = invoke("query", base, BY_LANG)
    assert done.exit_code == 1
    assert done.stderr == "winkfs: winkfs.query needs winkfs[query]: pip install 'winkfs[query]'\n"
