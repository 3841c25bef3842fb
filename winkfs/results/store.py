"""Folder of a result: many files, and a record that names the job whose files are valid.

    DIR/NAME.json    the record, replaced by rename, so that a result is replaced atomically;
                     its last field, "xxh3", is XXH3-64 of all bytes before that field's comma
    DIR/<job>/...    the files of that job, with a copy of the record for when that is damaged;
                     folders of other jobs are left over, or still being written

Digest sets (`digests`) and orders (`orders`) are such folders. One job at a time writes into one.
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
from winkformats.disk.storage import TEMPORARY, Directory, FileType, replacing
from winkformats.errors import FormatError
from winkfs.errors import NoSuchFile, Refusal

JOB: Final = re.compile(r"job-[0-9a-f]{16}")
VERSION: Final = 1
SUM: Final = re.compile(rb',\n "xxh3": "([0-9a-f]{16})"\n\}\n\Z')


def begin(target: str | os.PathLike[str], name: str) -> Path:
    """Create an empty folder in `target` for the files of a job, and `target` if it is missing.

    raises  Refusal if `target` exists and is no result of this name; OSError
    """
    root = Path(absolute(os.fspath(target)))  # tasks run in other folders
    directory, files = locate(str(root))[0], directory_of(str(root))
    there = directory.info(root.name, follow=True)
    if there is not None and there.kind is not FileType.DIRECTORY:
        raise Refusal("is a file, not a directory: choose another target", str(root))
    if there is not None and not files.exists(f"{name}.json"):
        half = f"{name}.json{TEMPORARY}"  # left by a killed job
        other = [entry for entry in files.list() if not JOB.fullmatch(entry) and entry != half]
        if other:
            what = f"holds {other[0]!r} but no {name}.json: choose another target"
            raise Refusal(what, str(root))
    folder = root / f"job-{secrets.token_hex(8)}"
    make_directory(str(folder))
    return folder


def finish(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Publish the synced files of a job as the result, and remove those of earlier jobs.

    record  fields of the JSON beside "format", "version" and "job"
    raises  OSError: the previous result is kept or, if the last sync failed, one of the two
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
        contextlib.suppress(OSError),  # after the rename: only a published record is copied
        replacing(directory_of(str(folder)), f"{name}.json") as storage,
    ):
        storage.write(0, [text])


def discard(folder: Path) -> None:
    """Remove the files of a failed job, and the target if it is empty then.

    Files that the record names are kept: the job failed in its last sync.
    """
    parent, root = locate(str(folder.parent))[0], directory_of(str(folder.parent))
    with contextlib.suppress(OSError):
        for entry in root.list():
            if entry.endswith(".json") and folder.name.encode() in _bytes(root, entry):
                return
        root.remove_tree(folder.name)
        parent.rmdir(folder.parent.name)  # fails if it is not empty


def _bytes(directory: Directory, name: str) -> bytes:
    with directory.open(name) as storage:
        return storage.read(0, storage.size())


def load(target: str | os.PathLike[str], name: str, what: str) -> tuple[Path, dict[str, Any]]:
    """Return the folder with the files of a result, and its record, or the copy of a damaged one.

    what    name of this kind of result in errors: "digest set"
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
    """Return the damage of the record itself, "" if there is none. Raises OSError."""
    path = Path(target) / f"{name}.json"
    try:
        _read(_bytes(directory_of(os.fspath(target)), path.name), path, name, what)
    except FormatError as error:
        return str(error)
    return ""


def _copy(
    target: str | os.PathLike[str], path: Path, name: str, what: str
) -> dict[str, Any] | None:
    """Return the copy of the record; None if there are several jobs, since it is unknown which of
    them the record named."""
    root = directory_of(os.fspath(target))
    jobs = [entry for entry in root.list() if JOB.fullmatch(entry)]
    if len(jobs) == 1:
        with contextlib.suppress(OSError, FormatError), root.subdirectory(jobs[0]) as folder:
            record = _read(_bytes(folder, path.name), path, name, what)
            return record if record["job"] == jobs[0] else None
    return None


def _read(text: bytes, path: Path, name: str, what: str) -> dict[str, Any]:
    """Decode a record and check its format. Raises FormatError."""
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
    """Decode JSON and check its checksum, which records of old versions lack. Raises ValueError."""
    record = json.loads(text)
    if "xxh3" in record:
        found = SUM.search(text)
        if not found or xxhash.xxh3_64_intdigest(text[: found.start()]) != int(found[1], 16):
            raise ValueError("its checksum is wrong")
        del record["xxh3"]
    return record
