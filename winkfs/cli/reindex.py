"""`winkfs reindex`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, Progress, size_of


@click.command()
@BASE
@click.option("--cols", is_flag=True, help="Make BASE.cols too, from which Spark lists files.")
def reindex(base: str, cols: bool) -> None:
    """Build BASE.idx, BASE.names (and BASE.time) anew from BASE.data alone.

    A BASE.cols that is there is made anew as well. Of a data set: in all its shards. Of a digest
    set: the indexes of its shards.
    """
    import winkfs

    with Progress("reindexing", "bytes", size_of(base)) as bar:
        files = winkfs.reindex(base, progress=bar, cols=cols)
    click.echo(f"{files} files indexed")
