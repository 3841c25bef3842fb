"""A memory cgroup with a limit, of the version that the kernel has. Only root may make one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

MOUNTS: Final = Path("/proc/self/mounts")


class MemoryGroup:
    """A cgroup of its own below the root of the hierarchy.

    limit   bytes; None: none
    raises  OSError, where there is no hierarchy or it may not be changed: one line says what
    """

    def __init__(self, name: str, limit: int | None) -> None:
        root, self.version = _hierarchy()
        self.path = root / f"{name}-{os.getpid()}"
        self.path.mkdir()
        self.limit(limit)

    def limit(self, size: int | None) -> None:
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        none = "max" if self.version == 2 else "-1"
        (self.path / name).write_text(none if size is None else str(size))

    def used(self) -> int:
        """Bytes charged to it: of its own, page cache and kernel."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text())

    def anonymous(self) -> int:
        """Bytes of its processes' own."""
        key = "anon" if self.version == 2 else "rss"
        fields = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(fields[key])

    def command(self, command: Sequence[str]) -> list[str]:
        """The command, to run in this cgroup from its first page on."""
        enter = f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *command]

    def close(self) -> None:
        for _ in range(100):  # a process that has just ended may still be in it
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _hierarchy() -> tuple[Path, int]:
    """Where memory cgroups are made, and their version."""
    found = [line.split() for line in MOUNTS.read_text().splitlines()]
    for _, where, kind, options, *_ in found:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(where), 1
    for _, where, kind, *_ in found:
        root = Path(where)
        if kind == "cgroup2" and "memory" in (root / "cgroup.controllers").read_text().split():
            (root / "cgroup.subtree_control").write_text("+memory")
            return root, 2
    raise OSError("this kernel has no memory cgroups, or they are not mounted")
