"""What winkfs is for, on a directory of this machine: pack, mount, grep, Spark, reindex.

    make demo [DIR=directory]

Every command is printed with the time it took; the result stays in build/demo to look at.
Exit status 0: all answers were right; parts that this machine cannot run (no FUSE, no Java) are
left out with a line that says why. 1: something failed. 2: the directory cannot be taken.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from examples.word_count import missing as spark_missing

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("build/demo")  # below ROOT, where the commands run
BASE, TREE, MOUNT = WORK / "corpus", WORK / "tree", WORK / "mnt"
BIN = Path(sys.executable).parent
MIN_FILES = 200  # a documentation directory with less (in a slim image) is not worth a look
DEVICE = "/dev/fuse"
CAP_SYS_ADMIN = 21
NOTE = "winkfs-demo.txt"


class Failed(Exception):
    """A command failed or gave a wrong answer; the text says which."""


def files_below(directory: Path) -> tuple[int, int]:
    """(number, bytes) of the regular files below a directory."""
    found = [
        os.lstat(os.path.join(where, name))
        for where, _, names in os.walk(directory)
        for name in names
    ]
    sizes = [status.st_size for status in found if stat.S_ISREG(status.st_mode)]
    return len(sizes), sum(sizes)


def default_directory() -> Path:
    """A directory of small files that every machine has."""
    documentation = Path("/usr/share/doc")
    if files_below(documentation)[0] >= MIN_FILES:
        return documentation
    return Path(sysconfig.get_path("stdlib"))


def run(
    *command: str | Path,
    note: str = "",
    files: int = 0,
    size: int = 0,
    statuses: tuple[int, ...] = (0,),
) -> str:
    """Run a command, print its line of the table, return its output.

    files, size  what it worked through, for the speed; 0: no speed is shown
    statuses     exit statuses that are no failure
    """
    words = [os.fspath(word) for word in command]
    program = BIN / words[0]
    start = time.perf_counter()
    done = subprocess.run(
        [program if program.exists() else words[0], *words[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    line = shlex.join("..." if "\n" in word else word for word in words)
    if done.returncode not in statuses:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        reason = said.splitlines()[-1] if said else f"exit status {done.returncode}"
        raise Failed(f"{line}: {reason}")
    speed = f"{f'{files / seconds:,.0f}' if files else '':>9}"
    speed += f"{f'{size / seconds / 1e6:,.0f}' if size else '':>8}"
    print(f"{seconds:>8.2f}{speed}  {line}{note}", flush=True)
    return done.stdout.decode(errors="surrogateescape")


def expect(right: bool, what: str) -> None:
    """Stop the demo unless an answer was right."""
    if not right:
        raise Failed(what)


def fuse_missing() -> str | None:
    """Why this machine cannot mount, in one line; None if it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE}: {error.strerror} (in a container: run it with --device /dev/fuse)"
    if os.geteuid() != 0:
        return (
            None
            if shutil.which("fusermount3")
            else "no fusermount3; get it with: apt install fuse3"
        )
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.split("CapEff:")[1].split()[0], 16)
    if not capabilities >> CAP_SYS_ADMIN & 1:
        return "root may not mount here (in a container: run it with --cap-add SYS_ADMIN)"
    return None


def clear_away(mount: Path | None = None) -> None:
    """End a mount that is still there, of this run or of one that was killed."""
    if shutil.which("fusermount3"):
        where = ROOT / (mount or MOUNT)
        subprocess.run(["fusermount3", "-uzq", where], capture_output=True, check=False)


