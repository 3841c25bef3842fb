"""`winkfs reindex`"""

from __future__ import annotations

from pathlib import Path

import click

from winkfs.cli._common import BASE, Progress


@click.command()
@BASE
def reindex(base: str) -> None:
    """Build BASE.idx, BASE.names (and BASE.time) anew from BASE.data alone."""
    import winkfs

    data = Path(base.removesuffix(".data") + ".data")
    size = data.stat().st_size if data.exists() else None
    with Progress("reindexing", "bytes", size) as bar:
        files = winkfs.reindex(base, progress=bar)
    click.echo(f"{files} files indexed")
