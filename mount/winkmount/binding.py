"""The bindings of a mount: the kernel's protocol, the default, fusepy (libfuse 2), mfusepy (3).

mfusepy takes libfuse 2 where both libraries are installed, and fusepy crashes on libfuse 3, so the
library is found here and named to them through FUSE_LIBRARY_PATH while they are imported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from winkmount.handles import FOREVER, Caching
from winkmount.kernel.device import Pace, Refused
from winkmount.operations import Operations
from winkmount.source import Nodes, Numbered, Source

KERNEL: Final = "kernel"  # no libfuse at all
BINDINGS: Final = (KERNEL, "mfusepy", "fusepy")
ENVIRONMENT: Final = "WINKMOUNT_BINDING"  # the default of `choose`
LIBRARY_PATH: Final = "FUSE_LIBRARY_PATH"  # read by both bindings; also a person's way to say it
_LIBRARIES: Final = {
    "mfusepy": (3, ("libfuse3.so.4", "libfuse3.so.3")),
    "fusepy": (2, ("libfuse.so.2",)),
}
_PACKAGES: Final = {"mfusepy": "fuse3", "fusepy": "libfuse2"}
_REQUIREMENTS: Final = {"mfusepy": "'winkfs[fuse3]'", "fusepy": "fusepy"}  # for pip
_MODULES: Final = {"mfusepy": "mfusepy", "fusepy": "fuse"}


class MountError(OSError):
    """The mount cannot be made; the text says why and what to do."""


class BusyError(MountError):
    """Somebody uses the mount that is to be taken away."""


class LibfuseError(MountError):
    """libfuse refused; it has said why on stderr."""


def choose(binding: str | None = None) -> str:
    """-> the binding to use, with its library and its package present.

    binding     one of BINDINGS, or None: what the environment says, else KERNEL
    raises      MountError naming the package that is missing
    """
    name = binding or os.environ.get(ENVIRONMENT) or KERNEL
    if name not in BINDINGS:
        raise MountError(f"{ENVIRONMENT}={name}: must be one of {', '.join(BINDINGS)}")
    if usable(name):
        return name
    if library(name):
        raise MountError(f"{name} is not installed: pip install {_REQUIREMENTS[name]}")
    number = _LIBRARIES[name][0]
    raise MountError(f"libfuse {number} is not installed: apt install {_PACKAGES[name]}")


def usable(binding: str) -> bool:
    """Whether there is what it needs, beside the device."""
    return binding == KERNEL or (library(binding) is not None and installed(binding))


def installed(binding: str) -> bool:
    """Whether the Python package of this binding can be imported."""
    return importlib.util.find_spec(_MODULES[binding]) is not None


def library(binding: str) -> str | None:
    """-> what to load for this binding: a path or a soname, or None where there is none."""
    major, names = _LIBRARIES[binding]
    for name in (os.environ.get(LIBRARY_PATH), *names):
        if name and _major(name) == major:
            return name
    return None


def _major(name: str) -> int:
    """Major version of the libfuse in this file; 0 where there is none."""
    try:
        version = int(ctypes.CDLL(name).fuse_version())
    except (OSError, AttributeError):
        return 0
    return version // 10 if version < 100 else version // 100  # 29 is 2.9, 314 is 3.14


def run(
    binding: str,
    operations: Operations,
    nodes: Nodes | None,
    mountpoint: str,
    options: Mapping[str, str | bool],
    pace: Pace,
) -> None:
    """Mount and serve until the mount is gone or a signal ends it.

    options     for libfuse: name -> value, or True for a flag
    pace        of the kernel binding
    raises      LibfuseError
    """
    if binding == KERNEL:
        engine = importlib.import_module("winkmount.kernel.engine")
        try:
            engine.serve(operations, nodes, mountpoint, dict(options), pace)
        except Refused as error:
            raise MountError(str(error)) from None
        return
    # one thread: all operations take one lock anyway, and before libfuse 3.15 two threads can leave
    # a .fuse_hidden file behind when an unlink meets the last close (libfuse issue 746)
    settings = {"use_ino": True, "nothreads": True, "foreground": True, **options}
    serve = _mfusepy() if binding == "mfusepy" else _fusepy()
    try:
        serve(operations, os.fsencode(mountpoint).decode("latin-1"), settings)
    except RuntimeError as error:  # a code of fuse_main_real; also after an end by a signal
        if not operations.started:
            raise LibfuseError(f"libfuse cannot mount on {mountpoint} (code {error})") from None


def _mfusepy() -> Any:
    with _library_path("mfusepy"):
        mfusepy = importlib.import_module("mfusepy")
    if mfusepy.fuse_version_major != 3:
        raise MountError("mfusepy was loaded with libfuse 2 before; start a process of its own")
    fuse3 = importlib.import_module("winkmount.fuse3")

    def engine(operations: Operations, mountpoint: str, settings: dict[str, Any]) -> None:
        operations.context = mfusepy.fuse_get_context
        fuse = fuse3.make(mfusepy)
        fuse(operations, mountpoint, raw_fi=True, encoding="latin-1", **settings)

    return engine


def numbers_of(binding: str, source: Source, caching: Caching) -> Nodes | None:
    """The numbers that a Source itself has, where they are served: nothing of it ever changes."""
    if binding == KERNEL and caching.fixed and isinstance(source, Numbered):
        return source.numbered()
    return None


def _fusepy() -> Any:
    with _library_path("fusepy"):
        fuse = importlib.import_module("fuse")

    class Called:
        """fusepy asks operations(name, ...) where mfusepy asks operations.name(...)."""

        def __init__(self, operations: Operations) -> None:
            self.operations = operations

        def __getattr__(self, name: str) -> Any:
            return getattr(self.operations, name)

        def __call__(self, name: str, *args: Any) -> Any:
            found = getattr(self.operations, name)(*args)
            if name == "open" and self.operations.caching.names != FOREVER:
                args[1].keep_cache = 0  # auto_cache says it
            return found

    def engine(operations: Operations, mountpoint: str, settings: dict[str, Any]) -> None:
        operations.context = fuse.fuse_get_context
        # as libfuse 3 does by itself
        settings |= {"big_writes": True, "atomic_o_trunc": True, "nonempty": True}
        caching = operations.caching
        settings |= {"entry_timeout": caching.names, "attr_timeout": caching.names}
        # auto_cache: pages are kept while size and time of the file stay the same
        keeps = "kernel_cache" if caching.names == FOREVER else "auto_cache"
        settings |= {"negative_timeout": caching.missing, keeps: caching.pages}
        fuse.FUSE(Called(operations), mountpoint, raw_fi=True, encoding="latin-1", **settings)

    return engine


@contextmanager
def _library_path(binding: str) -> Iterator[None]:
    before = os.environ.get(LIBRARY_PATH)
    os.environ[LIBRARY_PATH] = library(binding) or ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[LIBRARY_PATH]
        else:
            os.environ[LIBRARY_PATH] = before