def about_special_file(line: str) -> bool:
    """Whether diff speaks of a device, fifo or socket, which a container cannot hold."""
    where, _, name = line.removeprefix("Only in ").partition(": ")
    try:
        kind = stat.S_IFMT(os.lstat(os.path.join(where, name)).st_mode)
    except FileNotFoundError:
        return False
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def pack_and_unpack(source: Path, files: int, size: int) -> None:
    """Directory -> container -> directory; the two must be the same."""
    run("winkfs", "pack", source, BASE, files=files, size=size)
    run("winkfs", "unpack", "-p", BASE, TREE, files=files, size=size)
    lines = run("diff", "-r", "--no-dereference", source, TREE, statuses=(0, 1)).splitlines()
    differences = [line for line in lines if not about_special_file(line)]
    expect(not differences, f"not the same after unpack: {differences[:1]}")
    run("winkfs", "verify", BASE, files=files, size=size)


def work_on_mount(source: Path, files: int, size: int) -> None:
    """Ordinary tools on the mount, with the answers that they give on the directory."""
    found = run("find", MOUNT, "-type", "f", files=files).count("\n")
    expect(found == files, f"find sees {found:,} files on the mount, not {files:,}")
    grep = ("grep", "-rlF", "the")
    statuses = (0, 1)
    there = run(*grep, MOUNT, files=files, size=size, statuses=statuses).splitlines()
    here = run(*grep, source, files=files, size=size, statuses=statuses).splitlines()
    same = {os.path.relpath(p, MOUNT) for p in there} == {os.path.relpath(p, source) for p in here}
    expect(same, "grep finds other files on the mount than in the directory")
    run("cp", "LICENSE", f"{MOUNT / NOTE}.new")
    run("sh", "-c", f"cat LICENSE >> {MOUNT / NOTE}.new")
    run("mv", f"{MOUNT / NOTE}.new", MOUNT / NOTE)


def count_words(directory: Path) -> None:
    """The Spark job; prints its tables below its line."""
    table = run("python", "examples/word_count.py", directory, note="  # with the start of the JVM")
    print("\n".join(f"{'':27}{line}" for line in table.splitlines()), flush=True)


def lose_the_index(files: int, size: int) -> None:
    """Delete the index and get it back from the data file; no name may be lost."""
    names = run("winkfs", "ls", BASE, files=files)
    run("rm", f"{BASE}.idx")
    run("winkfs", "reindex", BASE, files=files, size=size)
    expect(run("winkfs", "ls", BASE, files=files) == names, "reindex lost a name")


def demo(source: Path) -> None:
    """Run all parts that this machine can run."""
    files, size = files_below(source)
    print(f"{source}: {files:,} files, {size / 1e6:,.1f} MB. The result stays in {WORK}.\n")
    print(f"{'seconds':>8}{'files/s':>9}{'MB/s':>8}")
    pack_and_unpack(source, files, size)
    no_mount, no_spark = fuse_missing(), spark_missing()
    if no_mount is None:
        run("winkfs", "mount", BASE, MOUNT)
        work_on_mount(source, files, size)
    if no_spark is None:
        count_words(TREE if no_mount else MOUNT)
    if no_mount is None:
        run("winkfs", "umount", MOUNT)
        text = (ROOT / "LICENSE").read_text() * 2
        expect(run("winkfs", "cat", BASE, NOTE) == text, f"{NOTE} was not kept as it was written")
    lose_the_index(files, size)
    print("\nEvery answer was right.")
    for part, reason in (("mount", no_mount), ("Spark", no_spark)):
        if reason:
            print(f"Left out: {part}: {reason}")


def main() -> int:
    """Run the demo on the directory given, or on one that every machine has."""
    source = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default_directory()
    if not source.is_dir() or (ROOT / WORK).is_relative_to(source):
        problem = f"holds {WORK} itself" if source.is_dir() else "no such directory"
        print(f"demo: {source}: {problem}; take another: make demo DIR=...", file=sys.stderr)
        return 2
    clear_away()
    shutil.rmtree(ROOT / WORK, ignore_errors=True)
    (ROOT / MOUNT).mkdir(parents=True)
    try:
        demo(source)
    except Failed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        clear_away()
    return 0


if __name__ == "__main__":
    sys.exit(main())
