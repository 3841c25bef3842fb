"""A result of many files, written by many: a folder with one record that says which of them count.

    DIR/NAME.json    the record; replaced by rename, so there is a whole result or the one before;
                     its last field, "xxh3", is XXH3-64 of all bytes before that field's comma
    DIR/<job>/...    the files that it names; of another job: left over, or still being written;
                     among them a copy of the record, for when that is damaged

Digest sets (`digests`) and orders (`orders`) are such folders. One job writes into one at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, Final

import xxhash

from winkformats.disk.paths import absolute, directory_of, locate, make_directory
from winkformats.disk.storage import TEMPORARY, Directory, Kind, replacing
from winkformats.errors import FormatError
from winkfs.errors import NoSuchFile, Refusal

JOB: Final = re.compile(r"job-[0-9a-f]{16}")
VERSION: Final = 1
SUM: Final = re.compile(rb',\n "xxh3": "([0-9a-f]{16})"\n\}\n\Z')


def begin(target: str | os.PathLike[str], name: str) -> Path:
    """A new, empty folder in `target` for the files of a job; `target` is made if need be.

    raises  Refusal where `target` is something else than a result of this name; OSError
    """
    root = Path(absolute(os.fspath(target)))  # tasks run in other folders
    directory, files = locate(str(root))[0], directory_of(str(root))
    there = directory.info(root.name, follow=True)
    if there is not None and there.kind is not Kind.DIRECTORY:
        raise Refusal("is a file, not a directory: choose another target", str(root))
    if there is not None and not files.exists(f"{name}.json"):
        half = f"{name}.json{TEMPORARY}"  # of one that was killed
        strange = [entry for entry in files.list() if not JOB.fullmatch(entry) and entry != half]
        if strange:
            what = f"holds {strange[0]!r} but no {name}.json: choose another target"
            raise Refusal(what, str(root))
    folder = root / f"job-{secrets.token_hex(8)}"
    make_directory(str(folder))
    return folder


def finish(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Make the files of a job, all synced, the result; those of earlier jobs go.

    record  what the JSON says beside "format", "version" and "job"
    raises  OSError: the result is the one before or, where the last sync failed, either
    """
    root = directory_of(str(folder.parent))
    directory_of(str(folder)).sync()
    head = {"format": f"winkfs {name}", "version": VERSION, "job": folder.name}
    text = json.dumps(head | record, indent=1).encode().removesuffix(b"\n}")
    text += b',\n "xxh3": "%016x"\n}\n' % xxhash.xxh3_64_intdigest(text)
    with replacing(root, f"{name}.json") as storage:
        storage.write(0, [text])
    for entry in root.list():
        if JOB.fullmatch(entry) and entry != folder.name:
            with contextlib.suppress(OSError):
                root.remove_tree(entry)
    with (
        contextlib.suppress(OSError),  # only now: a copy is of a result that was published
        replacing(directory_of(str(folder)), f"{name}.json") as storage,
    ):
        storage.write(0, [text])


def discard(folder: Path) -> None:
    """Remove the files of a job that failed, and the target where nothing else is in it.

    Not those of one that failed in its last sync: the record names them.
    """
    parent, root = locate(str(folder.parent))[0], directory_of(str(folder.parent))
    with contextlib.suppress(OSError):
        for entry in root.list():
            if entry.endswith(".json") and folder.name.encode() in _bytes(root, entry):
                return
        root.remove_tree(folder.name)
        parent.rmdir(folder.parent.name)  # refused where there is something else in it


def _bytes(directory: Directory, name: str) -> bytes:
    with directory.open(name) as storage:
        return storage.read(0, storage.size())


def load(target: str | os.PathLike[str], name: str, what: str) -> tuple[Path, dict[str, Any]]:
    """The folder with the files of a result, and its record, or the copy where that is damaged.

    what    what it is called in an error: "digest set"
    raises  NoSuchFile; FormatError: the record is damaged, or of a later version
    """
    try:
        text = _bytes(directory_of(os.fspath(target)), f"{name}.json")
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"no {what} (there is no {name}.json in it)", str(target)) from None
    path = Path(target) / f"{name}.json"
    try:
        record = _read(text, path, name, what)
    except FormatError:
        copy = _copy(target, path, name, what)
        if copy is None:
            raise
        record = copy
    if record["version"] != VERSION:
        raise FormatError(
            f"{path}: version {record['version']}: this winkfs reads version {VERSION}"
        )
    return Path(target) / record["job"], record


def damage(target: str | os.PathLike[str], name: str, what: str) -> str:
    """What is wrong with the record itself, "": nothing. Raises OSError."""
    path = Path(target) / f"{name}.json"
    try:
        _read(_bytes(directory_of(os.fspath(target)), path.name), path, name, what)
    except FormatError as error:
        return str(error)
    return ""


def _copy(
    target: str | os.PathLike[str], path: Path, name: str, what: str
) -> dict[str, Any] | None:
    """The copy of the record. None where there are several jobs: one of them may be older than what
    the record said."""
    root = directory_of(os.fspath(target))
    jobs = [entry for entry in root.list() if JOB.fullmatch(entry)]
    if len(jobs) == 1:
        with contextlib.suppress(OSError, FormatError), root.subdirectory(jobs[0]) as folder:
            record = _read(_bytes(folder, path.name), path, name, what)
            return record if record["job"] == jobs[0] else None
    return None


def _read(text: bytes, path: Path, name: str, what: str) -> dict[str, Any]:
    """Raises FormatError."""
    try:
        record = _decode(text)
        if record["format"] != f"winkfs {name}" or not JOB.fullmatch(record["job"]):
            raise ValueError("another format")
        _ = record["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: not the record of a {what}: {error}: make it anew") from None
    found: dict[str, Any] = record
    return found


def _decode(text: bytes) -> Any:
    """Raises ValueError. A record of before there was a checksum is taken as it is."""
    record = json.loads(text)
    if "xxh3" in record:
        found = SUM.search(text)
        if not found or xxhash.xxh3_64_intdigest(text[: found.start()]) != int(found[1], 16):
            raise ValueError("its checksum is wrong")
        del record["xxh3"]
    return record
