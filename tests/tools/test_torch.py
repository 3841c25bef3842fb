"""PyTorch: a DataLoader over rows of a store, and over its parts. `make test-tools` installs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tables import DOCUMENTS, documents_in, run_program

pytest.importorskip("torch", reason="not installed: make test-tools")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.in_memory
PAGE = Path(__file__).resolve().parents[2] / "docs/tools.md"
LOAD = """
if __name__ == "__main__":
    for base in BASES:
        with winkfs.open(base) as c:
            for make in (Documents, Stream):
                dataset = make(c)
                first = next(iter(dataset))  # the store is open when workers are forked
                loader = DataLoader(dataset, batch_size=3, shuffle=make is Documents,
                                    num_workers=WORKERS, multiprocessing_context=CONTEXT)
                rows = [row for batch in loader for row in zip(batch["path"], batch["content"])]
                print(json.dumps(sorted((path, list(content)) for path, content in rows)))
"""


def classes() -> str:
    """Return the classes of the page, which are what is tested."""
    section = PAGE.read_text().partition("## PyTorch")[2]
    (code,) = re.findall(r"```python\n(.*?)\n\n\nif __name__", section, re.DOTALL)
    return f"import json\nimport winkfs\n{code}\n"


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (1, "spawn")])
def test_loaders_have_each_file_once(tmp_path: Path, workers: int, context: str | None) -> None:
    kinds = ("container", "data set")
    bases = [str(documents_in(tmp_path / f"a {kind}", kind)) for kind in kinds]
    settings = f"BASES, WORKERS, CONTEXT = {bases}, {workers}, {context!r}\n"
    found = run_program(classes() + settings + LOAD, tmp_path).splitlines()
    expected = [[name, list(content)] for name, content, *_ in DOCUMENTS]
    assert [json.loads(line) for line in found] == [expected] * 4


def test_a_sample_is_read_alone_and_in_a_subset(tmp_path: Path) -> None:
    base = documents_in(tmp_path / "c", "container")
    code = f"""{classes()}
from torch.utils.data import Subset
with winkfs.open({str(base)!r}) as c:
    documents = Documents(c)
    some = Subset(documents, [5, 3])
    print([row["path"] for row in (documents[3], some[0], *some.__getitems__([0, 1]))])"""
    found = json.loads(run_program(code, tmp_path).replace("'", '"'))
    assert found == [f"docs/{i:02}.html" for i in (3, 5, 5, 3)]
