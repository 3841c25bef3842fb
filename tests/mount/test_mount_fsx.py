"""One file read and written in every way there is, against a bytearray: see fsx.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fsx import Exerciser, Wrong
from mounting import TESTS, all_at_once, mounted

import winkfs

pytestmark = pytest.mark.in_memory

PART = 50_000  # operations in one container, which grows by all that is written
LARGEST = [256 << 10, 40_000, 3 << 20]  # bytes; the last one is gathered and stored in parts


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.soak
@pytest.mark.parametrize("largest", LARGEST)
def test_random_reads_and_writes_of_one_file(
    tmp_path: Path, seed: int, amount: Callable[[str], int], largest: int
) -> None:
    """Two processes, each with a file of its own; then a remount, and on with the same files."""
    total = amount("fsx") // len(LARGEST)
    for part, done in enumerate(range(0, total, PART)):
        base = str(tmp_path / f"corpus{part}")
        winkfs.create(base).close()
        models = [tmp_path / f"model{part}{name}" for name in "ab"]
        for turn in range(2):
            with mounted(base, "-o", "sync_every=0.2", patience=600) as there:
                operations = min(PART, total - done) // 4
                numbers = ["--operations", operations, "--largest", largest, "--seed"]
                first = seed * 1000 + part * 4 + turn * 2
                all_at_once(*[
                    [TESTS / "fsx.py", there / model.name, model, *numbers, first + number]
                    for number, model in enumerate(models)
                ])  # fmt: skip
        assert winkfs.verify(base).problems == []
        with winkfs.open(base) as container:
            for model in models:
                assert container.read(model.name) == model.read_bytes()
        Path(base + ".data").unlink()


@pytest.mark.parametrize("at", [0, 4096, 99_999])
def test_a_wrong_byte_is_found(tmp_path: Path, at: int) -> None:
    content = bytes(100_000)
    (tmp_path / "f").write_bytes(content[:at] + b"x" + content[at + 1 :])
    with pytest.raises(Wrong, match=f"^at {at}: "):
        Exerciser(tmp_path / "f", 1, 200_000, content)
