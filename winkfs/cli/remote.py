"""Commands for containers on object storage."""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, JSON, print_facts
from winkfs.errors import Refusal


@click.group()
def cache() -> None:
    """Look after the cache of blocks of the catalogs of containers on object storage.

    It is in $WINKFS_CACHE, or in the folder of caches of this user, and has at most
    $WINKFS_CACHE_SIZE bytes (1G; 0: no cache). See docs/remote.md.
    """


@cache.command()
@JSON
def info(as_json: bool) -> int:
    """Show the folder, its blocks and their bytes."""
    from winkfs.remote.cache import BlockCache

    found = BlockCache.of_user()
    if found is None:
        return print_facts({"limit": 0}, as_json)
    sizes = [size for _, size, _ in found.files()]
    record = {"folder": str(found.folder), "limit": found.limit, "blocks": len(sizes),
              "bytes": sum(sizes)}  # fmt: skip
    return print_facts(record, as_json)


@cache.command()
def clear() -> None:
    """Remove all blocks."""
    from winkfs.remote.cache import BlockCache

    found = BlockCache.of_user()
    click.echo(f"{found.clear() if found else 0} bytes removed")


@cache.command()
@BASE
def prefetch(base: str) -> None:
    """Bring the whole catalog of the container BASE into the cache."""
    from winkformats.disk.schemes import is_far
    from winkfs.registry import open_silently

    if not is_far(base):
        raise Refusal("is on this machine: only containers on object storage are cached", base)
    with open_silently(base) as there:
        click.echo(f"{sum(1 for _ in there.names())} names")
