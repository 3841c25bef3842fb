"""What runs beside the searcher: one ingest or bulk read, in a process of its own.

    python searcher_work.py {put_many,files,scan,spark} PATH BYTES

put_many  files of SIZE bytes into a new container
files     the same as files of their own, ROOM a directory: into a mount, or into a file system
scan      reads all contents of a container
spark     documents that the workers make, through the sink into a new data set
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final

SIZE: Final = 64 << 10  # bytes of a file
ROOM: Final = 1000  # files of a directory
POOL: Final = os.urandom(4 << 20)
HEAP: Final = "512m"  # of Spark's JVM


def files(total: int, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Names and contents, no two of the latter the same."""
    for i in range(first, first + total // SIZE):
        start = i * 4093 % (len(POOL) - SIZE)
        yield f"folder{i // ROOM:05d}/file{i:08d}", b"%016d" % i + POOL[start : start + SIZE - 16]


def put_many(path: str, total: int) -> None:
    import winkfs

    with winkfs.create(path) as container:
        container.put_many(files(total))


def write_files(path: str, total: int) -> None:
    last = ""
    for name, data in files(total):
        folder, _, _ = name.partition("/")
        if folder != last:
            os.mkdir(f"{path}/{folder}")
            last = folder
        file = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(file, data)
        os.close(file)


def scan(path: str, total: int) -> None:
    import winkfs

    with winkfs.open(path) as container:
        assert sum(len(entry.read()) for entry in container.scan()) >= total // SIZE * SIZE


def spark(path: str, total: int) -> None:
    """Two tasks; each makes its documents itself, so nothing is read."""
    from sparkruns import session

    def documents(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for (start,) in zip(batch.column(0).to_pylist(), strict=True):
                some = list(files(SIZE * 64, start * 64))
                yield pa.RecordBatch.from_pydict(
                    {"path": [name for name, _ in some], "content": [data for _, data in some]}
                )

    with session({"spark.driver.memory": HEAP, "spark.driver.extraJavaOptions":
                  f"-Xms{HEAP} -XX:+AlwaysPreTouch"}) as running:  # fmt: skip
        wait()
        chunks = running.range(total // SIZE // 64, numPartitions=2)
        frame = chunks.mapInArrow(documents, "path string, content binary")
        frame.write.format("winkfs").mode("append").save(path)
        print("done", flush=True)
        wait()


def wait() -> None:
    """Tell that it is ready, and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()


WORK: Final = {"put_many": put_many, "files": write_files, "scan": scan, "spark": spark}

if __name__ == "__main__":
    WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
