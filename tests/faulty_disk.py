"""winkfs with a disk that does what a file says: python tests/faulty_disk.py CONTROL COMMAND ...

CONTROL holds `slow SECONDS`: each sync takes so long; `read SECONDS`: each read does; `fail`: the
next sync is EIO; `fail at the end`: all of a server whose mount is gone are; or nothing.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from winkformats import native
from winkfs.cli import main
from winkmount.service import is_ending

control, real = Path(sys.argv[1]), os.fdatasync


def fdatasync(fd: int) -> None:
    what, _, how = control.read_text().strip().partition(" ")
    if what == "slow":
        time.sleep(float(how))
    elif what == "fail" and (not how or is_ending(os.getpid())):
        if not how:
            control.write_text("")
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)


def slowly(read: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        what, _, how = control.read_text().strip().partition(" ")
        if what == "read":
            time.sleep(float(how))
        return read(*args)

    return slow


os.fdatasync = fdatasync
os.pread, os.preadv = slowly(os.pread), slowly(os.preadv)
if native.code is not None:  # which reads by itself
    reader = native.code.reader
    native.code.reader = lambda *given: tuple(map(slowly, reader(*given)))  # type: ignore
sys.exit(main(sys.argv[2:]))
