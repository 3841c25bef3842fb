"""The version of winkfs: the build, `winkfs --version` and the benchmarks read it here."""

from typing import Final

VERSION: Final = "0.2.0"
