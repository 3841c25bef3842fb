"""`winkfs reindex`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, JSON, Progress, emit, size_of


@click.command()
@BASE
@click.option("--cols", is_flag=True, help="Write BASE.cols too, from which Spark lists files.")
@JSON
def reindex(base: str, cols: bool, as_json: bool) -> int:
    """Rebuild BASE.idx, BASE.names (and BASE.time) from BASE.data alone.

    An existing BASE.cols is rebuilt too. For a data set, all shards are indexed; for a digest set,
    the indexes of its shards are rebuilt. Damage is reported and skipped; the exit status is then
    1.
    """
    import winkfs

    problems: list[str] = []
    with Progress("reindexing", "bytes", size_of(base)) as bar:
        files = winkfs.reindex(base, progress=bar, cols=cols, problem=problems.append)
        for problem in problems:
            bar.say(problem)
    if as_json:
        emit({"base": base, "files": files, "problems": problems})
    else:
        click.echo(f"{files} files indexed")
    return 1 if problems else 0
