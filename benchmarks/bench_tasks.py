"""How many commands and seconds do twenty tasks of a person take, beside the tools people use?

The tree has the documentation, headers and manual pages of this machine, 8 MiB with --quick. Each
task runs with winkfs and with one or two tools of Debian, in a directory of its own; steps are the
commands typed, each part of a pipeline one. All must come to the same answer, which is written by a
command that is not timed. Seconds are medians; in brackets those of CPU. Debian: rsync borgbackup
ripgrep squashfs-tools squashfuse archivemount zip unzip zstd.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from common import Case, Phases, Watch, interleaved, options, scratch
from report import Report

OURS: Final = "winkfs"
TREES: Final = ("/usr/share/doc", "/usr/include", "/usr/share/man")
LIMIT: Final = 600  # seconds of a script
SORTED: Final = "LC_ALL=C sort"
LIST: Final = "find {} -mindepth 1 -not -type d -printf '%P %s\\n' | " + SORTED
# What all tasks find: tree/ (with part/ed.txt), its packs, and the name of one file.
PACKS: Final = """
mkdir -p tree/part && seq 1000 > tree/part/ed.txt
winkfs pack -q tree c && tar -C tree -cf t.tar . && mksquashfs tree t.sqfs -quiet -no-progress
(cd tree && zip -qry ../t.zip .) && zstd -q t.tar
cp -a tree new && find new -name '*.h' | head -n 100 | while read file; do echo more >> $file; done
find new -name '*.gz' | head -n 50 | xargs rm && winkfs pack -q new c2 && tar -C new -cf t2.tar .
"""


@dataclass(frozen=True)
class Way:
    """How a tool does a task.

    script  commands, one a line
    answer  a command that prints what all ways must agree on; "": the output of the script
    before  commands that are not timed
    """

    script: str
    answer: str = ""
    before: str = ""

    @property
    def steps(self) -> int:
        return len(re.findall(r"[^|\n;]+", self.script.strip().replace("||", ";")))


@dataclass(frozen=True)
class Task:
    title: str
    ours: Way
    theirs: Mapping[str, Way] = field(default_factory=dict)


NAME: Final = "part/ed.txt"
OWN: Final = "for end in data cat idx; do cp c.$end d.$end; done"
TASKS: Final = (
    Task(
        "put a tree into one file",
        Way("winkfs pack tree p", "winkfs ls p | grep -c gz"),
        {"tar": Way("tar -C tree -cf p.tar .", "tar tf p.tar | grep -c gz"),
         "squashfs": Way("mksquashfs tree p.sqfs -quiet -no-progress",
                         "unsquashfs -l p.sqfs | grep -c gz")},
    ),
    Task(
        "the ten largest files",
        Way("winkfs ls -S --limit 10 --format '{size}{NL}' c"),
        {"tar": Way("tar tvf t.tar | awk '{print $3}' | sort -nr | head -n 10"),
         "squashfs": Way("unsquashfs -lls t.sqfs | awk '/^-/ {print $3}' | sort -nr | head -n 10")},
    ),
    Task(
        "pages of HTML larger than 20 KiB",
        Way("winkfs find c -type f -name '*.html' -size +20k", "sort answer | sed 's,^,./,'"),
        {"tar": Way("tar tvf t.tar --wildcards '*.html' | awk '/^-/ && $3 > 20480 {print $6}'",
                    "sort answer"),
         "squashfs": Way(
             "unsquashfs -lls t.sqfs | awk '/^-.*\\.html$/ && $3 > 20480 {print $6}'",
             "sort answer | sed 's,^squashfs-root,.,'")},
    ),
    Task(
        "find ten of them and copy them out, with their times",
        Way("winkfs find c -type f -name '*.html' -size +20k | sort | head -n 10"
            " | winkfs unpack -q -p c out --files-from -", LIST.format("out")),
        {"tar": Way("tar tvf t.tar --wildcards '*.html' | awk '/^-/ && $3 > 20480 {print $6}'"
                    " | sort | head -n 10 > list\nmkdir out\ntar xf t.tar -C out -T list",
                    LIST.format("out"))},
    ),
    Task(
        "bytes of each directory at the top",
        Way("winkfs du -d 1 c", "grep -v '\\.$' answer | cut -f2 | sed 's,^\\./,,' | sort"),
        {"tar": Way(
            "tar tvf t.tar | awk '{split($6, part, \"/\"); bytes[part[2]] += $3}"
            " END {for (name in bytes) if (bytes[name]) print bytes[name] \"\\t\" name}'",
            "cut -f2 answer | sort")},
    ),
    Task(
        "read one file",
        Way(f"winkfs cat c {NAME}"),
        {"tar": Way(f"tar xOf t.tar ./{NAME}"), "squashfs": Way(f"unsquashfs -cat t.sqfs {NAME}"),
         "zip": Way(f"unzip -p t.zip {NAME}")},
    ),
    Task(
        "files in which a word is",
        Way("winkfs grep -l c pthread_mutex_lock", "sort answer"),
        {"rg, of the tree": Way("cd tree\nrg -uu -l pthread_mutex_lock", "sort answer"),
         "tar, rg": Way("mkdir x\ntar xf t.tar -C x\ncd x\nrg -uu -l pthread_mutex_lock",
                        "sort answer")},
    ),
    Task(
        "what differs between two packs",
        Way("winkfs diff --content-only c c2 || true",
            "cut -f1 answer | cut -c3- | grep -v '/$' | sort | uniq"),
        {"tar": Way(
            "tar tvf t.tar | awk '!/^d/ {print $3, $6}' | sort > a\n"
            "tar tvf t2.tar | awk '!/^d/ {print $3, $6}' | sort > b\n"
            "comm -3 a b | awk '{print $2}' | sort -u", "sed 's,^\\./,,' answer | sort"),
         "rsync, of the trees": Way(
             "rsync -rlnic --delete new/ tree/",
             "grep -v '/$' answer | sed -E 's/^[^ ]+ +//' | sort")},
    ),
    Task(
        "keep a copy of a tree: again, after 150 changes, and once more",
        Way("winkfs sync -q --delete new d\nwinkfs sync -q --delete new d",
            "winkfs diff --content-only new d && echo same", OWN),
        {"rsync": Way("rsync -a --delete new/ d/\nrsync -a --delete new/ d/",
                      "[ -z \"$(rsync -rlnic --delete new/ d/)\" ] && echo same", "cp -a tree d")},
    ),
    Task(
        "add what is new to the pack",
        Way("winkfs pack -q --update new d",
            "winkfs cat d part/ed.txt | md5sum; winkfs grep -c d '^more$' | grep -vc ':0'",
            OWN),
        {"zip": Way("cd new\nzip -qru ../v.zip .",
                    "mkdir z; unzip -qd z v.zip; md5sum < z/part/ed.txt;"
                    " grep -rlx more z | wc -l", "cp t.zip v.zip")},
    ),
    Task(
        "remove a directory and give its space back",
        Way("winkfs rm -r d include\nwinkfs compact -q d", "winkfs ls d | wc -l",
            OWN),
        {"tar": Way("tar --delete -f v.tar ./include", "tar tf v.tar | grep -vc '^./$'",
                    "cp t.tar v.tar"),
         "zip": Way("zip -qd v.zip 'include/*'", "unzip -Z1 v.zip | wc -l", "cp t.zip v.zip")},
    ),
    Task(
        "look into a zip file",
        Way("winkfs pack -q t.zip z\nwinkfs ls z", "grep -c gz answer"),
        {"zip": Way("unzip -Z1 t.zip", "grep -c gz answer")},
    ),
    Task(
        "read through a mount with other tools",
        Way("winkfs mount --ro c m\ncat m/include/*.h | md5sum\nwinkfs umount m", before="mkdir m"),
        {"squashfuse": Way("squashfuse t.sqfs m\ncat m/include/*.h | md5sum\nfusermount -u m",
                           before="mkdir m"),
         "archivemount": Way("archivemount -o readonly t.tar m\ncat m/include/*.h | md5sum\n"
                             "fusermount -u m", before="mkdir m")},
    ),
    Task(
        "edit, rename and remove files in the pack",
        Way("winkfs mount d m\nsed -i s/10/ten/ m/part/ed.txt\nmv m/part m/parts\n"
            "rm -r m/man\nwinkfs umount m",
            "winkfs cat d parts/ed.txt | md5sum; winkfs ls d | wc -l",
            f"mkdir m; {OWN}"),
        {"tar": Way("mkdir x\ntar xf t.tar -C x\nsed -i s/10/ten/ x/part/ed.txt\n"
                    "mv x/part x/parts\nrm -r x/man\ntar -C x -cf v.tar .",
                    "tar xOf v.tar ./parts/ed.txt | md5sum; tar tf v.tar | grep -vc '^./$'")},
    ),
    Task(
        "back up, and once more after 150 changes",
        Way("winkfs backup -q d b\nwinkfs pack -q --update new d\nwinkfs backup -q d b",
            "winkfs grep -c b '^more$' | grep -vc ':0'",
            OWN),
        {"borg": Way("borg create r::1 tree\nborg create r::2 new",
                     "mkdir x; cd x; borg extract ../r::2; grep -rlx more new | wc -l",
                     "borg init -e none r"),
         "rsync": Way("rsync -a tree/ b\nrsync -a new/ b", "grep -rlx more b | wc -l")},
    ),
    Task(
        "test whether each byte is as it was written",
        Way("winkfs verify -q c && echo sound"),
        {"zip": Way("unzip -tqq t.zip && echo sound"),
         "borg": Way("borg check --verify-data r && echo sound",
                     before="borg init -e none r; borg create r::1 tree")},
    ),
    Task(
        "make a zip file of a tar.zst",
        Way("winkfs pack -q t.tar.zst p\nwinkfs unpack -q p --zip o.zip",
            "unzip -Z1 o.zip | grep -v '/$' | sort"),
        {"tar, zip": Way("mkdir x\ntar xf t.tar.zst -C x\ncd x\nzip -qry ../o.zip .",
                         "unzip -Z1 o.zip | grep -v '/$' | sort")},
    ),
    Task(
        "unpack all",
        Way("winkfs unpack -q -p c out", LIST.format("out")),
        {"tar": Way("mkdir out\ntar xf t.tar -C out", LIST.format("out")),
         "squashfs": Way("unsquashfs -q -n -d out t.sqfs", LIST.format("out"))},
    ),
    Task(
        "go on with an unpack that was stopped",
        Way("winkfs unpack -q -p c out", LIST.format("out"),
            "timeout -s INT 1 winkfs unpack -q -p c out"),
        {"tar": Way("tar xf t.tar -C out", LIST.format("out"),
                    "mkdir out; timeout -s INT 0.5 tar xf t.tar -C out")},
    ),
    Task(
        "find the file of which a byte is damaged",
        Way("winkfs verify -q d || true", "cat answer errors | grep -c part/ed.txt",
            f"{OWN}; sed -i s/^998$/999/ d.data"),
        {"zip": Way("unzip -tqq u.zip || true", "cat answer errors | grep -c part/ed.txt",
                    "cd tree; zip -qry0 ../u.zip .; cd ..; sed -i s/^998$/999/ u.zip")},
    ),
)  # fmt: skip


def main() -> None:
    asked = options(__doc__, runs=3)
    missing = [tool for tool in ("rsync", "borg", "rg", "mksquashfs", "squashfuse", "archivemount",
                                 "zip", "unzip", "zstd") if shutil.which(tool) is None]  # fmt: skip
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}; see --help")
    report = Report(
        asked, "tasks", "How do twenty tasks go, beside the tools people use?",
        ("task", "winkfs: steps, s (CPU)", "others: steps, s (CPU)"),
    )  # fmt: skip
    wrong: list[str] = []
    with scratch(asked) as place:
        packs = place / "packs"
        packs.mkdir()
        _tree(packs / "tree", asked.quick)
        _bash(PACKS, packs)
        for task in TASKS:
            answers: dict[str, str] = {}
            ways = {OURS: task.ours, **task.theirs}
            cases: dict[str, Case] = {
                name: partial(_run, place, packs, way, name, answers) for name, way in ways.items()
            }
            found = interleaved(cases, asked.runs)
            report.keep(task.title, found)
            cells = {name: _cell(way, found[name]) for name, way in ways.items()}
            report.row(
                task.title, cells.pop(OURS), "; ".join(f"{n}: {c}" for n, c in cells.items())
            )
            if len(set(answers.values())) != 1 or not answers[OURS].strip():
                wrong.append(f"{task.title}: {answers}")
    report.finish()
    if wrong:
        sys.exit("answers that differ:\n" + "\n".join(line[:2000] for line in wrong))


def _tree(path: Path, quick: bool) -> None:
    path.mkdir()
    for source in TREES:
        _bash(f"mkdir {Path(source).name}; cp -a {source}/{'p*' if quick else '*'} $_", path)


def _run(place: Path, packs: Path, way: Way, name: str, answers: dict[str, str]) -> Phases:
    """Run a script among links to the packs, which it must not change."""
    room = place / "room"
    shutil.rmtree(room, ignore_errors=True)
    _bash(f"cp -al {packs} {room}", place)
    _bash(way.before or "true", room)
    with (room / "answer").open("wb") as answer, (room / "errors").open("wb") as errors:
        watch = Watch()
        status = subprocess.run(
            ["bash", "-ec", way.script],
            cwd=room,
            stdout=answer,
            stderr=errors,
            timeout=LIMIT,
            check=False,
            env=_environment(),
        )
        watch.total("all")
    if status.returncode:
        sys.exit(f"{way.script}\n{(room / 'errors').read_text()}")
    answers[name] = _bash(way.answer, room) if way.answer else (room / "answer").read_text()
    return watch.phases


def _bash(script: str, where: Path) -> str:
    done = subprocess.run(["bash", "-c", script], cwd=where, capture_output=True, text=True,
                          timeout=LIMIT, check=False, env=_environment())  # fmt: skip
    return done.stdout


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        "LC_ALL": "C",
        "BORG_BASE_DIR": os.environ.get("TMPDIR", "/tmp"),
    }


def _cell(way: Way, phases: Mapping[str, list[float]]) -> str:
    wall, cpu = (statistics.median(phases[name]) for name in ("all", "cpu"))
    return f"{way.steps}, {wall:.2f} ({cpu:.2f})"


if __name__ == "__main__":
    main()
