"""Stores with documents and with tables as CSV, Parquet and JSON, for tests of other tools."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import stored

import winkfs
import winkfs.dataset

ROWS = [{"x": i, "y": chr(97 + i)} for i in range(10)]  # of the tables, half of them in each file
COLUMNS = {"lang": "string", "score": "float64"}
DOCUMENTS = [  # name, content, time, columns
    (f"docs/{i:02}.html", b"\xff<p>%d" % i * i, 1_700_000_000 + i,
     {"lang": "de" if i % 2 else "fr", "score": i / 4} if i % 5 else None)
    for i in range(20)
]  # fmt: skip
SIZES = sum(len(row[1]) for row in DOCUMENTS)


def csv(rows: list[dict[str, Any]]) -> bytes:
    return ("x,y\n" + "".join(f"{row['x']},{row['y']}\n" for row in rows)).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def files() -> dict[str, bytes]:
    """Return the tables, by name."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    both = [("a", ROWS[:5]), ("b", ROWS[5:])]
    made = {f"csv/{name}.csv": csv(rows) for name, rows in both}
    return made | {f"pq/{name}.parquet": parquet(rows) for name, rows in both} | {
        "json/a.json": lines.encode(), "text/a.txt": b"one\n", "text/b.txt": b"two\n",
    }  # fmt: skip


def tables_in(path: Path, kind: str) -> Path:
    """Make a container or a data set of the tables."""
    if kind == "container":
        return stored.make(path, files())
    with winkfs.dataset.create(path) as made:
        made.put_many(files().items())
    return path


def documents_in(path: Path, kind: str) -> Path:
    """Make a container, or a data set of two commits, of the documents."""
    if kind == "container":
        return stored.make(path, DOCUMENTS, columns=COLUMNS)
    with winkfs.dataset.create(path) as made:
        made.add_columns(COLUMNS)
        made.put_many(DOCUMENTS[:12])
    with winkfs.open(path, "a") as made:
        made.put_many(DOCUMENTS[12:])
    return path


def run_program(code: str, folder: Path) -> str:
    """Run a program in a process of its own; return what it prints.

    For tools that start threads or processes. An unclosed store fails the test. A thread of pyarrow
    may abort a program that has ended, after reads from any filesystem in Python:
    https://github.com/apache/arrow/issues/45214.
    """
    program = folder / "program.py"
    ending = "if __name__ == '__main__':\n    print('at its end', flush=True)\n"
    program.write_text(f"{code}\n\n{ending}")
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", program.name], cwd=folder, text=True,
        capture_output=True, timeout=300, env=os.environ | {"HF_HOME": str(folder / "hub")},
    )  # fmt: skip
    printed, ended, _ = done.stdout.partition("at its end\n")
    assert ended and done.returncode in (0, -signal.SIGABRT), done.stderr
    assert done.returncode == 0 or "terminate called without an active" in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return printed
