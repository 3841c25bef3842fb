"""`winkfs reindex`"""

from __future__ import annotations

from pathlib import Path

import click

from winkfs.cli._common import BASE, Progress


@click.command()
@BASE
@click.option("--cols", is_flag=True, help="Make BASE.cols too, from which Spark lists files.")
def reindex(base: str, cols: bool) -> None:
    """Build BASE.idx, BASE.names (and BASE.time) anew from BASE.data alone.

    A BASE.cols that is there is made anew as well.
    """
    import winkfs

    data = Path(base.removesuffix(".data") + ".data")
    size = data.stat().st_size if data.exists() else None
    with Progress("reindexing", "bytes", size) as bar:
        files = winkfs.reindex(base, progress=bar, cols=cols)
    click.echo(f"{files} files indexed")
