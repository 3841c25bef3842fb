"""Columns in the command line: columns, create, put, ls, stat, rm, info; what is refused."""

from __future__ import annotations

import errno
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import stored
from commands import Run, listed, one_line, session
from seam import disk_calls, refusing
from typed_files import QUESTIONS, SCHEMA, assert_answers, known, make, nulls

import winkfs
from winkfs.cli import change

WORDS = [f"{name}={kind}" for name, kind in SCHEMA.items()]


def test_create_leaves_nothing_where_there_is_no_room(run: Run) -> None:
    for end in (".data.tmp", ".data"):
        with disk_calls(refusing("write", end, errno.ENOSPC)):
            assert "No space left" in one_line(run("create", "new", "--column", "n=int64"))
        assert [path.name for path in Path().glob("new.*") if path.suffix != ".lock"] == []
    assert run("create", "new", "--column", "n=int64").status == 0
    assert listed(run("columns", "new")) == ["n int64"]


@pytest.fixture
def base(run: Run) -> str:
    """Three files, of which one has values of all types and one none."""
    create = [word for column in WORDS for word in ("--column", column)]
    assert run("create", "c", *create) == (0, b"", "")
    values = {
        "lang": "de", "raw": "a\udcff\tb", "good": "TRUE", "n": "5", "score": "nan",
        "at": "2026-01-01T01:00+01:00", "tags": '["x", null, "y,z"]', "day": "2026-01-02",
        "local": "2026-01-02 10:00", "price": "-1.5", "wide": "1e-10", "counts": "[1, null]",
        "vector": "[0.5, NaN, null]",
    }  # fmt: skip
    put = [word for column in values.items() for word in ("--column", "=".join(column))]
    assert run("put", "c", "all", *put, stdin=b"1") == (0, b"", "")
    assert run("put", "c", "d/none", stdin=b"22") == (0, b"", "")
    assert run("put", "c", "d/some", "--column", "n=-1", "--column", "lang=a=b", stdin=b"") == (
        0, b"", "",
    )  # fmt: skip
    return "c"


# --- which columns ---


def test_columns_are_listed_added_and_dropped(run: Run) -> None:
    run("create", "c")
    assert listed(run("columns", "c")) == []
    assert run("columns", "c", "add", *WORDS) == (0, b"", "")
    assert listed(run("columns", "c")) == [f"{name} {kind}" for name, kind in SCHEMA.items()]
    assert json.loads(run("columns", "c", "--json").out) == SCHEMA
    session(
        run,
        """
        $ columns c drop n tags good raw at day local price wide counts vector
        $ columns c list
        lang string
        score float64
        $ columns c add n=string
        $ columns c
        lang string
        score float64
        n string
        """,
    )
    assert json.loads(run("info", "c", "--json").out)["fields"]["n"] == "string"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["add"], 2, "NAME=TYPE"), (["drop"], 2, "drop takes NAME"), (["list", "n"], 2, "no names"),
        (["foo"], 2, "foo"), (["add", "x"], 2, "NAME=TYPE"),
        (["add", "x=bool", "x=bool"], 2, "twice"),
        (["add", "x=text"], 1, "string, binary"), (["add", "x="], 1, "string, binary"),
        (["add", "=bool"], 1, "name of a column"), (["add", "n=int64"], 1, "has a column 'n'"),
        (["add", "N=int64"], 1, "twice"), (["add", "size=int64"], 1, "all files have that"),
        (["add", "x y=bool"], 1, "name of a column"), (["drop", "x"], 1, "no column 'x'"),
        (["drop", "n", "x"], 1, "no column 'x'"), (["drop", "n=int64"], 1, "no column"),
        (["add", "x=bool", "n=bool"], 1, "has a column 'n'"),
        (["add", "x=decimal(39,2)"], 1, "decimal(p,s) with p of 1 to 38 digits"),
    ],
)  # fmt: skip
def test_wrong_columns_are_refused_in_one_line(
    words: list[str], status: int, what: str, run: Run, base: str
) -> None:
    assert what in one_line(run("columns", base, *words), status)
    assert json.loads(run("columns", base, "--json").out) == SCHEMA


def test_kinds_without_columns_refuse_them_by_name(run: Run) -> None:
    session(
        run,
        """
        $ columns nothing
        winkfs: ...no such...
        $ create k --classic
        $ columns k add n=int64
        winkfs: ...columns...
        $ columns k
        $ create x --classic --column n=int64
        winkfs: ...classic...
        """,
    )
    for words, status in ((["n"], 2), (["n="], 1), (["n=int64", "--column", "n=bool"], 2)):
        one_line(run("create", "x", "--column", *words), status)
        assert not Path("x.data").exists()


# --- put ---


