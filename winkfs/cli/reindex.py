"""`winkfs reindex`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, JSON, Progress, emit, size_of


@click.command()
@BASE
@click.option("--cols", is_flag=True, help="Make BASE.cols too, from which Spark lists files.")
@JSON
def reindex(base: str, cols: bool, as_json: bool) -> int:
    """Build BASE.idx, BASE.names (and BASE.time) anew from BASE.data alone.

    A BASE.cols that is there is made anew as well. Of a data set: in all its shards. Of a digest
    set: the indexes of its shards. What is damaged is said and left out; the exit status is 1 then.
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
