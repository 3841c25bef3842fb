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
import re
import subprocess
import sys
import tomllib

from features import FEATURES, MOUNTS
from sides import PLACE, ROOT, Failed, Refused, Side, git

PAGE = ROOT / "docs/versions.md"


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


def judge(feature, maker, other):
    """Make the files of a feature by one version, take turns; return as `turns`."""
    trial = feature.kind(feature, PLACE / "files" / maker.name)
    old, new = (maker, other) if maker.name == "old" else (other, maker)
    try:
        feature.make(trial, maker)
    except Refused as refusal:
        if maker is new:
            raise
        return "cannot make them", str(refusal)
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
    cells, faults = {}, 0
    for feature in FEATURES:
        if options.only not in feature.title:
            continue
        for maker, other in ((new, old), (old, new)):
            try:
                verdict, note = judge(feature, maker, other)
            except (Failed, Refused, OSError) as fault:
                verdict, note, faults = "FAULT", str(fault), faults + 1
            print(f"{feature.title:36} made by {maker.name}: {verdict:18} {note}", flush=True)
            cells.setdefault(feature.title, []).append(verdict)
    return int(faults > 0)


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