def test_put_sets_the_values(run: Run, base: str) -> None:
    with winkfs.open(base) as c:
        found = known(c)
    assert found["all"].pop("score") != found["all"].get("score", 0)  # nan
    at, vector = found["all"].pop("at"), found["all"].pop("vector")
    assert repr(vector) == "[0.5, nan, None]"
    assert at.isoformat() == "2026-01-01T00:00:00+00:00"
    assert found["all"] == {"lang": "de", "raw": b"a\xff\tb", "good": True, "n": 5,
                            "tags": ["x", None, "y,z"], "day": date(2026, 1, 2),
                            "local": datetime(2026, 1, 2, 10), "price": Decimal("-1.500"),
                            "wide": Decimal("1e-10"), "counts": [1, None]}  # fmt: skip
    assert found["d/none"] == nulls()
    assert found["d/some"] == nulls() | {"n": -1, "lang": "a=b"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "status", "what"),
    [
        ("n=x", 1, "n is int64"), ("n=", 1, "not '': it takes a whole number"),
        ("n", 2, "NAME=VALUE"),
        ("zz=1", 1, "no column 'zz'"), ("N=1", 1, "no column 'N'"),
        ("tags=x", 1, "it takes a list as"),
        ("good=2", 1, "good is bool"), ("at=noon", 1, "at is timestamp"), ("=1", 1, "no column ''"),
        ("day=2026-01-02T00:00", 1, "it takes a date as"), ("price=1.2345", 1, "no more digits"),
        ("local=2026-01-02T00:00Z", 1, "without a zone"), ("counts=[1.5]", 1, "[1, null]"),
        ("vector=1", 1, "[0.5, NaN, null]"), ("wide=x", 1, "wide is decimal(38,10)"),
        ("lang=\udcff", 1, "lang is string"), ("score=1,5", 1, "score is float64"),
    ],
)  # fmt: skip
def test_put_refuses_a_wrong_value_and_puts_nothing(
    word: str, status: int, what: str, run: Run, base: str
) -> None:
    assert what in one_line(run("put", base, "new", "--column", word, stdin=b"x"), status)
    assert "is given twice" in one_line(
        run("put", base, "new", "--column", "n=1", "--column", "n=2", stdin=b"x"), 2
    )
    assert "new" not in listed(run("ls", base))


# --- ls and stat ---


def test_ls_shows_columns_behind_the_name(run: Run, base: str) -> None:
    assert listed(run("ls", base, "--columns", "n, lang")) == [
        "all\t5\tde", "d/none\t-\t-", "d/some\t-1\ta=b",
    ]  # fmt: skip
    (line,) = listed(run("ls", base, "all", "--columns", "*"))
    assert line.split("\t") == [
        "all", "de", "a\\xff\\tb", "true", "5", "nan", "2026-01-01T00:00:00Z",
        '["x", null, "y,z"]', "2026-01-02", "2026-01-02T10:00:00", "-1.500", "0.0000000001",
        "[1, null]", '[0.5, "nan", null]',
    ]  # fmt: skip
    lines = listed(run("ls", base, "-l", "d/", "--columns", "n"))
    assert [line.split("\t")[1] for line in lines] == ["-", "-1"]
    assert lines[0].startswith("-rw-r--r--")
    assert listed(run("ls", base, "d/*", "--columns", "n")) == ["d/none\t-", "d/some\t-1"]


def test_ls_json_has_the_values(run: Run, base: str) -> None:
    found = [json.loads(line) for line in listed(run("ls", base, "--json", "--columns", "*"))]
    assert found[0]["columns"] == {
        "lang": "de", "raw": "Yf8JYg==", "good": True, "n": 5, "score": "nan",
        "at": "2026-01-01T00:00:00Z", "tags": ["x", None, "y,z"], "day": "2026-01-02",
        "local": "2026-01-02T10:00:00", "price": "-1.500", "wide": "0.0000000001",
        "counts": [1, None], "vector": [0.5, "nan", None],
    }  # fmt: skip
    assert found[1]["columns"] == nulls()
    assert "columns" not in json.loads(listed(run("ls", base, "--json"))[0])


def test_stat_shows_the_values(run: Run, base: str) -> None:
    lines = listed(run("stat", base, "all"))
    assert lines[lines.index("columns:") + 1 :] == [
        "  lang: de", "  raw: a\\xff\\tb", "  good: true", "  n: 5", "  score: nan",
        "  at: 2026-01-01T00:00:00Z", '  tags: ["x", null, "y,z"]', "  day: 2026-01-02",
        "  local: 2026-01-02T10:00:00", "  price: -1.500", "  wide: 0.0000000001",
        "  counts: [1, null]", '  vector: [0.5, "nan", null]',
    ]  # fmt: skip
    assert json.loads(run("stat", base, "d/some", "--json").out)["columns"]["n"] == -1


