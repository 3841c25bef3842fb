"""Is winkfs ahead of each rival? All of them in one run, in 20 minutes (`--quick`: 3).

    python benchmarks/suite.py [--quick] [--only put,get] [--minutes 20]

In each section all systems run in turn, two rounds at least, more while there is time. Writes a
page, a JSON file and a figure by date to benchmarks/results/, each figure beside that of the last
run on such a machine. A rival that is not here has a row that says why, and how to install it.
Yardsticks, such as reading a file and doing nothing with it, are no rivals and do not count.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import suite_files
import suite_mounts
import suite_report
import suite_spark
from common import Options, options
from report import machine
from suite_run import Found, Make, run, say

# The part of the time that each has.
SECTIONS: Final[dict[str, tuple[Make, float]]] = {
    "pack": (suite_files.packing, 0.12),
    "read": (suite_files.reading, 0.06),
    "put": (suite_files.putting, 0.13),
    "get": (suite_files.getting, 0.10),
    "reindex": (suite_files.reindexing, 0.06),
    "mount": (suite_mounts.reading, 0.27),
    "mount-write": (suite_mounts.writing, 0.10),
    "spark": (suite_spark.spark, 0.16),
}
MINUTES: Final = (20.0, 3.0)


def own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, help="the time it may take (20; --quick: 3)")
    parser.add_argument("--only", default="", help=f"some of the sections: {','.join(SECTIONS)}")


def main() -> int:
    asked = options(__doc__, own=own)
    wanted = asked.own.only.split(",") if asked.own.only else list(SECTIONS)
    if unknown := set(wanted) - set(SECTIONS):
        sys.exit(
            f"--only: no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}"
        )
    told = machine(asked.place)
    print(told, file=sys.stderr)
    found, failed = run_all(asked, wanted)
    for one in found:
        print(f"\n{suite_report.section_of(one)}")
    if asked.own.only:
        print("\n(some sections alone: nothing kept)")
        return bool(failed)
    name = f"bench{'-quick' * asked.quick}{'-awake' * asked.awake}"
    page, changes, last = suite_report.keep(name, told, found, failed)
    summary(found, failed, changes, last)
    print(f"all of it: {page}")
    return bool(failed)


def run_all(asked: Options, wanted: Sequence[str]) -> tuple[list[Found], list[str]]:
    """-> what was found; the sections that failed, with the reason. Time not used is passed on."""
    left = 60 * (asked.own.minutes or MINUTES[asked.quick])
    found, failed = [], []
    for i, name in enumerate(wanted):
        make, share = SECTIONS[name]
        budget = left * share / sum(SECTIONS[other][1] for other in wanted[i:])
        began = say(f"{name}: {budget:.0f} s for it")
        try:
            found.append(run(name, make, asked, budget))
        except (Exception, SystemExit) as error:  # the others still tell something
            traceback.print_exc()
            failed.append(f"{name}: {type(error).__name__}: {error}")
        left -= say(f"{name}: done") - began
    return found, failed


def summary(
    found: Sequence[Found], failed: Sequence[str], changes: Sequence[suite_report.Change], last: str
) -> None:
    """The result in some lines: where winkfs is slower, what changed, what is missing."""
    points = suite_report.points(found)
    behind = {label: times for label, times in points.items() if times < 0.95}
    print(f"\nwinkfs is as fast as its rivals or faster in {len(points) - len(behind)} of "
          f"{len(points)} comparisons; slower:")  # fmt: skip
    for label, times in sorted(behind.items(), key=lambda item: item[1]):
        print(f"  {times:5.2f}x  {label}")
    for one in found:
        for system, why in one.absent.items():
            print(f"left out in {one.name}: {system}: {why}")
    if last:
        counts = {word: [x for x in changes if x.verdict == word] for word in ("better", "worse")}
        same = len(changes) - sum(map(len, counts.values()))
        print(f"since {last}: {len(counts['better'])} better, {len(counts['worse'])} worse, "
              f"{same} the same within their ranges")  # fmt: skip
        for x in changes:
            if x.verdict != "same":
                rivals = "" if x.rivals is None else f", rivals {x.rivals:.2f}x"
                print(f"  {x.verdict}: {x.section}: {x.step}: {x.times:.2f}x{rivals}")
    for line in failed:
        print(f"FAILED {line}")


if __name__ == "__main__":
    sys.exit(main())
