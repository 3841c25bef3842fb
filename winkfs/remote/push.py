"""Push: copies containers and data sets to object storage."""

from __future__ import annotations

import os

from winkformats.disk.schemes import is_far
from winkfs.archive.copying import Progress
from winkfs.errors import Refusal
from winkfs.registry import kind_of
from winkfs.remote.pushcontainer import Pushed, place_of, push_container
from winkfs.remote.pushset import push_set


def push(
    base: str | os.PathLike[str],
    url: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Pushed:
    """Copy a container as of its last sync, or the newest generation of a data set, to object
    storage, while others write to it.

    A push that was stopped has changed nothing that is read; the same call sends what is missing.
    What an earlier push has brought there is replaced by a later state of the same container; of a
    data set what is new is sent.

    url       s3://BUCKET/NAME, gs://, az://
    force     also replace another container, or a later state; send one that is damaged
    dry_run   send nothing
    progress  called with the number of bytes done since the last call
    raises    NoSuchFile; FileExists (another container, or a later state, is there); Refusal
              (another kind; damage); NotAllowed; StalePlan (another push was faster); OSError
    cost      reads the container twice; some ten requests, and one for 8 MiB
    """
    source, target = os.fspath(base), os.fspath(url)
    if is_far(source):
        raise Refusal("is on object storage: winkfs pull brings it to this machine", source)
    kind, path = kind_of(source)
    if kind.name not in ("container", "data set"):
        raise Refusal(f"is of the kind {kind.name}: containers and data sets can be pushed", source)
    if not place_of(target)[0].transport.writes:
        raise Refusal("nothing can be written there: s3://, gs:// and az:// take a push", target)
    if kind.name == "data set":
        return push_set(path, target, dry_run=dry_run, progress=progress)
    return push_container(path, target, force=force, dry_run=dry_run, progress=progress)
