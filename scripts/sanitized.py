"""Run tests with the compiled path built for AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m scripts.sanitized TESTS...

The module is built into build/sanitized, beside the one that is used otherwise. A `sitecustomize`
puts it in its place, in each Python that the tests start, too. Python's own allocator is left out:
with it the end of an object could not be seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "sanitized"
SOURCES = sorted((ROOT / "formats/winkformats").glob("_*.c"))
CUSTOMIZE = """
import importlib.util, sys

class Sanitized:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "winkformats._native":
            return importlib.util.spec_from_file_location(name, {path!r})

sys.meta_path.insert(0, Sanitized)
"""


def build(compiler: str) -> None:
    """Raises CalledProcessError."""
    BUILT.mkdir(parents=True, exist_ok=True)
    path = BUILT / ("_native" + sysconfig.get_config_var("EXT_SUFFIX"))
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, *flags, include, *SOURCES, "-o", path], check=True)
    (BUILT / "sitecustomize.py").write_text(CUSTOMIZE.format(path=str(path)))


def main(tests: list[str]) -> int:
    compiler = os.environ.get("CC", "gcc")
    build(compiler)
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    paths = [str(BUILT), os.environ.get("PYTHONPATH", "")]
    more = {
        "LD_PRELOAD": found.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "WINKFS_SANITIZED": "1",
    }
    # A sanitizer writes its report to the descriptor of stderr, and ends the process.
    command = [sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider"]
    command += tests
    return subprocess.run(command, env=os.environ | more, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
