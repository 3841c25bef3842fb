"""Ctrl-C at a chosen line of our code."""

from __future__ import annotations

import ast
import signal
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from container_checks import ROOT

OURS = (str(ROOT / "winkfs"), str(ROOT / "formats"))


@cache
def unreachable(path: str) -> frozenset[int]:
    """Lines before which CPython sees no signal. It looks for them after calls and backward jumps:
    what ends a `try` comes inside of it, so none comes before the first line of its `finally`."""
    tree = ast.parse(Path(path).read_text())
    tries = (node for node in ast.walk(tree) if isinstance(node, ast.Try))
    return frozenset(node.finalbody[0].lineno for node in tries if node.finalbody)


class Interrupter:
    """Ctrl-C, at the n-th line event in our files; 0: only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.lines, self.fired = at, 0, ""

    def __enter__(self) -> Interrupter:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        return self._line if path.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if event == "line" and frame.f_lineno not in unreachable(path):
            self.lines += 1
            if self.lines == self.at:
                self.fired = f"{path}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)  # raises here, unless it is held back
        return self._line
