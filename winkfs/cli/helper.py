"""mount.winkfs and umount.winkfs, which mount(8) and umount(8) run for `-t winkfs` and fstab.

    mount.winkfs BASE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
    umount.winkfs DIR [-flnrv] [-N NAMESPACE] [-t TYPE]

They are `winkfs mount` and `winkfs umount` with the flags and exit statuses of mount(8).
"""

from __future__ import annotations

import getopt
import sys
from collections.abc import Callable, Sequence
from typing import Final

from winkfs.cli import main
from winkfs.cli._common import warn

WRONG_USAGE: Final = 1  # the exit status of mount(8)
_STATUS: Final = {1: 32, 2: WRONG_USAGE}  # ours: that of mount(8)


def mount() -> int:
    """Run mount.winkfs -> exit status."""
    return _helper("mount.winkfs BASE DIR [-sfnv] [-o OPTIONS]", 2, "sfnvrwN:o:t:", _mount)


def umount() -> int:
    """Run umount.winkfs -> exit status."""
    return _helper("umount.winkfs DIR [-fln]", 1, "flnrvN:t:", _umount)


def _helper(
    usage: str, count: int, letters: str, command: Callable[[dict[str, str], list[str]], int]
) -> int:
    try:
        pairs, places = getopt.gnu_getopt(sys.argv[1:], letters)
    except getopt.GetoptError as error:
        warn(f"{error}: usage: {usage}")
        return WRONG_USAGE
    if len(places) != count:
        warn(f"usage: {usage}")
        return WRONG_USAGE
    flags = dict(pairs)
    flags["-o"] = ",".join(value for flag, value in pairs if flag == "-o")
    status = command(flags, places)
    return _STATUS.get(status, status)


def _mount(flags: dict[str, str], places: list[str]) -> int:
    options = [flags["-o"]]
    options += ["ro"] * ("-r" in flags) + ["sloppy"] * ("-s" in flags)
    if "-f" in flags:
        return _try(options)
    return main(["mount", "-o", ",".join(options), "--", *places])


def _try(options: Sequence[str]) -> int:
    """Check the options without mounting -> exit status."""
    from winkmount.options import parse

    try:
        parse(options)
    except ValueError as error:
        warn(str(error))
        return 2
    return 0


def _umount(flags: dict[str, str], places: list[str]) -> int:
    how = ["--lazy"] * ("-l" in flags) + ["--force"] * ("-f" in flags)
    return main(["umount", *how, "--", *places])
