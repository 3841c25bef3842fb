"""Sections of the suite about mounts: HTML files looked at and read, new files written."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import archives
import samples
from bench_mount_write import create
from common import Options, Phases, Watch, drop_caches, forget_names, scratch, warm
from filesystems import (
    Mounted,
    Rival,
    bindfs,
    directory,
    loop,
    naive,
    ratarmount,
    squashfuse,
    winkfs_mount,
)
from readers import listed, look_at, read_all, stat_all
from suite_files import tree_of
from suite_run import Section, Step, split

import winkfs

EXT4: Final = "ext4 directory"
Mount = Callable[[Path, Path], AbstractContextManager[Mounted]]


@contextmanager
def reading(asked: Options) -> Iterator[Section]:
    """Each step has a mount of its own where it needs cold caches of names and contents."""
    tree, files, told = tree_of(asked)
    count, total = len(files), sum(path.stat().st_size for path in files)
    with scratch(asked) as place:
        images, point = place / "images", place / "mnt"
        images.mkdir()
        makers, _ = split({name: (x.program, x) for name, x in archives.MAKERS.items()})
        for name in ("winkfs", "tar", "SquashFS, gzip", "SquashFS, stored", "EROFS, stored",
                     "EROFS, lz4"):  # fmt: skip
            if name in makers:
                makers[name].make(tree, images / name.replace(", ", "-"))
        here, absent = split(rivals_of(tree, images, point, makers))
        cases = {
            name: partial(_look, rival, images, tree if name == EXT4 else None, count, total)
            for name, rival in here.items()
        }
        os.sync()
        yield Section(f"A tree through a mount: {told}; backing files warm, save where cold is "
                      "said; each read by path", _steps(count), cases, absent,
                      frozenset({"winkfs mount"}))  # fmt: skip


def _steps(count: int) -> dict[str, Step]:
    return {
        "list": Step("listed", "names/s", count),
        "stat": Step("stat after it", "files/s", count),
        "first": Step("first read in order", "files/s", count),
        "second": Step("second read", "files/s", count),
        "random": Step("first read in random order", "files/s", count),
        "cold": Step("first read in order, disk cold", "files/s", count),
    }


def rivals_of(
    tree: Path, images: Path, point: Path, makers: dict[str, archives.Maker]
) -> dict[str, tuple[str, Rival]]:
    """What each needs, and the way to mount it."""

    def squash(kind: str, server: str, mounted: Mount) -> tuple[str, Rival]:
        return image(f"SquashFS, {kind}", "mksquashfs", server, mounted)

    def image(kind: str, tool: str, server: str, mounted: Mount) -> tuple[str, Rival]:
        need = server if kind in makers else tool
        return need, partial(mounted, images / kind.replace(", ", "-"), point)

    return {
        "winkfs mount --ro": ("", partial(winkfs_mount, images / "winkfs", point, "--ro")),
        "winkfs mount": ("", partial(winkfs_mount, images / "winkfs", point)),
        "squashfuse_ll, gzip": squash("gzip", "squashfuse_ll", squashfuse),
        "squashfuse_ll, stored": squash("stored", "squashfuse_ll", squashfuse),
        "kernel SquashFS, gzip": squash("gzip", "mount: squashfs", loop),
        "kernel SquashFS, stored": squash("stored", "mount: squashfs", loop),
        "kernel EROFS, stored": image("EROFS, stored", "mkfs.erofs", "mount: erofs", loop),
        "kernel EROFS, lz4": image("EROFS, lz4", "mkfs.erofs", "mount: erofs", loop),
        "ratarmount": ("ratarmount", partial(ratarmount, images / "tar", point)),
        EXT4: ("", partial(directory, tree)),
    }  # fmt: skip


def _look(rival: Rival, images: Path, tree: Path | None, count: int, total: int) -> Phases:
    """tree: of the rival that has no image."""
    backing = [path for path in (tree or images).rglob("*") if path.is_file()]
    warm(*backing)
    forget_names()
    with rival() as mounted, chdir(mounted.path):
        files, found = look_at(count, total)
    order = random.Random(samples.SEED).sample(files, len(files))
    warm(*backing)
    forget_names()
    with rival() as mounted, chdir(mounted.path):
        assert len(listed(Path())) == count
        found["random"] = read_all(order, 1, total)
    return found | _look_cold(rival, files, total)


def _look_cold(rival: Rival, files: list[str], total: int) -> Phases:
    """Nothing is in memory when the mount begins. Only root can say so of a kernel's mount."""
    if not drop_caches():
        return {}
    with rival() as mounted, chdir(mounted.path):
        listed(Path())
        return {"cold": read_all(files, 1, total)}


# --- written ---


@contextmanager
def writing(asked: Options) -> Iterator[Section]:
    count, mebibytes = asked.size(5_000, 1_000), asked.size(512, 64)
    with scratch(asked) as place:
        point, below, base = place / "mnt", place / "below", place / "container"
        here, absent = split({
            "winkfs mount": ("", partial(winkfs_mount, base, point)),
            "bindfs": ("bindfs", partial(bindfs, below, point)),
            "naive fusepy": ("", partial(naive, "fusepy", point)),
            EXT4: ("", partial(directory, below)),
        })  # fmt: skip
        cases = {
            name: partial(_write, place, rival, count, 0 if "naive" in name else mebibytes)
            for name, rival in here.items()
        }
        steps = {
            "create": Step("create, write 4 KiB, close", "files/s", count),
            "remove": Step("removed", "files/s", count),
            "large": Step("one file by dd, durable", "MiB/s", mebibytes),
        }
        yield Section("Files written through a mount; bindfs passes on to ext4, naive keeps all in "
                      "memory", steps, cases, absent)  # fmt: skip


def _write(place: Path, rival: Rival, count: int, mebibytes: int) -> Phases:
    shutil.rmtree(place / "below", ignore_errors=True)
    for path in place.glob("container.*"):
        path.unlink()
    (place / "below").mkdir()
    winkfs.create(place / "container").close()
    os.sync()
    with rival() as mounted:
        root = str(mounted.path)
        os.mkdir(f"{root}/one")
        paths = [f"{root}/one/file{i:06d}" for i in range(count)]
        watch = Watch()
        create(paths)
        watch.lap("create")
        assert stat_all(paths) == 4096 * count, "bytes are missing"
        os.sync()
        found = _write_large(root, mebibytes) if mebibytes else {}
        watch.lap("")
        for name in paths:
            os.unlink(name)
        watch.lap("remove")
        del watch.phases[""]
        return found | watch.phases


def _write_large(root: str, mebibytes: int) -> Phases:
    watch = Watch()
    command = f"dd if=/dev/zero of={root}/large bs=1M count={mebibytes} conv=fsync status=none"
    subprocess.run(command.split(), check=True)
    watch.lap("large")
    return watch.phases
