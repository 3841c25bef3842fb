"""`winkfs compact`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE, JSON, Progress, emit, size_of


@click.command()
@BASE
@click.option("--order", type=click.Choice(["disk", "name"]), default="disk", show_default=True,
              help="Order of the files in the new BASE.data.")  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only print how many bytes it would reclaim.")
@JSON
def compact(base: str, order: str, dry_run: bool, as_json: bool) -> None:
    """Reclaim the space of deleted and replaced files.

    The live files are copied to a new BASE.data, which replaces the old one when it is durable: the
    disk needs space for both. No other process may write to the container; readers continue. A run
    that is killed leaves the container unchanged. For a data set: `winkfs dataset compact`.
    """
    from winkfs.container.compact import compact as run

    with Progress("compacting", "bytes", size_of(base)) as bar:
        done = run(base, order=order, dry_run=dry_run, progress=bar)
    if as_json:
        counts = {"bytes_before": done.before, "bytes_after": done.after, "files": done.files}
        emit({"base": base, "dry_run": dry_run, **counts})
        return
    verb = "would become" if dry_run else "became"
    click.echo(f"{base}: {done.before} bytes {verb} {done.after}, {done.files} files")
