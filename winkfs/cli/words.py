"""Words of other tools, and what does the same here: for the messages of wrong usage."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

WORDS: Final = {
    "": {
        "cat": "view read",
        "compact": "prune defrag gc optimize shrink repack",
        "compact --compress zstd": "compress",
        "cp": "copy",
        "cp A B OUT": "merge join concat",
        "cp A OUT --where COND": "subset filter",
        "create": "init new",
        "dataset history": "history log snapshots",
        "dataset vacuum": "vacuum expire",
        "du": "size",
        "du --ncdu": "ncdu",
        "find": "locate",
        "grep": "search",
        "help --man": "man",
        "info": "stats status df count show inspect",
        "ls": "list dir",
        "mount": "serve",
        "mv": "move rename",
        "pack": "archive import",
        "pack --update": "update",
        "pipeline dedup": "dedup",
        "pipeline ingest": "ingest",
        "pull": "download clone",
        "push": "upload",
        "put": "write add",
        "query": "sql select",
        "reindex": "index",
        "repair": "fix",
        "rm": "delete remove del unlink erase",
        "rollback": "undo",
        "salvage": "recover",
        "sign": "presign link",
        "sync": "rsync",
        "sync --delete": "mirror",
        "umount": "unmount fusermount detach",
        "unpack": "extract restore unzip untar",
        "unpack --tar": "tar dump",
        "unpack --zip": "zip",
        "verify": "check fsck scrub test",
        "verify --checksum sha256": "checksum hash sha256sum",
        "--version": "version",
    },
    "cache": {"cache clear": "clean purge empty rm", "cache info": "ls list stats show",
              "cache prefetch": "fill warm"},
    "dataset": {
        "dataset add": "merge", "dataset history": "log snapshots generations",
        "dataset vacuum": "gc prune clean expire", "info BASE": "info stats",
        "ls BASE": "ls list", "pack --shards N": "pack", "rm BASE NAME": "rm remove delete",
        "verify BASE": "verify check",
    },
    "fct": {"fct get": "cat", "fct list": "ls dump", "info FILE": "info"},
    "queue": {
        "queue compact": "prune clean gc", "queue dlq --requeue": "requeue retry",
        "queue ls": "list", "queue pop": "get dequeue receive consume",
        "queue push": "put add enqueue send publish", "queue seek": "rewind replay",
        "queue seek --last": "purge clear", "queue stats": "info status size",
        "queue verify": "check",
    },
    "remote": {"ls URL": "ls list", "pull URL": "pull", "push BASE": "push",
               "remote check": "test verify"},
    "ring": {"ring ls": "list", "ring pop": "get dequeue", "ring push": "put add enqueue",
             "ring stats": "info status", "ring verify": "check"},
    "store": {
        "store compact": "gc", "store get": "read", "store ls": "list",
        "store put": "add write push", "store rm": "delete remove", "store stats": "info",
        "store verify": "check fsck",
    },
    "append": {"pack --update DIR BASE": "-r -R --recursive"},
    "cp": {"cp --no-clobber": "--ignore-existing --skip-existing",
           "cp A OUT, which copies directories and attributes": "-r -R -a -p --recursive --archive",
           "sync A OUT --delete": "--delete"},
    "diff": {"diff --stat": "-q --brief", "diff A B, which compares all below": "-r --recursive"},
    "export": {"query --csv": "--csv", "unpack --tar": "--tar", "unpack --zip": "--zip"},
    "find": {"find -print0": "-0 --null -exec --exec", "rm BASE NAME": "-delete --delete"},
    "get": {"get BASE NAME, which brings the tree of a directory": "-r -R --recursive"},
    "grep": {"grep BASE PATTERN, which searches all files": "-r -R --recursive"},
    "ls": {"ls -R": "-a --all", "ls -l -h": "--human-readable", "tree": "--tree"},
    "mount": {"mount --ro": "-r --read-only --readonly", "mount -o": "--options --option",
              "mount -o allow_other": "--allow-other", "mount without --ro": "--rw --read-write -w",
              "umount": "-u --unmount --umount"},
    "pack": {"pack --compress zstd": "-z -j -J --gzip --bzip2 --xz --zstd",
             "pack DIR BASE, which takes all below DIR": "-r -R --recursive",
             "sync DIR BASE --delete": "--delete"},
    "put": {"pack --update DIR BASE": "-r -R --recursive"},
    "repair": {"repair without --apply": "-n --dry-run"},
    "report": {"report -o": "--html"},
    "rm": {"rm -r": "-f -R --force --recursive"},
    "split": {"split --size": "-b --bytes"},
    "sync": {"sync SRC DST, which copies directories and attributes":
             "-r -a --recursive --archive"},
    "tree": {"tree -L": "--level --max-depth"},
    "unpack": {"ls BASE": "-t --list", "sync BASE DIR --delete": "--delete",
               "unpack BASE DIR": "-C -d --directory --output -o"},
    "verify": {"repair": "--repair --fix"},
}  # fmt: skip
"""Group or command -> what to use -> the words for it that are none there."""


def use_of(place: str, word: str) -> str:
    """Return what does here what other tools call so; "": not known.

    place  group of a command, "" for none, or command of an option
    """
    uses = WORDS.get(place, {}).items()
    return next((use for use, theirs in uses if word in theirs.split()), "")


def meant(group: str, name: str, known: Collection[str]) -> str:
    """Return what may be meant by a command that is none of those known, for a message."""
    if use := use_of(group, name):
        return f": use winkfs {use}"
    from difflib import get_close_matches

    close = get_close_matches(name, known, cutoff=0.6)
    return f": did you mean {' or '.join(close)}?" if close else ""
