"""Commands for object storage."""

from __future__ import annotations

from itertools import islice
from typing import Final

import click

import winkfs
from winkfs.cli._common import (
    BASE,
    JSON,
    Failures,
    Progress,
    counted,
    emit,
    expand,
    opened,
    print_facts,
    warn,
)
from winkfs.errors import Refusal
from winkfs.names import to_bytes

BATCH: Final = 4096  # names whose contents are asked for together

RATES: Final = {  # of a check -> how they are shown
    "latency": ("{:.1f} ms", 1000), "upload": ("{:.1f} MB/s", 1e-6),
    "download": ("{:.1f} MB/s", 1e-6), "clock": ("{:+.1f} s", 1),
}  # fmt: skip


@click.group()
def cache() -> None:
    """Look after the cache of what was read of containers on object storage.

    It has blocks of catalogs, and pieces of contents. It is in $WINKFS_CACHE, or in the folder of
    caches of this user, and has at most $WINKFS_CACHE_SIZE bytes (1G; 0: no cache). The options
    `winkfs --cache-size SIZE COMMAND` and `winkfs --no-cache COMMAND` set that for a command.
    """


@cache.command()
@JSON
def info(as_json: bool) -> int:
    """Show the folder, and how much of each kind is in it."""
    from winkfs.remote.cache import PIECES, DiskCache

    found = DiskCache.of_user()
    if found is None:
        return print_facts({"limit": 0}, as_json)
    files = [(path.suffix == PIECES, size) for _, size, path in found.files()]
    pieces = [size for is_piece, size in files if is_piece]
    blocks = [size for is_piece, size in files if not is_piece]
    record = {"folder": str(found.folder), "limit": found.limit,
              "bytes": sum(blocks) + sum(pieces),
              "catalogs": {"blocks": len(blocks), "bytes": sum(blocks)},
              "contents": {"pieces": len(pieces), "bytes": sum(pieces)}}  # fmt: skip
    return print_facts(record, as_json)


@cache.command()
def clear() -> None:
    """Remove all of it."""
    from winkfs.remote.cache import DiskCache

    found = DiskCache.of_user()
    click.echo(f"{found.clear() if found else 0} bytes removed")


@cache.command()
@BASE
@click.argument("names", metavar="[NAME]...", nargs=-1)
def prefetch(base: str, names: tuple[str, ...]) -> int:
    """Bring the whole catalog of the container BASE into the cache, and the contents of files.

    A NAME may be a glob: * matches / too.
    """
    from winkformats.disk.schemes import is_far
    from winkfs.remote.cache import DiskCache

    found, failures = DiskCache.of_user(), Failures(base)
    if not is_far(base):
        raise Refusal("is on this machine: only containers on object storage are cached", base)
    if found is None:
        raise Refusal("there is no cache: its size is 0", base)
    with opened(base) as there:
        with Progress("reading the catalog", "names", len(there)) as bar:
            for _ in there.names():
                bar(1)
        line = counted(len(there), "name")
        if names:
            chosen = list(expand(there, names, failures))
            size = _bring(there, chosen)
            line += f", {counted(len(chosen), 'file')} of {size} bytes"
            if size > found.limit:
                warn(f"{base}: the cache keeps {found.limit} bytes: see winkfs --cache-size")
        click.echo(line)
    return failures.status


def _bring(there: winkfs.Reader, names: list[bytes]) -> int:
    """Read files -> their bytes."""
    chosen = set(names)
    total = sum(size for name, size in there.sizes() if to_bytes(name) in chosen)
    source = iter(names)
    with Progress("reading files", "bytes", total) as bar:
        while batch := list(islice(source, BATCH)):
            for content in there.get_many(batch):
                bar(len(content))
    return total


@click.group()
def remote() -> None:
    """Look after stores of objects: see docs/remote.md."""


@remote.command()
@click.argument("url")
@JSON
def check(url: str, as_json: bool) -> int:
    """Check whether the store of URL keeps what the commits of a data set need.

    Some servers ignore in silence that an object is to be written only if there is none: then two
    writers can replace each other's commits. All that is written for the check is removed; the
    result stays in URL/_winkfs/store.json, and counts for this URL alone.
    """
    from winkfs.remote.check import check

    with Progress("checking", "requests") as bar:
        found = check(url, bar)
    if as_json:
        emit(found.record() | {"problems": found.problems})
        return 1 if found.problems else 0
    if found.problems:
        more = f" (and {len(found.problems) - 1} more: see --json)" if found.problems[1:] else ""
        raise Refusal(f"no data set can be committed there: {found.problems[0]}{more}", url)
    shown: dict[str, object] = {one.name: one.fault or True for one in found.findings}
    for name, (form, by) in RATES.items():
        value = getattr(found, name)
        shown[name] = None if value is None else form.format(value * by)
    shown["requests"] = found.requests
    print_facts(shown, as_json)
    click.echo(f"{url}: data sets can be committed there")
    return 0
