"""Ray Data over parts of a store, and over tables in it. `make test-tools` installs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tables import SIZES, documents_in, run_program, tables_in

import winkfs

pytest.importorskip("ray", reason="not installed: make test-tools")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
CODE = """import json, logging, winkfs
import ray
def read(batch):
    for part in batch["item"]:
        yield part.to_arrow()
if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    for kind in ("container", "data set"):
        with winkfs.open(f"documents of a {kind}") as c:
            parts = c.parts(3, ["path", "size", "content"])
        items = ray.data.from_items(parts, override_num_blocks=len(parts))
        files = items.map_batches(read, batch_size=1).materialize()
        rows = files.take_all()
        fs = winkfs.fs(f"tables of a {kind}")
        tables = [ray.data.read_csv("csv", filesystem=fs).count(),
                  ray.data.read_parquet("pq", filesystem=fs).count()]
        print(json.dumps([files.count(), sum(row["size"] for row in rows),
                          sum(len(row["content"]) for row in rows), tables]))
    ray.shutdown()"""


def test_ray_reads_parts_and_tables(tmp_path: Path) -> None:
    for kind in ("container", "data set"):
        documents_in(tmp_path / f"documents of a {kind}", kind)
        tables_in(tmp_path / f"tables of a {kind}", kind)
    found = [json.loads(line) for line in run_program(CODE, tmp_path).splitlines()]
    assert found == [[20, SIZES, SIZES, [10, 10]]] * 2


OWN = """import json, os
import ray, winkfs, winkfs.ray
from ray.data.expressions import col
def spoil(row):
    return {**row, "path": "" if row["path"].endswith("07.html") else row["path"]}
def caught(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    for base in ("documents of a container", "documents of a data set"):
        files = winkfs.ray.read(base, override_num_blocks=3)
        wanted = (col("lang") == "de") & ((col("score") > 1) | col("score").is_null())
        german = winkfs.ray.read(base).filter(expr=wanted).select_columns(["path"])
        print(json.dumps([
            files.count(), [row["path"] for row in german.take_all()],
            winkfs.ray.read(base).filter(expr=col("path").is_in(["docs/01.html"])).count(),
            winkfs.ray.read(base, where="lang = 'it'").count(), len(files.limit(4).take_all())]))
    winkfs.ray.write(files, "out")
    with winkfs.open(base) as a, winkfs.open("out") as b:
        print(json.dumps([b.generation, len(b.shards), b.columns == a.columns,
            a.to_arrow(order="name") == b.to_arrow(a.to_batches().schema.names, order="name")]))
    print(json.dumps([caught(lambda: winkfs.ray.write(files.map(spoil), "out")),
        caught(lambda: winkfs.ray.read("none")), caught(lambda: winkfs.ray.read(base, ["x"]))]))
    with winkfs.open("out") as found:
        print(json.dumps([found.generation, os.listdir("out/_pending")]))
    winkfs.ray.write(files.limit(3), "out", mode="overwrite")
    winkfs.ray.write(files.limit(0), "out")
    with winkfs.open("out") as found:
        print(json.dumps([found.generation, len(found)]))
    ray.shutdown()"""


def test_the_datasource_and_the_datasink(tmp_path: Path) -> None:
    for kind in ("container", "data set"):
        documents_in(tmp_path / f"documents of a {kind}", kind)
    *read, written, refused, left, replaced = map(
        json.loads, run_program(OWN, tmp_path).splitlines()
    )
    german = [f"docs/{i:02}.html" for i in (7, 9, 11, 13, 17, 19)]
    assert [sorted(each[1]) for each in read] == [german] * 2
    assert [each[:1] + each[2:] for each in read] == [[20, 1, 0, 4]] * 2
    assert written[:1] + written[2:] == [1, True, True] and written[1] > 1
    assert refused[0][0] == "BadRows" and "\n" not in refused[0][1]
    assert refused[1][0] == "NoSuchFile" and refused[2][0] == "ValueError"
    assert left == [1, []] and replaced == [2, 3]


def test_filters_are_conditions_that_leave_nothing_out(tmp_path: Path) -> None:
    """What the condition of a filter leaves out, Arrow leaves out, too."""
    from ray.data.expressions import col, lit

    from winkfs.ray.filters import condition

    base = documents_in(tmp_path / "c", "container")
    lang, score, path, size = col("lang"), col("score"), col("path"), col("size")
    filters: list[tuple[Any, int | None]] = [
        (lang == "de", 8), (lit("de") == lang, 8), (lang != "de", 8), (score >= 2.5, 8),
        (lit(2.5) <= score, 8), (score.is_null(), 4), (score.is_not_null() & (size > 100), 3),
        ((lang == "de") | (size < 10), 9), ((lang == "de") & (score + 1 > 3), 5),
        (path == "docs/03.html", 1), (path.is_in(["docs/03.html", "x"]), 1), (lang.is_in([]), None),
        ((lang == "de") | (score + 1 > 3), None), (~(lang == "de"), None), (path > "docs/1", None),
        (lang == score, None), (lang == 5, None), (score == float("nan"), None),
    ]  # fmt: skip
    with winkfs.open(base) as c:
        table, columns = c.to_arrow(["path", "size", "lang", "score"]), c.columns
        for number, (wanted, files) in enumerate(filters):
            text = condition(wanted, columns)
            assert (text is None) == (files is None), (number, text)
            if text is not None:
                found = c.to_arrow(["path"], where=text)["path"].to_pylist()
                kept = table.filter(wanted.to_pyarrow())["path"].to_pylist()
                assert set(found) >= set(kept), (number, text)
                assert len(kept) == files, (number, text, len(kept))
                assert number == 8 or len(found) == len(kept), (number, text, len(found))
