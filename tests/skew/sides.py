"""One version of winkfs: its wheel, its virtual environment, its commands and calls."""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/skew"
SECONDS = 120  # of one command, or of one request to a mount


class Failed(Exception):
    """A version did what it must not."""


class Refused(Exception):
    """A version does not open a store: its reason."""


def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True)
    return done.stdout


@dataclass(frozen=True)
class Side:
    """The winkfs of one revision, in an environment of its own."""

    name: str
    bin: Path

    @classmethod
    def install(cls, name, folder, revision):
        """Build the wheel of a revision and install it, unless the folder has it already."""
        place = PLACE / folder
        mark, bin = place / "revision", place / "venv/bin"
        if not mark.exists() or mark.read_text() != revision:
            shutil.rmtree(place, ignore_errors=True)
            source = place / "source"
            with tarfile.open(fileobj=BytesIO(git("archive", revision))) as archive:
                archive.extractall(source, filter="data")
            subprocess.run(["python3", "-m", "venv", place / "venv"], check=True)
            pip = [bin / "python", "-m", "pip", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, "wheel", "--no-deps", "-w", place, source], check=True)
            (wheel,) = place.glob("winkfs-*.whl")
            extra = (
                "[compress]"
                if b"\ncompress = " in git("show", f"{revision}:pyproject.toml")
                else ""
            )
            subprocess.run([*pip, "install", f"{wheel}{extra}"], check=True)
            shutil.rmtree(source)
            mark.write_text(revision)
        return cls(name, bin)

    def command(self, *arguments, stdin=b"", cwd=None):
        """Run a command line of winkfs; return the finished process. A traceback is a fault."""
        try:
            done = subprocess.run([self.bin / "winkfs", *map(str, arguments)], input=stdin,
                                  capture_output=True, timeout=SECONDS, cwd=cwd)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name}: winkfs {arguments[0]} hangs") from None
        if b"Traceback" in done.stderr:
            raise Failed(f"{self.name}: winkfs {arguments[0]}: {done.stderr.decode()}")
        return done

    def do(self, *arguments, stdin=b""):
        """Run a command that must succeed."""
        done = self.command(*arguments, stdin=stdin)
        if done.returncode:
            raise Failed(f"{self.name}: winkfs {' '.join(map(str, arguments))}: exit status "
                         f"{done.returncode}: {(done.stdout + done.stderr).decode()}")  # fmt: skip
        return done.stdout

    def do_if_known(self, *arguments):
        """Run a command that must succeed; return False if this version has no such command."""
        done = self.command(arguments[0], "--help")
        return done.returncode == 0 and (self.do(*arguments), True)[1]

    def python(self, base, *calls, create=None, kill=False, read=False):
        """Carry out calls of a writing handle, then read and verify all; return the files.

        raises  Refused if this version refuses the store
        """
        request = {"base": str(base), "create": create, "calls": calls, "kill": kill, "read": read}
        agent = Path(__file__).with_name("agent.py")
        done = subprocess.run([self.bin / "python", agent], input=json.dumps(request).encode(),
                              capture_output=True, timeout=SECONDS)  # fmt: skip
        if kill and done.returncode == -9:
            return None
        if done.returncode:
            raise Failed(f"{self.name}: {done.stderr.decode()}")
        result = json.loads(done.stdout)
        if "refused" in result:
            raise Refused(result["refused"])
        if result.get("problems"):
            raise Failed(f"{self.name}: verify: {'; '.join(result['problems'][:3])}")
        return result.get("files")

    @contextmanager
    def mounted(self, base, *options):
        """Mount; a mount that does not answer is aborted, so that the test ends."""
        mount = base.parent / "mnt"
        mount.mkdir(exist_ok=True)
        self.do("mount", *options, base, mount)
        watchdog = Timer(SECONDS, abort_file(mount).write_text, ["1"])
        watchdog.start()
        try:
            yield mount
            self.do("umount", mount)
        except BaseException:
            self.command("umount", "--lazy", mount)
            raise
        finally:
            watchdog.cancel()


def abort_file(mount):
    """Return the file of the kernel that ends a mount without asking its server."""
    control = Path("/sys/fs/fuse/connections")
    if not any(control.glob("*")):
        subprocess.run(["mount", "-t", "fusectl", "fusectl", control])
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == os.fspath(mount):
            return control / fields[2].partition(":")[2] / "abort"
    raise Failed(f"{mount}: not mounted")


def fingerprint(folder):
    """Return the digest of each file of a folder, but of locks, which have a pid."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).digest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }
