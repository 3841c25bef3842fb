"""Write the man pages in docs/man, one a command, from the help texts.

python -m scripts.manual
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from winkfs.cli import COMMANDS, cli
from winkfs.cli.manual import page

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs/man"


def pages() -> dict[str, str]:
    """-> name of each file -> its text"""
    listed = [(name, what) for name, (_, what) in COMMANDS.items()]
    found = {"winkfs.1": page(cli, [], listed)}
    return found | {f"winkfs-{name}.1": page(cli, [name]) for name in COMMANDS}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
