"""The features of the formats, how each is made, and what is done to its files."""

import os
import shutil
from pathlib import Path

from sides import Failed, Refused, fingerprint

MOUNTS = Path("/dev/fuse").exists()
TEXT = "".join(f"line {number} of a document, and so on\n" for number in range(300))
DERIVED = (".idx", ".time", ".cat", ".names", ".cols")
COLUMNS = {"columns": {"lang": "string", "score": "int64"}}
NEWER = {"columns": {"lang": "string", "price": "decimal(9,2)", "vector": "list<float64>"}}
COMMITS = 66  # a checkpoint of a data set is among them


def raw(text):
    """Return text of the model as the agent takes bytes."""
    return {"bytes": text}


class Container:
    """A container which two versions work on, and a model of what is in it."""

    steps = ("change", "change", "kill", "mount", "rebuild", "compact", "change")
    reports = ("verify",)  # commands that may name several faults, a line each

    def __init__(self, feature, folder, sides):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.feature, self.sides = feature, sides
        self.folder, self.base = folder, folder / "store"
        self.files = {}  # name -> content, in Latin-1
        self.attributes = {}  # name -> {attribute: value}
        self.clock = 1_700_000_000  # mtimes only grow, as append-only containers have it
        self.turn = 0

    # --- calls, noted in the model ---

    def put(self, name, text, **options):
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

    # --- steps ---

    def change(self, side):
        """Change files by each call, also those that the other version made."""
        self.turn += 1
        own = f"{side.name}{self.turn}"
        calls = [self.put(f"{own}/{n}", f"{own} {n}\n{TEXT[: 50 * n]}") for n in range(8)]
        if self.feature.ordered:  # the last file grows, none goes before it
            calls += [self.append(f"{own}/7", "more"), self.delete(f"{own}/3")]
        else:
            others = sorted(name for name in self.files if not name.startswith(own))
            calls += [
                self.append(f"{own}/0", "more"),
                self.write(f"{own}/4", 5, "WRITTEN"),
                self.write(f"{own}/5", 5000, "behind a gap"),
                self.put(f"{own}/1", TEXT),
                self.rename(f"{own}/2", f"{own}/two"),
                self.delete(f"{own}/3"),
                self.append(others[0], f" {own}"),
                self.write(others[-1], 1, own),
                self.rename(others[len(others) // 2], f"{own}/moved"),
                self.put_many({f"{own}/many/{n}": TEXT[:n] for n in range(50)}),
            ]
        for n in range(5 * ("large" in self.files)):
            calls += [self.write("large", (self.turn * 5 + n) * 7919, own), ["sync", [], {}]]
        side.python(self.base, *calls)

    def kill(self, side):
        """Kill a writer that has synced some changes and not others."""
        self.turn += 1
        synced = [self.put(f"{side.name}{self.turn}/synced", TEXT), ["sync", [], {}]]
        kept = dict(self.files)
        lost = self.put("lost", "not synced")
        if side.python(self.base, *synced, lost, kill=True) is not None:
            raise Failed(f"{side.name} was not killed")
        self.files = kept

    def mount(self, side):
        """Read through a mount and, where any file can be written, write through it."""
        if not MOUNTS:
            return
        writes = type(self) is Container and not self.feature.ordered
        with side.mounted(self.base, *(() if writes else ("--ro",))) as mount:
            found = {
                os.fsdecode(path.relative_to(mount)): path.read_bytes().decode("latin-1")
                for path in mount.rglob("*")
                if path.is_file() and "@" not in os.fspath(path)
            }
            if found != {name: text for name, text in self.files.items() if "//" not in name}:
                raise Failed(f"the mount of {side.name} shows other files than the model has")
            if writes:
                self.locked_out(side)
                self.write_through(mount, side)

    def locked_out(self, side):
        """Hold that neither version writes while one has mounted the container."""
        for writer in self.sides:
            done = writer.command("put", self.base, "not written", stdin=b"x")
            if done.returncode != 1 or done.stderr.count(b"\n") != 1:
                raise Failed(f"{writer.name} writes to what {side.name} has mounted: {done}")

    def write_through(self, mount, side):
        self.turn += 1
        name = f"{side.name} mount {self.turn}"
        (mount / name).write_text(TEXT)
        with (mount / name).open("r+") as file:
            file.seek(100)
            file.write("in the middle")
        (mount / "gone").write_text("x")
        (mount / "gone").unlink()
        (mount / "old name").write_text("renamed")
        (mount / "old name").rename(mount / f"{name} new")
        self.files[name] = TEXT[:100] + "in the middle" + TEXT[113:]
        self.files[f"{name} new"] = "renamed"
        if not self.feature.classic:
            os.setxattr(mount / name, "user.note", side.name.encode())
            self.attributes[name] = {"user.note": side.name}

    def rebuild(self, side):
        """Read without what can be rebuilt, and rebuild it."""
        for path in self.folder.rglob("*"):
            if path.suffix in DERIVED:
                path.unlink()
        self.check(side)
        side.do("reindex", self.base)

    def compact(self, side):
        side.do_if_known("compact", self.base)

    # --- what must hold ---

    def check(self, side):
        """Hold what a version reads against the model; it must also verify."""
        found = side.python(self.base, read=True)
        if sorted(found) != sorted(self.files):
            lost, more = set(self.files) - set(found), set(found) - set(self.files)
            raise Failed(f"{side.name} does not see {sorted(lost)[:3]}, sees {sorted(more)[:3]}")
        for name, (text, attributes) in found.items():
            if text != self.files[name]:
                raise Failed(f"{side.name} reads other bytes of {name}")
            for key, value in self.attributes.get(name, {}).items():
                if attributes.get(key) != value:
                    raise Failed(
                        f"{side.name}: {name} has {key} {attributes.get(key)}, not {value}"
                    )

    def refused(self, side):
        """Hold that each command is refused in one line and changes no byte; return the line."""
        before, reason = fingerprint(self.folder), ""
        for command in self.commands():
            done = side.command(*command, stdin=b"x")
            text = (done.stderr or done.stdout).decode().strip()  # verify prints its report
            reason = reason or text
            if command[0] == "mount" and done.returncode == 0:
                side.do("umount", command[-1])
            if (
                done.returncode != 1
                or not text
                or ("\n" in text and command[0] not in self.reports)
            ):
                raise Failed(f"{side.name} does not refuse {command[0]} in one line with status 1: "
                             f"status {done.returncode}, {text!r}")  # fmt: skip
            if fingerprint(self.folder) != before:
                raise Failed(f"{side.name} refuses {command[0]}, but changes the files")
        return reason

    def commands(self):
        """Return the commands that a version refuses for what it cannot read."""
        name = next(iter(self.files))
        commands = [["ls"], ["cat", name], ["stat", name], ["put", "new"], ["append", name],
                    ["rm", name], ["mv", name, "moved"], ["reindex"], ["verify"],
                    ["unpack", self.folder.parent / "unpacked"]]  # fmt: skip
        if MOUNTS:
            (self.folder / "mnt").mkdir(exist_ok=True)
            commands.append(["mount", self.folder / "mnt"])
        return [[command, self.base, *rest] for command, *rest in commands]

    def unread(self, side):
        """Return what a version that does not read the files does to them all the same."""
        return ""


class Dataset(Container):
    """A data set. A version that cannot read its shards may commit further ones."""

    steps = ("change", "change", "mount", "rebuild", "commits", "compact", "change")
    reports = ("verify", "unpack")

    def change(self, side):
        """Put, replace, rename and delete files, in two commits."""
        self.turn += 1
        own = f"{side.name}{self.turn}"
        others = sorted(name for name in self.files if not name.startswith(own))
        side.python(
            self.base,
            *(self.put(f"{own}/{n}", f"{own} {n}\n{TEXT[: 50 * n]}") for n in range(8)),
            self.put_many({f"{own}/many/{n}": TEXT[:n] for n in range(50)}),
            ["sync", [], {}],
            self.put(f"{own}/1", TEXT),
            self.put(others[0], own),
            self.rename(f"{own}/2", f"{own}/two"),
            self.rename(others[len(others) // 2], f"{own}/moved"),
            self.delete(f"{own}/3"),
            self.delete(others[-1]),
        )

    def commits(self, side):
        """Commit as often as it takes to write a checkpoint of all records."""
        self.turn += 1
        # Behind all names of other shards: these are not looked into.
        names = [f"~{side.name}{self.turn}.{n}" for n in range(COMMITS)]
        side.python(self.base, *(call for name in names
                                 for call in (self.put(name, name), ["sync", [], {}])))  # fmt: skip

    def compact(self, side):
        side.do("dataset", "compact", self.base)
        side.do("dataset", "vacuum", "--older-than", "0", self.base)

    def check(self, side):
        super().check(side)
        known = side.name != "new" or b'"compression"' in side.do("info", "--json", self.base)
        if self.feature.compressed and not known:
            raise Failed("the data set has forgotten its compression")

    def commands(self):
        unpack = ["unpack", self.base, self.folder.parent / "unpacked"]
        return [["ls", self.base], ["verify", self.base], unpack]

    def unread(self, side):
        return self.mounted_part(side) + self.committed(side)

    def mounted_part(self, side):
        """Hold that a mount is refused, or names on stderr what it does not show."""
        if not MOUNTS:
            return ""
        mount = self.folder / "mnt"
        mount.mkdir(exist_ok=True)
        done = side.command("mount", self.base, mount)
        if done.returncode == 1:
            return ""
        side.do("umount", mount)
        if b"files are not shown" not in done.stderr:
            raise Failed(f"{side.name} mounts what it cannot read: {done.stderr.decode()!r}")
        return ", mounts a part"

    def committed(self, side):
        """Commit without reading what is there."""
        files = dict(self.files)
        try:
            self.commits(side)
        except Refused:
            self.files = files
            return ""
        side.do("dataset", "vacuum", "--older-than", "0", self.base)
        return ", commits"


class Records(Container):
    """A store of records, a queue or a ring buffer; the model has their contents, in order."""

    steps = ("change", "change", "mount", "compact", "change")

    def change(self, side):
        self.turn += 1
        group, add, remove = self.feature.verbs
        for n in range(5):
            content = f"{side.name}{self.turn} {n} {TEXT[: n * 100]}"
            made = side.do(group, add, self.base, stdin=content.encode()).decode().strip()
            self.files[made] = content
        first = next(iter(self.files))
        text = side.do(group, remove, self.base, *([first] if group == "store" else []))
        if group != "store" and text.decode() != self.files[first]:
            raise Failed(f"{side.name} pops {text[:20]!r} before {self.files[first][:20]!r}")
        del self.files[first]

    def compact(self, side):
        group = self.feature.verbs[0]
        if group != "ring":
            side.do(group, "compact", self.base)

    def check(self, side):
        found = side.python(self.base, read=True)
        if sorted(text for text, _ in found.values()) != sorted(self.files.values()):
            raise Failed(f"{side.name} reads other records than the model has")

    def mount(self, side):
        if not MOUNTS:
            return
        with side.mounted(self.base, "--ro") as mount:
            found = [path.read_text() for path in mount.rglob("*") if path.is_file()]
        if sorted(found) != sorted(self.files.values()):
            raise Failed(f"the mount of {side.name} shows other records than the model has")


class Feature:
    """A kind of file: its title, since when it is there, how it is made.

    later  steps by which the newer version brings it to a store of the older one without it
    """

    def __init__(self, title, since, make, kind=Container, *, later=(), **words):
        self.title, self.since, self.make, self.kind, self.later = title, since, make, kind, later
        self.verbs = words.get("verbs", ())  # of Records: the group of commands, to add, to remove
        self.ordered, self.classic = "ordered" in words, "classic" in words
        self.compressed = "compressed" in words


# --- what makes them ---------------------------------------------------------------------------


def container(*more, **options):
    """Return what makes a container with these options, some files, and what `more` adds."""

    def make(trial, side):
        calls = [trial.put(f"{name}/{n}", TEXT[: n * 100]) for name in "de" for n in range(20)]
        side.python(trial.base, *calls, create=options)
        for step in more:
            step(trial, side)

    return make


def overwritten(trial, side):
    """Overwrite a file in several hundred pieces, in many syncs."""
    calls = [trial.put("large", "x" * 400_000), ["sync", [], {}]]
    for n in range(400):
        calls.append(trial.write("large", (n * 7919) % 399_000, f"piece {n}"))
        if n % 50 == 49:
            calls.append(["sync", [], {}])
    side.python(trial.base, *calls)


def declared(trial, side):
    side.do("columns", trial.base, "add", "lang=string", "score=int64")


def typed(trial, side):
    calls = [trial.put(f"typed{n}", "x" * n, columns={"lang": "de", "score": n}) for n in range(9)]
    side.python(trial.base, *calls)
    for n in range(9):
        trial.attributes[f"typed{n}"] = {"user.lang": "de", "user.score": str(n)}


def newer(trial, side):
    columns = {"lang": "de", "price": 5, "vector": [0.5, None]}
    side.python(trial.base, *(trial.put(f"newer{n}", "x" * n, columns=columns) for n in range(9)))
    texts = {"user.lang": "de", "user.price": "5.00", "user.vector": "[0.5,null]"}
    trial.attributes |= {f"newer{n}": texts for n in range(9)}


def described(trial, side):
    side.python(
        trial.base,
        trial.put("described", "x"),
        ["chmod", ["described", 0o4751], {}],
        ["chown", ["described", 1000, 1000], {}],
        trial.put("holes", "begin"),
        trial.write("holes", 300_000, "end"),
        trial.put("http://a.org/x/", "a name with an empty part"),
    )


def compacted(trial, side):
    if not side.do_if_known("compact", trial.base):
        raise Refused("no such command")


def squeezed(trial, side):
    side.do("compact", "--compress", "zstd", trial.base)


def rolled_back(trial, side):
    trial.kill(side)
    if not side.do_if_known("rollback", trial.base):
        raise Refused("no such command")


def repaired(trial, side):
    """Damage the content of a file, which `repair` removes."""
    side.python(trial.base, trial.put("victim", "unmistakable" * 50))
    data = trial.base.with_suffix(".data")
    data.write_bytes(data.read_bytes().replace(b"unmistakable", b"unmistekable", 1))
    if side.command("repair", "--apply", trial.base).returncode == 2:
        raise Refused("no such command")
    if side.name == "old":
        side.do("reindex", trial.base)  # some left an index that still has the damage
    trial.delete("victim")
    for removed in trial.folder.glob("store.removed*"):
        removed.unlink()


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
        base, trial.base = trial.base, trial.folder / "added"
        make(trial, side)
        side.do("dataset", "add", base, trial.base)
        for path in trial.folder.glob("added.*"):
            path.unlink()
        trial.base = base

    return step


def records(*arguments):
    """Return what makes a store, a queue or a ring buffer by a command, and fills it."""

    def make(trial, side):
        group, create, *options = arguments
        if not side.do_if_known(group, create, trial.base, *options):
            raise Refused("no such command")
        trial.change(side)

    return make


QUEUE = {"kind": Records, "verbs": ("queue", "push", "pop")}
RING = {"kind": Records, "verbs": ("ring", "push", "pop")}
STORE = {"kind": Records, "verbs": ("store", "put", "rm")}
TYPED = added(container(typed, **COLUMNS))
NEWER_TYPES = added(container(newer, **NEWER))
COMPRESSED = added(container(compress="zstd"))
FEATURES = [
    Feature("container, plain", "0.1", container()),
    Feature("container, append-only", "0.1", container(ao=True), ordered=True),
    Feature("container, classic", "0.1", container(classic=True), classic=True),
    Feature("container, classic and append-only", "0.1", container(classic=True, ao=True),
            ordered=True, classic=True),
    Feature("index with MurmurHash3", "0.1", container(htalgo=3)),
    Feature("modes, owners, holes, odd names", "0.1", container(described)),
    Feature("files of many pieces (INCHAIN)", "0.2", container(overwritten)),
    Feature("columns", "0.2", container(typed, **COLUMNS), later=(declared, typed)),
    Feature("compressed contents", "0.2", container(compress="zstd"), later=(squeezed,)),
    Feature("after `compact`", "0.2", container(compacted), later=(compacted,)),
    Feature("after `rollback` (CUTID)", "0.2", container(rolled_back), later=(rolled_back,)),
    Feature("after `repair` (CUTID)", "0.2", container(repaired), later=(repaired,)),
    Feature("`create --isz --havedups`", "0.2", container(isz=256, havedups=True)),
    Feature("data set", "0.1", dataset(), Dataset),
    Feature("data set, compacted", "0.1", dataset(Dataset.change, Dataset.compact), Dataset),
    Feature("data set with columns", "0.2", dataset(TYPED), Dataset, later=(TYPED,)),
    Feature("data set with columns of newer types", "0.3", dataset(NEWER_TYPES), Dataset,
            later=(NEWER_TYPES,)),
    Feature("data set, compressed", "0.2", dataset(COMPRESSED), Dataset, later=(COMPRESSED,),
            compressed=True),
    Feature("message store", "0.2", records("store", "create", "--kind=message"), **STORE),
    Feature("LogStore", "0.2", records("store", "create", "--kind=log"), **STORE),
    Feature("LedgerQ queue", "0.2", records("queue", "create"), **QUEUE),
    Feature("Ring Page buffer", "0.2", records("ring", "create"), **RING),
]  # fmt: skip
