"""Make the golden files that are missing, and say of the others whether they would still come out.

    python tests/golden/make.py

Never overwrites: a golden file that comes out otherwise is a change of the format (exit 1).
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import golden_containers  # noqa: E402, its folder was not in the path before
import golden_formats  # noqa: E402


def make_all(folder: Path) -> None:
    """Every golden file, into an empty folder."""
    for name, recipe in (golden_formats.RECIPES | golden_containers.RECIPES).items():
        with golden_formats.pinned(name):
            recipe(folder / name)
    for lock in folder.glob("*.lock"):
        lock.unlink()


def main() -> int:
    wrong = new = 0
    with tempfile.TemporaryDirectory() as folder:
        make_all(Path(folder))
        for made in sorted(Path(folder).iterdir()):
            kept = HERE / made.name
            if not kept.exists():
                kept.write_bytes(made.read_bytes())
                new += 1
            elif kept.read_bytes() != made.read_bytes():
                print(f"{kept.name} comes out otherwise", file=sys.stderr)
                wrong += 1
    print(f"{new} new, {wrong} otherwise")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
