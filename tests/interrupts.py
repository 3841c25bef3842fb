"""Ctrl-C at a chosen line of our code."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from container_checks import ROOT

OURS = (str(ROOT / "winkfs"), str(ROOT / "formats"))


class Interrupter:
    """Raises KeyboardInterrupt at the n-th line event in our files; 0: only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.lines, self.fired = at, 0, ""

    def __enter__(self) -> Interrupter:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.fired = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line
