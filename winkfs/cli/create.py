"""`winkfs create`"""

from __future__ import annotations

import click

from winkfs.cli._common import BASE


@click.command()
@BASE
@click.option("--ao", is_flag=True, help="Append-only: files in order of mtime.")
@click.option(
    "--timemp", type=click.IntRange(1), metavar="N",
    help="Seconds between two time marks (with --ao). [default: 60]",
)  # fmt: skip
@click.option("--classic", is_flag=True, help="Use only the original format: MD5, whole seconds.")
@click.option(
    "--htalgo", type=click.IntRange(1, 3), metavar="N",
    help="Hash algorithm: 1 MD5, 2 XXH3-64, 3 MurmurHash3. [default: 2; classic: 1]",
)  # fmt: skip
def create(base: str, ao: bool, timemp: int | None, classic: bool, htalgo: int | None) -> None:
    """Make an empty container.

    BASE must not exist yet. The files are BASE.data, BASE.idx and, if append-only, BASE.time.
    """
    if timemp is not None and not ao:
        raise click.UsageError("--timemp goes with --ao")
    import winkfs

    winkfs.create(
        base, ao=ao, timemp=60 if timemp is None else timemp, classic=classic, htalgo=htalgo
    ).close()
