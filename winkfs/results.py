"""A result of many files, written by many: a folder with one record that says which of them count.

    DIR/NAME.json    the record; replaced by rename, so there is a whole result or the one before
    DIR/<job>/...    the files that it names; of another job: left over, or still being written

Digest sets (`digests`) and orders (`orders`) are such folders. One job writes into one at a time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

from winkformats.disk.directory import directory_of
from winkformats.disk.replace import replacing
from winkformats.errors import FormatError
from winkfs.errors import NoSuchFile, WinkError

JOB: Final = re.compile(r"job-[0-9a-f]{16}")
VERSION: Final = 1


def begin(target: str | os.PathLike[str], name: str) -> Path:
    """A new, empty folder in `target` for the files of a job; `target` is made if need be.

    raises  WinkError where `target` is something else than a result of this name; OSError
    """
    root = Path(target).absolute()  # tasks run in other folders
    if root.exists() and not root.is_dir():
        raise WinkError("is a file, not a directory: choose another target", str(root))
    if root.is_dir() and not (root / f"{name}.json").exists():
        strange = [entry for entry in os.listdir(root) if not JOB.fullmatch(entry)]
        if strange:
            what = f"holds {strange[0]!r} but no {name}.json: choose another target"
            raise WinkError(what, str(root))
    folder = root / f"job-{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    return folder


def finish(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Make the files of a job, all synced, the result; those of earlier jobs go.

    record  what the JSON says beside "format", "version" and "job"
    raises  OSError: the result before stays
    """
    root = folder.parent
<<<<<<< HEAD
    directory_of(str(folder)).sync()
    directory_of(str(root)).sync()
=======
    sync_directory(folder)
    sync_directory(root)
>>>>>>> 8dfd6ea (WIP manifests with copies)
    head = {"format": f"winkfs {name}", "version": VERSION, "job": folder.name}
    with replacing(directory_of(str(root)), f"{name}.json") as storage:
        storage.write(0, [json.dumps(head | record, indent=1).encode() + b"\n"])
    storage.close()
    for entry in os.listdir(root):
        if JOB.fullmatch(entry) and entry != folder.name:
            shutil.rmtree(root / entry, ignore_errors=True)


def discard(folder: Path) -> None:
    """Remove the files of a job that failed, and the target where nothing else is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:  # there is something else in it
        return


def load(target: str | os.PathLike[str], name: str, what: str) -> tuple[Path, dict[str, Any]]:
    """The folder with the files of a result, and its record.

    what    what it is called in an error: "digest set"
    raises  NoSuchFile; FormatError: the record is damaged, or of a later version
    """
    path = Path(target) / f"{name}.json"
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"no {what} (there is no {name}.json in it)", str(target)) from None
    try:
        record = json.loads(text)
        job, version = record["job"], record["version"]
        if record["format"] != f"winkfs {name}" or not JOB.fullmatch(job):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: not the record of a {what}: {error}: make it anew") from None
    if version != VERSION:
        raise FormatError(f"{path}: version {version}: this winkfs reads version {VERSION}")
    return Path(target) / job, record
