"""What each feature of the formats is made by, and the turns that two versions take on its files."""

import os
import shutil
from pathlib import Path

from sides import Failed, Refused, fingerprint

MOUNTS = Path("/dev/fuse").exists()
TEXT = "".join(f"line {number} of a document, and so on\n" for number in range(300))


def raw(text):
    return {"bytes": text}


class Trial:
    """One store, which two versions work on, and a model of what is in it."""

    def __init__(self, folder, feature):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.feature, self.folder, self.base = feature, folder, folder / "store"
        self.files = {}  # name -> content, in Latin-1
        self.attributes = {}  # name -> {attribute: value}
        self.clock = 1_700_000_000  # mtimes only grow, as append-only containers have it
        self.turn = 0

    def put(self, name, text, **options):
        """Note a put in the model; return its call."""
        self.clock += 30
        self.files[name] = text
        self.attributes.pop(name, None)
        return ["put", [name, raw(text)], {"mtime": self.clock, **options}]

    def append(self, name, text):
        self.files[name] += text
        return ["append", [name, raw(text)], {}]

    def write(self, name, offset, text):
        old = self.files[name].ljust(offset, "\0")
        self.files[name] = old[:offset] + text + old[offset + len(text) :]
        return ["write", [name, offset, raw(text)], {}]

    def rename(self, old, new):
        self.files[new] = self.files.pop(old)
        self.attributes[new] = self.attributes.pop(old, {})
        return ["rename", [old, new], {}]

    def delete(self, name):
        del self.files[name]
        self.attributes.pop(name, None)
        return ["delete", [name], {}]

    def put_many(self, files):
        self.files |= files
        return ["put_many", [[[name, raw(text)] for name, text in files.items()]], {}]

    def check(self, side, verify=True):
        """Hold what a version reads, and its verify, against the model."""
        found = side.python(self.base, read=True)
        if sorted(found) != sorted(self.files):
            lost, more = set(self.files) - set(found), set(found) - set(self.files)
            raise Failed(f"{side.name} does not see {sorted(lost)[:3]}, sees {sorted(more)[:3]}")
        for name, (text, attributes) in found.items():
            if text != self.files[name]:
                raise Failed(f"{side.name} reads other bytes of {name}")
            for key, value in self.attributes.get(name, {}).items():
                if attributes.get(key) != value:
                    raise Failed(f"{side.name}: {name} has {key} {attributes.get(key)}, not {value}")
        if verify:
            side.do("verify", self.base)

    def change(self, side):
        """Change the store by each call that its kind has."""
        self.turn += 1
        own = f"{side.name}{self.turn}"
        calls = [self.put(f"{own}/{n}", f"{own} {n}\n{TEXT[: 50 * n]}") for n in range(8)]
        if "whole" in self.feature.words:  # a data set: files are replaced as a whole
            calls += [self.put(f"{own}/1", TEXT), self.rename(f"{own}/2", f"{own}/two"),
                      self.delete(f"{own}/3")]  # fmt: skip
        elif "ordered" in self.feature.words:  # append-only: the last file grows, none goes first
            calls += [self.append(f"{own}/7", "more"), self.delete(f"{own}/3")]
        else:
            calls += [self.append(f"{own}/0", "more"), self.write(f"{own}/4", 5, "WRITTEN"),
                      self.write(f"{own}/5", 5000, "behind a gap"), self.put(f"{own}/1", TEXT),
                      self.rename(f"{own}/2", f"{own}/two"), self.delete(f"{own}/3")]  # fmt: skip
            shared = sorted(name for name in self.files if not name.startswith(own))
            if shared:  # files that the other version made
                calls += [self.append(shared[0], f" {own}"), self.write(shared[-1], 1, own),
                          self.rename(shared[len(shared) // 2], f"{own}/moved")]  # fmt: skip
        if "ordered" not in self.feature.words:
            calls.append(self.put_many({f"{own}/many/{n}": TEXT[:n] for n in range(50)}))
        side.python(self.base, *calls)

    def kill(self, side):
        """Kill a writer that has synced some changes and not others."""
        synced = [self.put(f"{side.name}/synced", TEXT), ["sync", [], {}]]
        kept = dict(self.files)
        lost = [self.put(f"{side.name}/lost", "not synced")]
        if side.python(self.base, *synced, *lost, kill=True) is not None:
            raise Failed(f"{side.name} was not killed")
        self.files = kept

    def mount(self, side, writes):
        """Read through a real mount, and write where the store can be written by a mount."""
        with side.mounted(self.base, *(() if writes else ("--ro",))) as mount:
            found = {
                os.fsdecode(path.relative_to(mount)): path.read_bytes().decode("latin-1")
                for path in mount.rglob("*")
                if path.is_file()
            }
            if found != self.files:
                raise Failed(f"the mount of {side.name} shows other files than the model has")
            if writes:
                self.turn += 1
                name = f"{side.name} mount {self.turn}"
                (mount / name).write_text(TEXT)
                with (mount / name).open("r+") as file:
                    file.seek(100)
                    file.write("in the middle")
                (mount / f"{name} gone").write_text("x")
                (mount / f"{name} gone").unlink()
                (mount / f"{name} old").write_text("renamed")
                (mount / f"{name} old").rename(mount / f"{name} new")
                self.files[name] = TEXT[:100] + "in the middle" + TEXT[113:]
                self.files[f"{name} new"] = "renamed"
                if "classic" not in self.feature.words:
                    os.setxattr(mount / name, "user.note", side.name.encode())
                    self.attributes[name] = {"user.note": side.name}

    def refuses(self, side, commands):
        """Hold that each command is refused in one line and changes no byte."""
        before = fingerprint(self.folder)
        for command in commands:
            done = side.command(*command, stdin=b"x")
            text = (done.stderr if command[0] != "verify" else done.stdout).decode().strip()
            if done.returncode != 1 or not text or ("\n" in text and command[0] != "verify"):
                raise Failed(f"{side.name} does not refuse {command[0]} in one line with status 1: "
                             f"status {done.returncode}, {text!r}")  # fmt: skip
            if fingerprint(self.folder) != before:
                raise Failed(f"{side.name} refuses {command[0]} and changes the files all the same")
        return text


class Feature:
    """A kind of file, how it is made, and what can be done to it."""

    def __init__(self, title, make, *words):
        self.title, self.make, self.words = title, make, words


# --- containers --------------------------------------------------------------------------------


def container(*more, **options):
    """Return what makes a container with these options, some files, and what `more` adds."""

    def make(trial, side):
        calls = [trial.put(f"{name}/{n}", TEXT[: n * 100]) for name in "ab" for n in range(20)]
        side.python(trial.base, *calls, create=options)
        for step in more:
            step(trial, side)

    return make


def overwritten(trial, side):
    """A file of several hundred pieces, overwritten in many syncs."""
    calls = [trial.put("large", "x" * 400_000), ["sync", [], {}]]
    for n in range(400):
        calls.append(trial.write("large", (n * 7919) % 399_000, f"piece {n}"))
        if n % 50 == 49:
            calls.append(["sync", [], {}])
    side.python(trial.base, *calls)


def typed(trial, side):
    """Files with values of columns."""
    calls = [trial.put(f"typed{n}", "x" * n, columns={"lang": "de", "score": n}) for n in range(9)]
    side.python(trial.base, *calls)
    for n in range(9):
        trial.attributes[f"typed{n}"] = {"user.lang": "de", "user.score": str(n)}


def described(trial, side):
    """Files with modes, owners, extended attributes, holes."""
    calls = [
        trial.put("described", "x"),
        ["chmod", ["described", 0o4751], {}],
        ["chown", ["described", 1000, 1000], {}],
        trial.put("holes", "begin"),
        trial.write("holes", 300_000, "end"),
        trial.put("http://a.org/x/", "a name with an empty part"),
    ]
    side.python(trial.base, *calls)


def rolled_back(trial, side):
    trial.kill(side)
    trial.do_or_refuse = side.command("rollback", trial.base)
    if trial.do_or_refuse.returncode == 2:
        raise Refused("no such command")


def compacted(trial, side):
    if side.command("compact", trial.base).returncode == 2:
        raise Refused("no such command")


def damaged(trial, side):
    """A file whose content is damaged, and `repair`, which removes it."""
    side.python(trial.base, trial.put("victim", "unmistakable" * 50))
    data = trial.base.with_suffix(".data")
    content = data.read_bytes()
    data.write_bytes(content.replace(b"unmistakable", b"unmistekable", 1))
    if side.command("repair", "--apply", trial.base).returncode == 2:
        raise Refused("no such command")
    trial.delete("victim")
    for removed in trial.folder.glob("store.removed*"):
        removed.unlink()


# --- data sets ---------------------------------------------------------------------------------


def dataset(*more):
    """Return what makes a data set of three commits, and what `more` adds."""

    def make(trial, side):
        side.do("dataset", "create", trial.base)
        for part in "abc":
            side.python(trial.base, *(trial.put(f"{part}/{n}", TEXT[: n * 90]) for n in range(20)))
        for step in more:
            step(trial, side)

    return make


def added(make):
    """Return a step that adds a container, made by `make`, to the data set."""

    def step(trial, side):
        base, trial.base = trial.base, trial.folder.parent / f"{side.name} added" / "store"
        shutil.rmtree(trial.base.parent, ignore_errors=True)
        trial.base.parent.mkdir()
        make(trial, side)
        side.do("dataset", "add", base, trial.base)
        trial.base = base

    return step


def dataset_compacted(trial, side):
    side.python(trial.base, trial.put("a/1", "replaced"), trial.delete("b/2"))
    side.do("dataset", "compact", trial.base)
    side.do("dataset", "vacuum", trial.base)


COLUMNS = {"columns": {"lang": "string", "score": "int64"}}
FEATURES = [
    Feature("container, plain", container()),
    Feature("container, append-only", container(ao=True), "ordered"),
    Feature("container, classic", container(classic=True), "classic"),
    Feature("container, classic and append-only", container(classic=True, ao=True), "ordered", "classic"),
    Feature("MurmurHash3 index", container(htalgo=3)),
    Feature("modes, owners, holes, odd names", container(described)),
    Feature("columns", container(typed, **COLUMNS)),
    Feature("compressed contents", container(compress="zstd")),
    Feature("chains of inodes", container(overwritten)),
    Feature("after `compact`", container(compacted)),
    Feature("after `rollback`", container(rolled_back)),
    Feature("after `repair`", container(damaged)),
    Feature("ISZ, HAVEDUPS", container(isz=256, havedups=True)),
    Feature("data set", dataset(), "whole"),
    Feature("data set after compaction and vacuum", dataset(dataset_compacted), "whole"),
    Feature("data set with columns", dataset(added(container(typed, **COLUMNS))), "whole"),
    Feature("data set, compressed", dataset(added(container(compress="zstd"))), "whole"),
]
