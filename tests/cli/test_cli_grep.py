"""The command grep, beside GNU grep."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import data_sets
import pytest
import stored
from commands import PROGRAM, Done, Run, one_line

import winkfs
from winkfs.archive import search
from winkfs.archive.pattern import Pattern

pytestmark = pytest.mark.slow

WORDS = [
    "error",
    "Error",
    "warning",
    "disk",
    "full",
    "a",
    "foo_bar",
    "foo",
    "bar",
    "",
    "x.y",
    "xzy",
]


def texts() -> dict[str, bytes]:
    """Files of random lines: some without a newline at their end, some empty."""
    draw, found = random.Random(5), dict[str, bytes]()
    for i in range(60):
        lines = [
            " ".join(draw.choices(WORDS, k=draw.randrange(6))) for _ in range(draw.randrange(9))
        ]
        found[f"{'abc'[i % 3]}/{i:02}.txt"] = "\n".join(lines).encode() + b"\n" * (i % 2)
    found["empty"] = b""
    found["utf"] = "grüße\nerror ü\n".encode()
    found["newlines"] = b"\n\n\n"
    return found


@pytest.fixture
def tree(run: Run, tmp_path: Path) -> Path:
    for name, data in texts().items():
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    stored.make("c", texts())
    return tmp_path / "t"


def gnu(tree: Path, *args: str) -> tuple[int, list[bytes], str]:
    """Status and lines of GNU grep, as winkfs has them."""
    command = ["grep", "-r", *args, "."]
    env = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, cwd=tree, capture_output=True, env=env, check=False)
    lines = sorted(line.removeprefix(b"./") for line in done.stdout.splitlines())
    return done.returncode, lines, done.stderr.decode()


@pytest.mark.few(24)
@pytest.mark.skipif(shutil.which("grep") is None, reason="needs grep")
@pytest.mark.parametrize("kind", ["any", "without compiled code", "lines", "most"])
@pytest.mark.parametrize(
    "args",
    [
        ["error"], ["-n", "error"], ["-i", "ERROR"], ["-c", "error"], ["-l", "error"],
        ["-v", "error"], ["-vc", "error"], ["-vn", "r"], ["-w", "foo"], ["-ow", "foo"],
        ["-o", "o+"], ["-on", "foo|bar"], ["-e", "disk", "-e", "full"], ["-F", "x.y"],
        ["x.y"], ["-Fi", "X.Y"], ["-m", "1", "r"], ["-m", "0", "r"], ["-h", "error"],
        ["-a", "error"],
        ["^error"], ["error$"], ["^$"], ["^"], ["$"], [""], ["-v", ""], ["-c", ""], ["^a b*"],
        [r"\berror\b"], [r"\Bar"], ["(foo|bar)_?"], ["[e-g]rror"], ["(e|E)rror.*full"],
        ["-n", "^[[:space:]]*$"], ["nothing at all"], ["-vl", "."], ["-il", "WARN"],
        ["-ne", "a", "-e", "^a", "-e", "a$"], ["-e", "disk\nfull"], ["-nv", "-m", "2", "a"],
        ["-n", "disk|full"], ["-ni", "E(RROR|Mpty)"], ["-c", "^(foo|bar)"], ["-vn", "foo|bar"],
        ["-n", "(full.*disk|disk.*full)"], ["-no", "-e", "foo", "-e", "foo_bar"], ["-oi", "R+"],
        ["-onw", "a|foo"], ["-ov", "error"], ["-om", "1", "a"], ["-wn", "foo|bar"], ["-io", "k"],
        ["-o", "(foo)?"], [r"-n", r"(r)\1"], ["-l", "x.y|xzy"], ["-n", "f(oo|ull)$"],
    ],
)  # fmt: skip
def test_it_selects_what_grep_does(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], kind: str
) -> None:
    """Also of files that all, or nearly all, end with a line: these are searched together."""
    if kind == "without compiled code":
        monkeypatch.setattr(search.native, "code", None)
    if kind in ("lines", "most"):
        paths = sorted(path for path in tree.rglob("*") if path.is_file())
        for path in paths:
            if kind == "lines" or path.stem not in ("00", "20", "22"):
                path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n")
        stored.change("c", {os.path.relpath(path, tree): path.read_bytes() for path in paths})
    mine = [r"^\s*$" if arg == "^[[:space:]]*$" else arg for arg in args]
    perl = [] if any("F" in arg for arg in args if arg[:1] == "-") else ["-E"]
    expected = gnu(tree, *perl, *args)
    done = run("grep", *_before_base(mine), "c", *_pattern(mine))
    assert (done.status, sorted(done.out.splitlines()), done.err) == expected


def _pattern(args: list[str]) -> list[str]:
    """The pattern, if it comes without -e."""
    return [] if any("e" in arg for arg in args if arg[:1] == "-") else args[-1:]


def _before_base(args: list[str]) -> list[str]:
    return args if not _pattern(args) else args[:-1]


@pytest.mark.few(2)
@pytest.mark.skipif(shutil.which("grep") is None, reason="needs grep")
@pytest.mark.parametrize("args", [["-A", "1"], ["-B", "2"], ["-C", "1", "-n"], ["-A1", "-c"]])
def test_lines_around_are_those_of_grep(run: Run, tree: Path, args: list[str]) -> None:
    for name in sorted(texts()):
        command = ["grep", "-H", *args, "error", name]
        done = subprocess.run(
            command, cwd=tree, capture_output=True, env={"LC_ALL": "C"} | os.environ
        )
        assert run("grep", "-H", *args, "c", "error", name).out == done.stdout, name


def test_groups_of_several_files_are_separated(run: Run) -> None:
    stored.make("c", {"a": b"x\ny\n", "b": b"y\nx\n", "d": b"y\n"})
    assert run("grep", "-A1", "c", "x").out == b"a:x\na-y\n--\nb:x\n"


def test_names_are_selected_as_by_ls(run: Run, tree: Path) -> None:
    every = run("grep", "-l", "c", "r").out.splitlines()
    below = [name for name in every if name.startswith(b"a/")]
    for args in ["a"], ["a/"], ["./a"], ["a/*"], ["a/0*", "a/*"], ["a", "a/00.txt"]:
        assert run("grep", "-l", "c", "r", *args).out.splitlines() == below
    assert run("grep", "-l", "c", "r", "--include", "*.txt", "--exclude", "b").out.splitlines() == [
        name for name in every if name.endswith(b".txt") and not name.startswith(b"b/")
    ]
    assert run("grep", "-l", "c", "r", "--where", "path like 'a/%'").out.splitlines() == below
    assert run("grep", "c", "ü", "utf").out == "grüße\nerror ü\n".encode()
    assert run("grep", "-H", "c", "ß", "utf").out == "utf:grüße\n".encode()


def test_a_missing_name_is_reported_and_others_are_searched(run: Run, tree: Path) -> None:
    done = run("grep", "c", "ß", "utf", "nothing", "no*")
    assert (done.status, done.out) == (1, "utf:grüße\n".encode())
    assert done.err.splitlines() == [
        "winkfs: c: nothing: no such file in the container", "winkfs: c: no*: no name matches",
    ]  # fmt: skip


def test_a_name_with_the_signs_of_a_glob(run: Run, base: str) -> None:
    assert run("grep", base, "star", "a*b").out == b"star\n"
    assert run("grep", "-l", base, "[a-z]").out == b"docs/a.html\ndocs/old/b.html\na*b\n" + (
        b"caf\xe9\n\x1b[31m\n"
    )
    assert run("grep", base, "docs", "link") == Done(1, b"", "")


def test_data_sets_and_other_stores_are_searched(run: Run, tree: Path) -> None:
    for number, part in enumerate("abc"):
        data_sets.put("ds", {n: d for n, d in texts().items() if n[0] == part or not number})
    stored.change("ds", {"a/00.txt": b"error replaced\n", "utf": None})
    found = dict(texts()) | {"a/00.txt": b"error replaced\n"}
    del found["utf"]
    expected = sorted(name for name, data in found.items() if b"error" in data)
    assert sorted(run("grep", "-l", "ds", "error").out.decode().splitlines()) == expected
    assert run("grep", "-h", "ds", "replaced").out == b"error replaced\n"
    assert run("grep", "ds", "replaced", "--as-of", "1") == Done(1, b"", "")


def test_compressed_and_large_files_and_those_of_several_writes(run: Run) -> None:
    pytest.importorskip("zstandard")
    lines = b"".join(b"line %d\n" % i for i in range(300_000))
    with winkfs.create("c", compress="zstd") as c:
        c.put("large", lines + b"needle\n")
        c.put("small", b"needle\n" + lines[:5000])
        c.put("parts", lines[:50_000].rpartition(b"\n")[0] + b"\n")
        c.append("parts", b"needle at the end")
    last = lines[:50_000].count(b"\n") + 1  # after whole lines
    assert sorted(run("grep", "-n", "c", "needle").out.splitlines()) == [
        b"large:300001:needle", b"parts:%d:needle at the end" % last, b"small:1:needle",
    ]  # fmt: skip


def test_processes_find_what_one_finds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.make("c", {f"{i:04}": b"line of %d\n" % (i % 10) * 20 for i in range(2000)})
    monkeypatch.setattr(search, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(search, "PROCESS_BYTES", 1)
    alone = run("grep", "-n", "--jobs", "1", "c", "of [37]$")
    assert alone.out.count(b"\n") == 400 * 20 and alone.out.startswith(b"0003:1:line of 3\n")
    children, fork = list[int](), os.fork

    def forked() -> int:
        pid = fork()
        children.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", forked)
    assert run("grep", "-n", "--jobs", "3", "c", "of [37]$") == alone
    assert run("grep", "-q", "--jobs", "3", "c", "of [37]$").status == 0
    assert len(children) == 6
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    monkeypatch.setattr(search.Searcher, "unit", lambda *_: os._exit(0))
    killed = one_line(run("grep", "--jobs", "3", "c", "of"))
    assert killed == "winkfs: a process that searches was killed, as when memory is short\n"


def test_damage_is_reported_and_the_rest_searched(run: Run) -> None:
    stored.make("c", {f"{i}": b"content of %d\n" % i for i in range(9)})
    stored.flip_text("c.data", b"content of 4")
    done = run("grep", "c", "content")
    assert done.status == 1
    assert done.out == b"".join(b"%d:content of %d\n" % (i, i) for i in range(9) if i != 4)
    assert done.err.count("\n") == 1 and "c: 4: " in done.err


def test_lines_of_a_binary_file_are_printed_if_asked_for(run: Run) -> None:
    stored.make("c", {"b\n": b"error\0\nan error\n", "t": b"error\n"})
    message = "winkfs: c: b\\n: binary file matches\n"
    assert run("grep", "c", "error") == Done(0, b"t:error\n", message)
    assert run("grep", "-a", "c", "an e") == Done(0, b"b\n:an error\n", "")
    assert run("grep", "-c", "c", "error") == Done(0, b"b\n:2\nt:1\n", "")
    assert run("grep", "-l", "c", "an e") == Done(0, b"b\n\n", "")


@pytest.mark.parametrize("fewer", [1, 99])
def test_odd_files_among_many(run: Run, monkeypatch: pytest.MonkeyPatch, fewer: int) -> None:
    """Without a newline at the end, or with a NUL byte; the others are searched together if these
    are few."""
    monkeypatch.setattr(search, "FEWER", fewer)
    files = {f"{i:03}": b"an error\n%d errors\n" % i for i in range(99)}
    odd = {"000": b"error at\nthe end", "017": b"none\0\n", "018": b"\0error", "019": b"error\0\n",
           "020": b"er", "021": b"ror\n", "098": b"error"}  # fmt: skip
    stored.make("c", files | odd)
    expected = list[str]()
    for name, data in sorted((files | odd).items()):
        lines = data.decode().splitlines()
        found = [f"{name}:{i + 1}:{line}" for i, line in enumerate(lines) if "error" in line]
        expected += [] if "\0" in lines[0] else found
    done = run("grep", "-n", "c", "error")
    assert done.out.decode().splitlines() == expected
    assert done.err.splitlines() == [
        f"winkfs: c: {name}: binary file matches" for name in ("018", "019")
    ]
    counted = run("grep", "-c", "c", "error").out.decode().splitlines()
    assert counted == [
        f"{name}:{sum(b'error' in line for line in data.splitlines())}"
        for name, data in sorted((files | odd).items())
    ]


@pytest.mark.parametrize(
    "args",
    [
        ["-w", "foo"], ["foo|bar"], ["-o", "foo|a"], ["-om", "1", "a"], ["-on", "o+"],
        ["-oa", "r"], ["-ow", "foo|a"], ["-o", "-e", "foo", "-e", "foo_"], ["-vnm", "2", "a"],
        ["-wc", "foo"], ["-vo", "foo"],
    ],
)  # fmt: skip
def test_contents_are_searched_together_as_one_by_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    stored.make("c", texts() | {"b/nul": b"foo\n\0 error a\n", "long": b"a" * 70 + b" foo\n"})
    named = "-e" in args
    given = [*args, "c"] if named else [*args[:-1], "c", args[-1]]
    monkeypatch.setattr(search, "FEWER", 0)
    found = run("grep", *given)
    monkeypatch.setattr(search.native, "code", None)
    alone = run("grep", *given)
    assert sorted(found.out.splitlines()) == sorted(alone.out.splitlines())
    assert (found.status, found.err) == (alone.status, alone.err)
    assert bool(found.out) == ("-vo" not in args)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_words_are_whole(run: Run, end: bytes) -> None:
    stored.make("c", {"a": b"foobar\nfoo bar\nfoo_\nafoo foo" + end})
    assert run("grep", "-hnw", "c", "foo").out == b"2:foo bar\n4:afoo foo\n"
    assert run("grep", "-hnw", "c", "bar|foo").out == b"2:foo bar\n4:afoo foo\n"
    assert run("grep", "-how", "c", "bar|foo").out == b"foo\nbar\nfoo\n"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_only_ascii_letters_have_a_case(run: Run, end: bytes) -> None:
    """GNU grep folds the others in UTF-8 locales: docs/archive.md."""
    lines = [
        "K",
        "k",
        "\N{KELVIN SIGN}",
        "s",
        "S",
        "\N{LATIN SMALL LETTER LONG S}",
        "É",
        "é",
        "@",
        "`",
    ]
    stored.make("c", {"a": "\n".join(lines).encode() + end})
    for pattern, found in (
        ("K", "Kk"),
        ("s", "sS"),
        ("É", "É"),
        ("`", "`"),
        ("@", "@"),
        ("É|k", "KkÉ"),
    ):
        assert run("grep", "-hi", "c", pattern).out.decode() == "".join(f"{c}\n" for c in found)


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("error", [1, 3]), ("error$", []), ("^error", [3]), (r"error\r$", [1, 3]), ("^$", [4]),
        (r"(?<=n )err", [1]), (r"(?<!n )err", [3]), (r"(?i)N ERR|\A\r", [1, 2]), ("err(?!or)", []),
        ("(?s)error.error", []), (r"error\r\nerror", []), (r"(r)\1or", [1, 3]), (r"^\r", [2]),
        ("(?x) n [ ] err # x", [1]), ("(?-i:ERR)|n err?", [1]), (r"(?i:ERR)or\r", [1, 3]),
        ("(an )?error", [1, 3]), ("(an )error", [1]), ("(?=error)", [1, 3]), ("x*", [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_expressions_and_carriage_returns(run: Run, pattern: str, numbers: list[int]) -> None:
    lines = [b"an error\r", b"\r", b"error\r", b""]
    stored.make("c", {"a": b"\n".join([*lines, b""])})
    expected = b"".join(b"%d:%b\n" % (n, lines[n - 1]) for n in numbers)
    assert run("grep", "-hn", "c", pattern).out == expected


def test_quiet_prints_nothing(run: Run, tree: Path) -> None:
    assert run("grep", "-q", "c", "error") == Done(0, b"", "")
    assert run("grep", "-q", "c", "nothing at all") == Done(1, b"", "")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["c", "("], "pattern (: missing ), unterminated subpattern"),
        (["c", "[[:digit:]]"], "write [0-9]"),
        (["c"], "name a PATTERN"),
        (["c", "x", "-m", "-1"], "-1"),
    ],
)
def test_wrong_usage_is_one_line(run: Run, args: list[str], text: str) -> None:
    stored.make("c")
    assert text in one_line(run("grep", *args), 2)


def test_help_is_h_only_alone(run: Run) -> None:
    assert run("grep", "-h").out == run("grep", "--help").out != b""


def test_a_reader_that_ends_early_ends_it(tmp_path: Path) -> None:
    stored.make(tmp_path / "c", {f"{i:05}": b"line\n" * 99 for i in range(3000)})
    command = [*PROGRAM, "grep", "--jobs", "2", str(tmp_path / "c"), "line"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"00000:line\n"
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("error", "error"), ("^error$", "error"), ("err(or)?ss", "err+ss"), ("(error)+", "error"),
        ("a|bc", "a bc"), ("foo(bar|baz)", "foobar foobaz"), ("x?yyy", "yyy"),
        ("(?i:ab)cdef", "cdef"),
        ("[0-9]+", ""), ("a.bcd", "bcd+a"), ("(?i)ABC", "abc"), ("", ""), (r"\.txt", ".txt"),
        ("a|", ""), ("(a|b)c", "ac bc"), ("x(abc|def+)", "abc de+f"), (r"a\nb", ""),
        (r"(a)\1", "a"), ("([ab]x|cd)[^a]", "x cd"),
        ("(?=abc)d", "d"), ("(?!abc)", ""), ("(?:ab)*c", "c"), ("(?:ab){2}", "ab"), ("a|b*", ""),
        ("[^a]b", "b"), ("(a)?(?(1)bc|de)", ""), ("[ab][cd][ef][gh]", ""), ("(?-i:A)", "A"),
    ],
)  # fmt: skip
def test_the_literals_that_each_match_has(pattern: str, literals: str) -> None:
    """Texts of an alternative with +, alternatives with a space between them."""
    found = Pattern(pattern.encode(), fixed=False, ignore_case=False, word=False).literals
    assert b" ".join(map(b"+".join, found)).decode() == literals


@pytest.mark.parametrize(
    "pattern",
    [r"(?<=a)b", r"(?<!a)b", r"b(?!\s)", r"\Aa", r"b\Z", r"\s+b", r"a[^b]*b", r"[^a]", r"(?s)a.b",
     r"\bb\b", r"(?m)^b$", r"(a)\1", r"b*", r"\s", r"(?:a|b)$", r"^(?!a)"],
)  # fmt: skip
def test_lines_are_matched_by_themselves(pattern: str) -> None:
    draw = random.Random(3)
    for text in ["".join(draw.choices("ab \n", k=draw.randrange(40))).encode() for _ in range(200)]:
        lines = text.split(b"\n")[: -1 if text.endswith(b"\n") else None] if text else []
        expected = [line for line in lines if re.search(pattern.encode(), line)]
        one = Pattern(pattern.encode(), fixed=False, ignore_case=False, word=False)
        assert [text[a:b] for a, b in one.lines(text, text)] == expected, text


def test_a_possessive_pattern_is_matched_by_line() -> None:
    one = Pattern(rb"[^b]*+$", fixed=False, ignore_case=False, word=False)
    text = b"aa\naab\n"
    assert [text[a:b] for a, b in one.lines(text, text)] == [b"aa", b"aab"]