@pytest.mark.slow
@pytest.mark.parametrize("reindexed", [False, True])
def test_ls_where_lists_what_a_loop_chooses(reindexed: bool, run: Run) -> None:
    make("c", 80)
    if reindexed:
        run("reindex", "c")
    with winkfs.open("c") as c:
        assert_answers(c)
        all_of = known(c)
    for text, test in QUESTIONS:
        wanted = sorted(name for name, one in all_of.items() if test(name, one))
        assert listed(run("ls", "c", "--where", text)) == wanted
        found = [
            json.loads(line)["name"] for line in listed(run("ls", "c", "--json", "--where", text))
        ]
        assert found == wanted
        assert [line.split("\t")[0] for line in listed(
            run("ls", "c", "--where", text, "--columns", "raw"))] == wanted  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["all", "--where", "n = 5"], ["all"]), (["all", "--where", "n = 6"], []),
        (["d/*", "--where", "n is null"], ["d/none"]), (["d", "--where", "size = 0"], ["d/some"]),
        (["--where", "n = 5", "--until", "2000-01-01"], []),
    ],
)  # fmt: skip
def test_where_goes_with_names_globs_and_times(
    words: list[str], names: list[str], run: Run, base: str
) -> None:
    assert listed(run("ls", base, *words)) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--where", "n = "], "a value at its end"), (["--where", ""], "name of a column"),
        (["--where", "n = 5 )"], "at ')'"), (["--where", "zz = 5"], "no column 'zz'"),
        (["--where", "n = 'x'"], "n is int64"), (["--columns", "zz"], "no column 'zz'"),
        (["--columns", "n,,zz"], "no column 'zz'"), (["--where", "not " * 9000], "levels"),
        (["all", "--where", ""], "name of a column"),
        (["--where", "at > '0001-01-01T00:00+01:00'"], "no time"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused_in_one_line(
    words: list[str], what: str, run: Run, base: str
) -> None:
    assert what in one_line(run("ls", base, *words))


def test_a_data_set_has_the_columns_of_its_containers(run: Run) -> None:
    make("c", 30)
    session(run, "$ dataset create set\n$ columns set\n$ dataset add set c\n")
    assert json.loads(run("columns", "set", "--json").out) == SCHEMA
    assert listed(run("ls", "set", "--where", "good"))
    assert sorted(listed(run("ls", "set", "--columns", "n,lang"))) == listed(
        run("ls", "c", "--columns", "n,lang")
    )
    assert listed(run("columns", "set", "add", "more=int64")) == []
    assert json.loads(run("columns", "set", "--json").out) == SCHEMA | {"more": "int64"}
    session(
        run,
        """
        $ put set new --column more=5
        $ ls set --where 'more = 5'
        new
        $ columns set drop n
        winkfs: ...dropped from containers only...
        $ ls set --where 'zz = 1'
        winkfs: ...no column 'zz'...
        $ ls set --columns zz
        winkfs: ...no column 'zz'...
        """,
    )


# --- rm ---


def test_rm_where_keeps_what_is_committed_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("dataset", "create", "set").status == 0
    assert run("put", "set", "a", stdin=b"old").status == 0
    chosen = change._Removal.take_where

    def meanwhile(*args: Any) -> None:
        chosen(*args)
        with winkfs.open("set", "a") as files:
            files.put("a", b"newer")

    monkeypatch.setattr(change._Removal, "take_where", meanwhile)
    assert "was changed meanwhile (a): try again" in one_line(
        run("rm", "set", "--where", "size = 3")
    )
    assert run("cat", "set", "a").out == b"newer"


def test_rm_where_removes_what_is_chosen(run: Run, base: str) -> None:
    session(
        run,
        f"""
        $ rm {base} -n --where 'n is not null'
        all
        d/some
        $ ls {base}
        all
        d/none
        d/some
        $ rm {base} -v 'd/*' --where 'n is not null'
        d/some
        $ ls {base}
        all
        d/none
        $ rm {base} -v all --where 'n = 6'
        $ rm {base} --where 'size >= 0'
        $ ls {base}
        """,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [([], 2), (["--where", "n ="], 1), (["--where", "zz = 1"], 1), (["-r"], 2),
     (["--where", ""], 1)],
)  # fmt: skip
def test_rm_refuses_and_removes_nothing(words: list[str], status: int, run: Run, base: str) -> None:
    one_line(run("rm", base, *words), status)
    assert len(listed(run("ls", base))) == 3


def test_a_damaged_file_is_reported_and_the_others_listed(run: Run, base: str) -> None:
    stored.flip_text("c.data", b"user.lang\0\0\0\x03a=b", 15)
    Path("c.cat").unlink()
    for words in (["--where", "n = 5 or n is null"], ["--where", "n > 0"], ["--columns", "n"]):
        done = run("ls", base, *words)
        assert done.out.splitlines()[0].startswith(b"all"), words
        assert "checksum" in done.err, words
        assert (done.status, done.err.count("\n")) == (1, 1)
    done = run("rm", base, "--where", "n = -1")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "checksum" in done.err
