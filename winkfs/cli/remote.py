"""Commands for object storage."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Final

import click

import winkfs
from winkfs.cli._common import (
    BASE,
    DURATION,
    JSON,
    Failures,
    Group,
    Progress,
    answer,
    bytes_to_read,
    counted,
    emit,
    expand,
    name_bytes,
    opened,
    print_facts,
    warn,
)
from winkfs.errors import Refusal, Stopped
from winkfs.names import to_bytes
from winkfs.units import size_text

BATCH: Final = 4096  # names whose contents are asked for together

RATES: Final = {  # of a check -> how they are shown
    "latency": ("{:.1f} ms", 1000), "upload": ("{:.1f} MB/s", 1e-6),
    "download": ("{:.1f} MB/s", 1e-6), "clock": ("{:+.1f} s", 1),
}  # fmt: skip

FORCE = click.option("--force", is_flag=True, help="Replace what is there, also another container.")
DRY_RUN = click.option("-n", "--dry-run", is_flag=True, help="Only print what would be copied.")


@click.command()
@BASE
@click.argument("url")
@FORCE
@DRY_RUN
@JSON
def push(base: str, url: str, force: bool, dry_run: bool, as_json: bool) -> int:
    """Copy a container to object storage, as of its last sync, while it is being written.

    URL is s3://BUCKET/NAME, gs:// or az://. A push that is stopped has changed nothing there; the
    same command sends what is missing. A later state replaces an earlier one of the same container;
    another container only with --force. See docs/remote.md.
    """
    from winkfs.remote.push import push as run

    with _continued(), Progress("pushing", "bytes", bytes_to_read(base)) as bar:
        done = run(base, url, force=force, dry_run=dry_run, progress=bar)
        for line in [*done.problems, *done.notes]:
            bar.warn(line)
    what = f"{done.url}: {size_text(done.sent)} {'would be sent' if dry_run else 'sent'}"
    what += f" of {size_text(done.size)}{', in place of what is there' * done.replaces}"
    what = f"{done.url}: is there already" if done.same and not done.sent else what
    answer(asdict(done) | {"base": base, "dry_run": dry_run}, as_json, what)
    return 1 if done.problems else 0


@click.command()
@click.argument("url")
@BASE
@FORCE
@DRY_RUN
@JSON
def pull(url: str, base: str, force: bool, dry_run: bool, as_json: bool) -> int:
    """Copy a container from object storage to BASE on this machine.

    BASE appears when it is whole and verified. A pull that is stopped leaves BASE.partial, from
    which the same command goes on. Of a BASE with an earlier state only what is new is brought;
    another container is replaced only with --force.
    """
    from winkfs.remote.pull import pull as run

    with _continued(), Progress("pulling", "bytes", bytes_to_read(url)) as bar:
        done = run(url, base, force=force, dry_run=dry_run, progress=bar)
        for line in done.problems:
            bar.warn(line)
    what = f"{done.base}: {size_text(done.fetched)} {'would be copied' if dry_run else 'copied'}"
    what += f" of {size_text(done.size)}{', in place of what was there' * done.replaces}"
    what = f"{done.base}: is there already" if done.same else what
    answer(asdict(done) | {"url": url, "dry_run": dry_run}, as_json, what)
    return 1 if done.problems else 0


@contextlib.contextmanager
def _continued() -> Iterator[None]:
    """After an interrupt, print what to do."""
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        warn("the same command goes on from here; until then what is there stays as it was")
        raise


@click.command()
@click.argument("url")
@click.argument("name")
@click.option("--expires", type=DURATION, default="1h", show_default=True, metavar="TIME",
              help="How long the link is valid: at most 7d.")  # fmt: skip
@click.option("--copy", is_flag=True,
              help="Put the file beside the container, and print a link to it alone.")  # fmt: skip
@JSON
def sign(url: str, name: str, expires: int, copy: bool, as_json: bool) -> int:
    """Print lines for a shell that fetch the file NAME with curl, without credentials.

    No store signs a part of an object: with the link the whole container can be read. The lines ask
    for the range of the file, and compare its SHA-256. With --json: URL, ranges, ETag.

    With --copy it prints a link that a browser opens, and that gives away this file alone. The copy
    is in URL.files, and stays there.
    """
    from winkfs.remote.signed import sign as run

    link = run(url, name_bytes(name), seconds=expires, copy=copy)
    out = re.sub(r"[^\w.+-]|^-", "_", link.name.rstrip("/").rpartition("/")[2]) or "file"
    if as_json:
        emit(asdict(link) | {"command": link.command(out)})
    else:
        click.echo(link.url if copy else link.command(out))
    return 0


@click.group(cls=Group)
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
    """Bring the catalog of BASE, and files, into the cache.

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
            size = _bring(there, chosen, found.limit)
            line += f", {counted(len(chosen), 'file')} of {size} bytes"
        click.echo(line)
    return failures.status


def _bring(there: winkfs.Reader, names: list[bytes], limit: int) -> int:
    """Read files -> their bytes. Raises Refusal: they are more than the cache keeps."""
    chosen = set(names)
    total = sum(size for name, size in there.sizes() if to_bytes(name) in chosen)
    if total > limit:
        what = f"the files have {total} bytes, the cache keeps {limit}: see winkfs --cache-size"
        raise Refusal(what, there.base)
    source = iter(names)
    with Progress("reading files", "bytes", total) as bar:
        while batch := list(islice(source, BATCH)):
            for content in there.get_many(batch):
                bar(len(content))
    return total


@click.group(cls=Group)
def remote() -> None:
    """Look after stores of objects: see docs/remote.md."""


@remote.command()
@click.argument("url")
@JSON
def check(url: str, as_json: bool) -> int:
    """Check whether the store of URL keeps what commits need.

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
