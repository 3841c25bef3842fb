"""Commands of winkfs without the time that their imports take: each is a fork of a process that has
them already.

    status, out, err = run(["mount", base, directory])

A test of how a command starts, or of what it may import, starts a Python: `mounting.WINKFS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = os.pathsep.join(map(str, (ROOT, ROOT / "formats", ROOT / "mount")))
_parent: subprocess.Popen[str] | None = None


def run(arguments: Sequence[str], seconds: float, cwd: Path | None = None) -> tuple[int, str, str]:
    """Run `winkfs ARGUMENTS` with the environment of now -> exit status, stdout, stderr."""
    from mounting import is_readable

    global _parent
    if _parent is None or _parent.poll() is not None:
        _parent = subprocess.Popen(
            [sys.executable, __file__], env=os.environ | {"PYTHONPATH": PACKAGES},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert _parent.stdin is not None and _parent.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        folder = os.fspath(cwd or Path.cwd())
        asked = (list(arguments), folder, dict(os.environ), out.name, err.name)
        _parent.stdin.write(json.dumps(asked) + "\n")
        _parent.stdin.flush()
        if not is_readable(_parent.stdout.fileno(), seconds):
            state = _stuck()
            end(kill=True)
            raise TimeoutError(f"{arguments} took over {seconds} s: {err.read()}\n{state}")
        return int(_parent.stdout.readline() or 1), out.read(), err.read()


def _stuck() -> str:
    """What the processes of winkfs, those that wait for a disk and those in mount namespaces of
    their own wait for."""
    found = []
    ours = os.readlink("/proc/self/ns/mnt")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = os.fsdecode((process / "cmdline").read_bytes()).replace("\0", " ")[:150]
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if os.readlink(process / "ns/mnt") != ours:
                state += " in another mount namespace"
            if len(state) > 1 or state == "D" or "winkfs" in command or "warm" in command:
                where = " ".join((process / "stack").read_text().split()[1::2][:6])
                found.append(f"{process.name} {state}: {command}: {where}")
    return "\n".join(found)


def end(*, kill: bool = False) -> None:
    """Stop what `run` keeps running."""
    global _parent
    if _parent is not None:
        if kill:
            _parent.kill()
        _parent.communicate()
    _parent = None


def _serve() -> None:
    """Returns in the child, as the program that was asked for; the parent ends with its input."""
    import gc

    import winkfs.cli.mount
    import winkfs.container.container
    import winkfs.mounting.appendonly
    import winkfs.mounting.dataset
    import winkfs.registry  # noqa: F401
    import winkmount.kernel.server
    import winkmount.service  # noqa: F401

    gc.freeze()  # what is never collected is not copied
    while line := sys.stdin.readline():
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            return _become(*asked)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    os._exit(0)


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str
) -> None:
    os.chdir(folder)
    more = environment.get("PYTHONPATH", "").split(os.pathsep)  # that of a plug-in, say
    sys.path[1:1] = [path for path in more if path and path not in sys.path]
    os.environ.clear()
    os.environ.update(environment)
    for fd, path in enumerate((os.devnull, out, err)):
        new = os.open(path, os.O_RDWR)
        os.dup2(new, fd)
        os.close(new)
    sys.argv = ["winkfs", *arguments]


def main() -> NoReturn:
    _serve()
    from winkfs.cli import main

    sys.exit(main())


if __name__ == "__main__":
    main()
