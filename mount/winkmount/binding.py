"""The bindings of a mount: the kernel's protocol, the default, and fusepy (libfuse 2).

fusepy crashes on libfuse 3, so the library is found here and named to it through
FUSE_LIBRARY_PATH.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import Final

KERNEL: Final = "kernel"  # no libfuse at all
FUSEPY: Final = "fusepy"
BINDINGS: Final = (KERNEL, FUSEPY)
ENVIRONMENT: Final = "WINKMOUNT_BINDING"  # the default of `choose`
LIBRARY_PATH: Final = "FUSE_LIBRARY_PATH"  # read by fusepy; a user may set it, too
LIBRARY: Final = "libfuse.so.2"
LIBFUSE: Final = "libfuse cannot mount"  # begins an error, whose reason libfuse writes to stderr


class MountError(OSError):
    """The mount cannot be made; the text has the reason and what to do."""


class BusyError(MountError):
    """The mount that is to be taken away is in use."""


def choose(binding: str | None = None) -> str:
    """Return the binding to use, with its library and its package present.

    binding     one of BINDINGS, or None: as the environment has it, else KERNEL
    raises      MountError naming the package that is missing
    """
    name = binding or os.environ.get(ENVIRONMENT) or KERNEL
    if name not in BINDINGS:
        raise MountError(f"{ENVIRONMENT}={name}: must be one of {', '.join(BINDINGS)}")
    if lack := missing(name):
        raise MountError(lack)
    return name


def missing(binding: str) -> str:
    """Return what a binding lacks, beside the device, and how to get it; "": nothing."""
    if binding == KERNEL:
        return ""
    if library() is None:
        return "libfuse 2 is not installed: apt install libfuse2"
    if importlib.util.find_spec("fuse") is None:
        return "fusepy is not installed: pip install fusepy"
    return ""


def library() -> str | None:
    """Return what fusepy is to load: a path or a soname; None: there is no libfuse 2."""
    for name in (os.environ.get(LIBRARY_PATH), LIBRARY):
        try:
            if name and int(ctypes.CDLL(name).fuse_version()) // 10 == 2:  # 29 is 2.9
                return name
        except (OSError, AttributeError):
            pass
    return None
