"""The folder of a job until it ends, with a mark by which `vacuum` knows it; on object storage the
mark, and a folder of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
from dataclasses import replace
from typing import Final

from winkformats.disk.paths import directory_of
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory, FileType
from winkfs.dataset.folder import far_files
from winkfs.dataset.manifest import PENDING
from winkfs.dataset.records import WRITER, ShardRecord
from winkfs.errors import FileExists
from winkfs.names import DATA

JOB_MARK: Final = "_job"  # file that marks a folder as that of a job; vacuum enters no others
UPLOADED: Final = (".cat", ".time", DATA)  # files of a shard on object storage


# --- on object storage ---

_scratches: dict[tuple[str, int], str] = {}  # by job and process


def scratch_of(job: str) -> str:
    """Return the folder of this machine where this process writes the containers of a job."""
    key = job, os.getpid()
    if key not in _scratches:
        _scratches[key] = tempfile.mkdtemp(prefix="winkfs-")
    return _scratches[key]


def remove_scratch(job: str) -> None:
    """Remove what this process has written for a job, and not uploaded."""
    if folder := _scratches.pop((job, os.getpid()), None):
        shutil.rmtree(folder, ignore_errors=True)


def put_mark(root: str, job: str, base: int) -> None:
    """Put the mark of a job. Raises FileExistsError; OSError."""
    files, name = far_files(root), f"{job}/{JOB_MARK}"
    mark = {"base": base, "writer": WRITER, "id": secrets.token_hex(8)}
    data = json.dumps(mark).encode()
    try:
        files.put(name, data, absent=True)
    except OSError as error:  # its answer can be lost
        if list(files.read_whole([name])) != [data]:
            if isinstance(error, FileExistsError):
                raise FileExists("that job was begun already", f"{root}/{job}") from None
            raise


def uploaded(root: str, base: str, record: ShardRecord) -> ShardRecord:
    """Upload a container of this machine, and remove it here -> its record."""
    from winkfs.container.datafile import remove_files

    files, etag = far_files(root), ""
    for suffix in UPLOADED:
        if os.path.exists(base + suffix):
            etag = files.put_file(record.path + suffix, base + suffix).etag
    remove_files(base)
    with contextlib.suppress(OSError):  # others are written there
        os.rmdir(os.path.dirname(base))
        _scratches.pop((record.path.partition("/")[0], os.getpid()), None)
    return replace(record, etag=etag)


def sweep(root: str, job: str) -> None:
    """Remove the uncommitted files of a job, ignoring errors of the disk.

    The folder is renamed first, so that an attempt that is still running cannot write into it.
    """
    swept = f"{job}.{secrets.token_hex(4)}"
    with contextlib.suppress(OSError), directory_of(root).subdirectory(PENDING) as pending:
        pending.rename(job, swept)
        remove(pending, swept)


def sweep_all(root: str, prefix: str) -> None:
    """Sweep all jobs whose names begin with `prefix`; on object storage `vacuum` removes them."""
    if is_far(root):
        return
    with contextlib.suppress(OSError), directory_of(root).subdirectory(PENDING) as pending:
        for name in pending.list():
            if name.startswith(prefix):
                sweep(root, name)


def remove(folder: Directory, name: str) -> None:
    """Remove a file or a folder, ignoring errors: another process may remove it, too."""
    with contextlib.suppress(OSError):
        info = folder.info(name)
        if info is not None and info.kind is FileType.DIRECTORY:
            folder.remove_tree(name)
        else:
            folder.unlink(name)


def mark(root: Directory, job: str) -> None:
    """Create, or replace, the file that marks a folder as that of a job."""
    root.unlink(f"{job}/{JOB_MARK}")
    root.create_new(f"{job}/{JOB_MARK}").close()
    root.take_after(job)
