"""Two versions of winkfs take turns on the same files: a release before, and the one of this clone.

    python3 tests/skew/run.py [--old REVISION] [--only TEXT] [--write]

    --old    default: the newest release of packaging/releases.toml that is older than this one
    --only   only features whose title contains the text
    --write  put the results into the table of docs/versions.md, in the column of this revision

For each feature of the formats one version makes the files, and both then write, read, list,
verify, mount, append, delete, rename, compact and reindex them in turns. After each step each
version must read what a model has. What the older version cannot read it must refuse: one line,
exit status 1, no byte changed. The newer version must read everything at the end.

The wheels and environments are in build/skew and are kept. Spark is left out: it reads and writes
through the same containers and data sets.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import page
from features import FEATURES, MOUNTS, Container, Dataset, container, dataset
from sides import ROOT, Failed, Refused, Side, git

FAULT = "FAULT"
PLAIN = {Container: container(), Dataset: dataset()}  # stores without further features


def turns(trial, first, second):
    """Let both versions take turns; return what the older one does, and a note.

    The newer one may use, in a step, what the older one refuses from then on.
    """
    old, new = (first, second) if first.name == "old" else (second, first)
    for step in trial.steps:
        for side in (first, second):
            files = dict(trial.files)
            try:
                getattr(trial, step)(side)
            except Refused as refusal:
                if side is new:
                    raise
                trial.files = files
                return "reads, does not write", str(refusal)
            trial.check(new)
            try:
                trial.check(old)
            except Refused as refusal:
                if side is old:
                    raise Failed(f"old refuses what it has written: {refusal}") from None
                return f"until the newer one has done `{step}`", trial.refused(old)
    return "reads and writes", ""


def judge(feature, folder, maker, other):
    """Make the files of a feature by one version, take turns; return as `turns`."""
    old, new = (maker, other) if maker.name == "old" else (other, maker)
    trial = feature.kind(feature, folder, (old, new))
    try:
        feature.make(trial, maker)
    except Refused as refusal:
        if maker is new:
            raise
        if not feature.later:
            return "cannot make them", str(refusal)
        trial = feature.kind(feature, folder, (old, new))
        PLAIN[feature.kind](trial, old)
        for step in feature.later:
            step(trial, new)
    trial.check(new)
    try:
        trial.check(old)
    except Refused:
        verdict, note = "refuses", trial.refused(old)
        verdict += trial.unread(old)
        trial.check(new)
        trial.change(new)
    else:
        verdict, note = turns(trial, other, maker)
    trial.check(new)
    return verdict, note


def trials(old, new, only):
    """Yield the feature, the name of the maker, the verdict and a note of each trial, in order."""

    def run(trial):
        feature, maker, other = trial
        with TemporaryDirectory(prefix="winkfs-skew-", ignore_cleanup_errors=True) as folder:
            try:
                return judge(feature, Path(folder, "files"), maker, other)
            except (Failed, Refused, OSError) as fault:
                return FAULT, str(fault)

    pairs = ((new, old), (old, new))
    todo = [(feature, *pair) for feature in FEATURES if only in feature.title for pair in pairs]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (feature, maker, _), (verdict, note) in zip(todo, pool.map(run, todo), strict=True):
            yield feature, maker.name, verdict, note


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--old")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    label, revision = chosen(options.old)
    old = Side.install("old", f"old-{revision[:12]}", revision)
    working = git("stash", "create").decode().strip() or git("rev-parse", "HEAD").decode().strip()
    new = Side.install("new", "new", working)
    print(f"old: {label}, {old.do('--version').decode().strip()}", flush=True)
    print(f"new: {working[:12]}, {new.do('--version').decode().strip()}", flush=True)
    if not MOUNTS:
        print("mounts are left out: there is no /dev/fuse")
    cells, faults = {maker: {} for maker in page.TABLES}, []
    for feature, maker, verdict, note in trials(old, new, options.only):
        print(f"{feature.title:36} made by {maker}: {verdict:18} {note}", flush=True)
        cells[maker][feature.title] = verdict
        if verdict == FAULT:
            faults.append(f"{feature.title}, made by {maker}: {note}")
    if not faults:
        faults = page.compare(label, cells, FEATURES, options.write)
    print(*faults, f"{len(faults)} faults", sep="\n")
    return int(bool(faults))


def chosen(given):
    """Return the label and the commit of the older version."""
    if given:
        return given, git("rev-parse", "--verify", f"{given}^{{commit}}").decode().strip()
    releases = tomllib.loads((ROOT / "packaging/releases.toml").read_text())
    version = re.search(r'VERSION.*= "([^"]+)"',
                        (ROOT / "formats/winkformats/version.py").read_text())[1]  # fmt: skip
    order = {name: tuple(map(int, name.split("."))) for name in [*releases, version]}
    before = max((name for name in releases if order[name] < order[version]), key=order.get)
    return before, releases[before]["commit"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        text = (error.stderr or b"").decode().strip()
        sys.exit(f"test-skew: {' '.join(map(str, error.cmd))}: {text or 'failed'}")
