"""Version of winkfs, read here by the build, `winkfs --version` and the benchmarks."""

from typing import Final

VERSION: Final = "0.3.0"
