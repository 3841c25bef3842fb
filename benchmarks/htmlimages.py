"""One tree of HTML files in the forms that the file systems to compare take."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import htmltree
from common import Options, scratch, warm
from filesystems import (
    WINKFS,
    Mounted,
    Rival,
    directory,
    loop,
    present,
    ratarmount,
    squashfuse,
    versions,
    winkfs_mount,
)
from readers import listed, stat_all

RO: Final = "winkfs mount --ro"
RW: Final = "winkfs mount"
SQUASHFUSE: Final = "squashfuse_ll"
STORED: Final = "squashfuse_ll, not compressed"
EXT4: Final = "ext4 directory"
KNOWN: Final = "ext4 directory, names cached"
SQUASHFS: Final = "kernel SquashFS"
RATARMOUNT: Final = "ratarmount"
FILES: Final = 20_000


def tree_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tree", type=Path, help="a directory of files to take instead")


@dataclass(frozen=True)
class Tree:
    """count: files; total: bytes; told: what they are."""

    path: Path
    count: int
    total: int
    told: str


def tree(asked: Options) -> Tree:
    """The tree that was asked for, else one made of the HTML files of this machine."""
    given: Path | None = asked.own.tree
    if given:
        path, told = given.resolve(), ""
    else:
        path, told = htmltree.make(asked.place, asked.size(FILES, 500))
    files = [file for file in path.rglob("*") if file.is_file()]
    sizes = [file.stat().st_size for file in files]
    warm(*files)
    told = told or f"{len(sizes):,} files, {sum(sizes) / 1e6:,.0f} MB, as they were given"
    return Tree(path, len(sizes), sum(sizes), told)


@dataclass(frozen=True)
class Images:
    """The tree as container, SquashFS images (gzip; stored) and tar file, each in a file."""

    place: Path
    tree: Tree

    @property
    def base(self) -> Path:
        return self.place / "container"

    @property
    def data(self) -> Path:
        return self.place / "container.data"

    @property
    def squashfs(self) -> Path:
        return self.place / "tree.squashfs"

    @property
    def stored(self) -> Path:
        return self.place / "stored.squashfs"

    @property
    def tar(self) -> Path:
        return self.place / "tree.tar"

    def make(self) -> None:
        subprocess.run([WINKFS, "pack", self.tree.path, self.base], check=True)
        subprocess.run(["tar", "cf", self.tar, "-C", self.tree.path, "."], check=True)
        if shutil.which("mksquashfs"):
            plain = ("-noI", "-noD", "-noF", "-noX")
            for image, choices in ((self.squashfs, ()), (self.stored, plain)):
                command = ["mksquashfs", self.tree.path, image, "-quiet", "-no-progress", *choices]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.sync()  # what is still to be written may leave the cache when it is

    def warm(self) -> None:
        """All backing files are in the page cache."""
        warm(*(path for path in self.place.iterdir() if path.is_file() and path.stat().st_size))

    def winkfs(self, *options: str) -> Rival:
        return partial(winkfs_mount, self.base, self.point, *options)

    @contextlib.contextmanager
    def known(self) -> Iterator[Mounted]:
        """The tree as it is, after each file was looked at."""
        stat_all(listed(self.tree.path))
        yield Mounted(self.tree.path)

    @property
    def point(self) -> Path:
        return self.place / "mnt"

    def rivals(self) -> dict[str, Rival]:
        """All that can be had here, ours first."""
        return present({
            RO: ("", self.winkfs("--ro")),
            RW: ("", self.winkfs()),
            SQUASHFUSE: ("squashfuse_ll", partial(squashfuse, self.squashfs, self.point)),
            STORED: ("squashfuse_ll", partial(squashfuse, self.stored, self.point)),
            RATARMOUNT: ("ratarmount", partial(ratarmount, self.tar, self.point)),
            SQUASHFS: ("mount", partial(loop, self.squashfs, self.point)),
            EXT4: ("", partial(directory, self.tree.path)),
            KNOWN: ("", self.known),
        })  # fmt: skip

    def note(self) -> str:
        """What the tree is; the versions of libfuse 3 and of the rivals."""
        told = versions(
            fusermount3="--version", squashfuse_ll="--version", mksquashfs="-version",
            ratarmount="--version",
        )  # fmt: skip
        return f"The tree: {self.tree.told}. Versions: {told}."


@contextlib.contextmanager
def images_of(asked: Options) -> Iterator[Images]:
    """The tree that was asked for, in all forms; they are gone afterwards."""
    files = tree(asked)
    with scratch(asked) as place:
        images = Images(place, files)
        images.make()
        yield images
