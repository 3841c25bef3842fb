"""A container on object storage, shown with a store on this machine: push, read in place, Spark.

    make demo-remote [DIR=directory]

A directory is packed and pushed to an S3 that moto serves at 127.0.0.1. Each answer from there is
compared with the files. Every command is printed with the time it took; moto keeps all in memory
and is no measure of a store. Exit status and what is left out: as `scripts.demo`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from examples.word_count import missing as spark_missing
from scripts import demo
from scripts.demo import Failed, expect, files_below, run

WORK = Path("build/demo-remote")  # below ROOT, where the commands run
BASE, TREE, MOUNT, COPY = WORK / "corpus", WORK / "tree", WORK / "mnt", WORK / "copy"
BUCKET = "demo"
URL = f"s3://{BUCKET}/docs/corpus"
READ = 20  # files that `cat` reads
JOB = """
import sys
from examples.word_count import session, spark_path
spark, where = session(), sys.argv[1]
if "://" in where:
    rows = spark.read.format("winkfs").load(where)
else:
    rows = spark.read.option("recursiveFileLookup", "true").format("binaryFile")
    rows = rows.load(spark_path(where)).withColumnRenamed("length", "size")
print(*rows.selectExpr("count(*)", "sum(size)", "sum(crc32(content))").first())
spark.stop()
"""


@contextlib.contextmanager
def store() -> Iterator[str]:
    """Serve an S3 with an empty bucket, which the environment names to commands -> its address."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo", "AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1", "WINKFS_CACHE": str(demo.ROOT / WORK / "cache"),
    }  # fmt: skip
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield os.environ["AWS_ENDPOINT_URL"]
    finally:
        server.stop()


def same_tree(source: Path, other: Path) -> None:
    """Stop the demo unless two directories have the same files."""
    lines = run("diff", "-r", "--no-dereference", source, other, statuses=(0, 1)).splitlines()
    differences = [line for line in lines if not demo.about_special_file(line)]
    expect(not differences, f"{other} is not the same: {differences[:1]}")


def read_in_place(source: Path, files: int) -> None:
    """Names and contents, as they are in the directory."""
    names = {
        os.path.relpath(os.path.join(where, name), source)
        for where, folders, found in os.walk(source)
        for name in [*folders, *found]
    }
    listed = set(run("winkfs", "ls", URL, files=files).splitlines())
    only = (f"Only in {source}: {name}" for name in names - listed)
    left = [line for line in only if not demo.about_special_file(line)]
    expect(listed <= names and not left, "ls lists other files than the directory has")
    regular = [name for name in sorted(listed) if (source / name).is_file()
               and not (source / name).is_symlink()]  # fmt: skip
    for name in random.Random(1).sample(regular, min(READ, len(regular))):
        text = (source / name).read_bytes().decode(errors="surrogateescape")
        expect(run("winkfs", "cat", URL, name) == text, f"cat {name} is not the file")


def sums(where: Path | str) -> list[str]:
    """Have Spark read all files of a directory or URL -> number, bytes, and sum of checksums."""
    return run("python", "-c", JOB, where, note="  # with the start of the JVM").split()


def sums_of(source: Path) -> list[str]:
    """Return what `sums` is to find at the URL."""
    contents = [
        path.read_bytes() for path in source.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    found = len(contents), sum(map(len, contents)), sum(map(zlib.crc32, contents))
    return list(map(str, found))


def show(source: Path) -> None:
    """Run all parts that this machine can run."""
    files, size = files_below(source)
    print(f"{source}: {files:,} files, {size / 1e6:,.1f} MB. The result stays in {WORK}.\n")
    print(f"{'seconds':>8}{'files/s':>9}{'MB/s':>8}")
    run("winkfs", "pack", source, BASE, files=files, size=size)
    run("winkfs", "push", BASE, URL, files=files, size=size)
    expect("is there already" in run("winkfs", "push", BASE, URL), "a second push sends it again")
    read_in_place(source, files)
    run("winkfs", "unpack", "-p", URL, TREE, files=files, size=size)
    same_tree(source, TREE)
    no_mount, no_spark = demo.fuse_missing(), spark_missing()
    if no_mount is None:
        run("winkfs", "cache", "prefetch", URL, "*", files=files, size=size)
        run("winkfs", "mount", "--ro", URL, MOUNT)
        same_tree(source, MOUNT)
        if no_spark is None:  # links that lead out of the directory lead to the same places
            expect(sums(MOUNT) == sums(TREE), "Spark finds other contents on the mount")
        run("winkfs", "umount", MOUNT)
    if no_spark is None:
        expect(sums(URL) == sums_of(source), "Spark finds other contents at the URL")
    run("winkfs", "pull", URL, COPY, files=files, size=size)
    run("winkfs", "verify", COPY, files=files, size=size)
    one, other = (hashlib.sha256((demo.ROOT / f"{base}.data").read_bytes()[8192:]).digest()
                  for base in (BASE, COPY))  # fmt: skip
    expect(one == other, "what was pulled is not what was pushed")
    print("\nEvery answer was right.")
    for part, reason in (("mount", no_mount), ("Spark", no_spark)):
        if reason:
            print(f"Left out: {part}: {reason}")


def main() -> int:
    """Run the demo on the directory given, or on one that every machine has."""
    source = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else demo.default_directory()
    if not source.is_dir() or (demo.ROOT / WORK).is_relative_to(source):
        problem = f"holds {WORK} itself" if source.is_dir() else "no such directory"
        print(f"demo-remote: {source}: {problem}: give another DIR", file=sys.stderr)
        return 2
    demo.clear_away(MOUNT)
    shutil.rmtree(demo.ROOT / WORK, ignore_errors=True)
    (demo.ROOT / MOUNT).mkdir(parents=True)
    try:
        with store() as address:
            print(f"The store: moto at {address}\n")
            show(source)
    except Failed as failure:
        print(f"demo-remote: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        demo.clear_away(MOUNT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
