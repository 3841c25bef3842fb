"""Options, names, times, messages, JSON and the progress bar, which the commands share.

Imports nothing that takes time: `--help` has to be quick.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import click

import winkfs
from winkfs import units
from winkfs.errors import Refusal, WinkError, advice
from winkfs.names import clean, is_glob, matcher, part_fault, to_bytes, to_str
from winkfs.names import printable as printable
from winkfs.names import shown as path_of_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from click.shell_completion import CompletionItem
    from rich.progress import Progress as RichProgress

    from winkfs.archive.items import Note

    Files = winkfs.Container | winkfs.Dataset


class Quantity(click.ParamType):  # type: ignore[type-arg]  # takes none before click 8.4
    """Number with a unit, or a time: see `winkfs.units`."""

    def __init__(self, name: str, parse: Callable[[str], object], example: str) -> None:
        self.name, self._parse, self._example = name, parse, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = self._parse(value) if isinstance(value, str) else value
        if found is None:
            self.fail(f"{value!r} is no {self.name}: {self._example}", param, ctx)
        return found


SIZE: Final = Quantity("size", units.parse_size, "bytes, or 500M, 2G (powers of 1024)")
DURATION: Final = Quantity("duration", units.parse_duration, "seconds, or 90m, 36h, 7d, 2w")
complete_file: Final = click.Path().shell_complete
complete_folder: Final = click.Path(file_okay=False).shell_complete
STDIN: Final = "-"
PIECE: Final = 1 << 20  # bytes read or written at a time
ROWS: Final = 1 << 16  # lines of a listing that are printed together
SHOWN: Final = 200  # bytes of a name in a message
PATIENCE: Final = 0.5  # seconds without a progress bar


def complete_base(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the path of a container for the shell, or of a folder that may contain one."""
    from click.shell_completion import CompletionItem  # late: it defines a class for each shell

    folder, slash, start = incomplete.rpartition("/")
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder + slash or "."), key=lambda entry: entry.name):
            name = entry.name.removesuffix(".data") if entry.is_file() else f"{entry.name}/"
            hidden = name.startswith(".") and not start.startswith(".")
            if name != entry.name and name.startswith(start) and name.isprintable() and not hidden:
                found.append(CompletionItem(folder + slash + name))
    return found if any(not item.value.endswith("/") for item in found) else [
        CompletionItem(incomplete, type="dir")
    ]  # fmt: skip


def completer(what: str) -> Callable[..., list[CompletionItem]]:
    """Return a function that completes a word from the store of the command: see the function
    `what` of `winkfs.cli.complete`. What cannot be read completes nothing."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from winkfs.cli import complete as functions

        with contextlib.suppress(WinkError, OSError, ValueError, ImportError):
            found: list[CompletionItem] = getattr(functions, what)(ctx, incomplete)
            return found
        return []

    return complete


complete_name: Final = completer("names")
complete_columns: Final = completer("columns")
complete_condition: Final = completer("condition")
WHERE: Final = click.option(
    "--where", metavar="COND", shell_complete=complete_condition,
    help="Only files for which COND is true: \"lang = 'de' and score > 0.5\".",
)  # fmt: skip


def _container(ctx: click.Context, param: click.Parameter, base: str) -> str:
    """Refuse a store of another kind, and name the kind, rather than report a missing container."""
    from winkfs.registry import find_kind

    if (found := find_kind(base)) is not None and found[0].name != "container":
        name = found[0].name
        also = ": see winkfs dataset --help" if name == "data set" else ""
        also = ": see winkfs store --help" if found[0].has("create") else also
        raise Refusal(f"{ctx.info_name} is for containers, and this is a {name}{also}", base)
    return base


def _codec(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Refuse a codec that is not known."""
    from winkfs.container.ondisk.compressed import level_of

    if text is not None:
        try:
            level_of(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return text


BASE = click.argument("base", shell_complete=complete_base)
CONTAINER = click.argument("base", shell_complete=complete_base, callback=_container)
AS_OF = click.option(
    "--as-of", metavar="GENERATION|TIME",
    help="For a data set: its files at that generation or time (ISO 8601).",
)  # fmt: skip
COMPRESS = click.option(
    "--compress", metavar="CODEC", callback=_codec,
    help="Store contents compressed if that makes them smaller: zstd or zstd:LEVEL (1 to 22, "
    "default 9), with a dictionary trained on the files if that saves space. none: not compressed.",
)  # fmt: skip
INCLUDE = click.option(
    "--include", multiple=True, metavar="PATTERN",
    help="Only matching names and everything below them, at any depth.",
)  # fmt: skip
EXCLUDE = click.option(
    "--exclude", multiple=True, metavar="PATTERN",
    help="Exclude matching names and everything below them, at any depth, like tar.",
)  # fmt: skip
NO_SUMMARY = click.option(
    "-q", "--quiet", is_flag=True, help="Show no progress and no summary on a terminal."
)
MAX_RATIO = click.option(
    "--max-ratio", type=click.IntRange(0), default=1000, show_default=True, metavar="N",
    help="Leave out what unpacks to more than 1 GiB and to more than N times its compressed size; "
    "0: no limit.",
)  # fmt: skip


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, and whether the compiled path runs: see `winkformats.native`."""
    if wanted and not ctx.resilient_parsing:
        from winkformats import native, version

        click.echo(f"winkfs {version.VERSION} ({native.name()})")
        ctx.exit()


VERSION = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show the version, and whether the compiled path runs, and exit.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
_HINTS: Final = {
    errno.ENOSPC: "free some space and run it again",
    errno.EDQUOT: "free some space and run it again",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.EMFILE: "raise the limit with ulimit -n",
}


# --- commands ---


class Group(click.Group):
    """Group of commands. Of a wrong one the message names what may be meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and name[:1] != "-" and not ctx.resilient_parsing:
            from winkfs.cli.words import meant

            raise click.UsageError(
                f"no such command: {name}{meant(path_of(ctx), name, known)}", ctx
            )
        return super().resolve_command(ctx, args)


def path_of(ctx: click.Context) -> str:
    """Return the words of a command, as "queue ls"; "": `winkfs` itself."""
    return ctx.command_path.removeprefix("winkfs").strip()


# --- messages ---


def warn(line: str) -> None:
    """Print one line on standard error."""
    print(f"winkfs: {printable(line)}", file=sys.stderr)


def warn_once(line: str) -> None:
    """Print one line on standard error, unless the command has printed it: several passes, and the
    store, may report one place."""
    context = click.get_current_context(silent=True)
    printed: set[str] = set() if context is None else context.meta.setdefault(__name__, set())
    if line not in printed:
        printed.add(line)
        warn(line)


def explain(error: Exception) -> str:
    """Return one line on an error: what, where and, if known, what to do."""
    if isinstance(error, WinkError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory: close other programs, or give it more"
    if isinstance(error, OSError) and error.strerror:
        parts = [] if error.filename is None else [os.fsdecode(error.filename)]
        parts.append(error.strerror)
        if hint := _HINTS.get(error.errno or 0):
            parts.append(hint)
        return ": ".join(parts)
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (what := advice(error.name)):
        return f"this {what}"
    kind = type(error).__name__
    return f"a fault in winkfs itself: {kind}: {error}: WINKFS_TRACEBACK=1 shows where"


def short_name(name: bytes) -> str:
    """Return a name for a message, cut if it is longer than SHOWN bytes."""
    return to_str(name) if len(name) <= SHOWN else f"{to_str(name[:SHOWN])}..."


BadList = Callable[[Mapping[str, str]], None]


@contextlib.contextmanager
def bad_records(path: str | None) -> Iterator[BadList]:
    """Return a function that writes a record to a file as a line of JSON; without a path it does
    nothing."""
    if path is None:
        yield lambda record: None
        return
    import json

    with Path(path).open("w") as file:
        yield lambda record: print(json.dumps(record), file=file)


class Failures:
    """Counter of names that failed while the others are processed; each is reported in a line."""

    def __init__(self, base: str) -> None:
        self._base = base
        self.count = 0

    def add(self, name: str, what: str) -> None:
        self.count += 1
        warn(f"{self._base}: {name}: {what}")

    def damage(self, error: winkfs.FormatError) -> None:
        """Report something damaged that was skipped, once; the error contains its place."""
        self.count += 1
        warn_once(str(error))

    @property
    def status(self) -> int:
        return 1 if self.count else 0


# --- containers ---


@overload
def opened(  # type: ignore[overload-overlap]  # of all modes "r" alone only reads
    base: str, mode: Literal["r"] = ..., as_of: str | None = ...
) -> AbstractContextManager[winkfs.Reader]: ...
@overload
def opened(base: str, mode: str) -> AbstractContextManager[Files]: ...
def opened(base: str, mode: str = "r", as_of: str | None = None) -> AbstractContextManager[Any]:
    """Open a container or a data set, or any store for reading. A Refusal contains its path.

    Damage that is known when it is opened is reported at once, damage that was skipped later at
    the end; either ends the command with status 1 after its work.
    """
    if mode == "a":
        from winkfs.registry import kind_of

        kind, path = kind_of(base)
        if kind.editable and not kind.has("shards"):
            raise Refusal(
                f"a {kind.name} has no files that can be changed: see winkfs store --help", path
            )
    return opened_any(base, mode, as_of)


@contextlib.contextmanager
def opened_any(
    base: str, mode: str = "r", as_of: str | None = None, **options: Any
) -> Iterator[Any]:
    """Open a store of any kind, for changes too; see `opened`. options: those of the kind."""
    from winkfs.registry import open_silently

    reported: list[str] = []
    with open_silently(base, mode, as_of=as_of, **options) as container:
        _warn_of_problems(container, reported)
        try:
            yield container
        except Refusal as error:
            if error.filename and not error.filename.startswith(container.base):
                error.filename = f"{container.base}: {error.filename}"
            raise
        finally:
            _warn_of_problems(container, reported)
    if reported:
        raise click.exceptions.Exit(1)


def _warn_of_problems(container: winkfs.Reader, reported: list[str]) -> None:
    for problem in container.problems:
        if problem not in reported:
            reported.append(problem)
            warn_once(problem)


def bytes_to_read(base: str) -> int | None:
    """Return the approximate bytes that a pass over a container or a data set reads; None: not
    known, or no terminal shows it."""
    from winkformats.disk.paths import locate
    from winkfs.registry import kind_of

    if not sys.stderr.isatty():
        return None
    kind, path = kind_of(base)
    if kind.has("shards") and kind.folder:
        with contextlib.suppress(OSError, ValueError, winkfs.FormatError):
            sizes: list[int] = [s.record.size for s in kind.function("shards", path)(path).shards]
            return sum(sizes)
    if kind.folder:
        return None
    directory, name = locate(path)
    info = directory.info(name + ".data", follow=True)
    return None if info is None else info.size


def files_in(base: str) -> int | None:
    """Return the number of files of a store; None: not known, or no terminal shows it."""
    from winkfs.registry import open_silently

    if sys.stderr.isatty():
        with contextlib.suppress(OSError, ValueError), open_silently(base) as reader:
            return len(reader)
    return None


# --- names ---


def name_bytes(argument: str) -> bytes:
    """Return the bytes of a name from the command line, as the container stores them."""
    return os.fsencode(argument)


def expand(container: winkfs.Reader, names: tuple[str, ...], failures: Failures) -> Iterator[bytes]:
    """Yield each name, or for a glob all names that match; what is missing or damaged becomes a
    failure.

    A name that exists is taken literally, even if it contains characters of a glob.
    """
    for argument in names:
        name = name_bytes(argument)
        try:
            if name not in container and not is_glob(argument):
                name = as_path(argument) or name
            exists = name in container
        except winkfs.FormatError as error:
            failures.add(argument, str(error))
            continue
        if exists:
            yield name
        elif is_glob(argument):
            found = False
            for found_name in container.names(glob_text(argument), problem=failures.damage):
                found = True
                yield to_bytes(found_name)
            if not found:
                failures.add(argument, "no name matches")
        else:
            failures.add(argument, missing(container))


def as_path(argument: str) -> bytes:
    """Return the name that an argument like ./docs//a or docs/ means, if none is spelled so."""
    return clean(name_bytes(argument))


def is_directory(container: winkfs.Reader, name: bytes) -> bool:
    """Return whether there is an entry for a directory of this name."""
    return name in container and container.stat(name).ftype == winkfs.FileType.DIR


def place_fault(name: bytes) -> str | None:
    """Return why a mount would not show a file of this name, None if it would."""
    fault = part_fault(path_of_name(name))
    return f"{fault}, which no mount shows: --force accepts it" if fault else None


def missing(container: winkfs.Reader) -> str:
    from winkfs.registry import kind_of

    return f"no such file in the {kind_of(container.base)[0].name}"


def glob_text(argument: str) -> str:
    """Return a glob from the command line as text, to be matched with names of a container."""
    return to_str(name_bytes(argument))


def glob_matcher(argument: str) -> Callable[[str], object]:
    return matcher(glob_text(argument))


def shown(name: str) -> bytes:
    """Return a name for standard output: escaped for a terminal, its own bytes for a program."""
    if sys.stdout.isatty():
        return printable(name).encode("utf-8", "backslashreplace")
    return to_bytes(name)


def names_from(
    path: str | None, stack: contextlib.ExitStack, *, null: bool = False
) -> Iterator[bytes] | None:
    """Return the names in a list of --files-from, - for standard input; None without one."""
    if path is None:
        return None
    from winkfs.archive.tree import listed_names

    return listed_names(stack.enter_context(click.open_file(path, "rb")), null=null)


def store_names(path: str | None, stack: contextlib.ExitStack) -> Iterator[bytes] | None:
    """Return the names in a list as `names_from`, without the ./ before and the / behind them that
    a program like `find` has printed."""
    names = names_from(path, stack)
    if names is None:
        return None
    return (name.removeprefix(b"./").rstrip(b"/") or name for name in names)


# --- facts ---


def counted(number: int, noun: str) -> str:
    """Return "1 entry", "2 entries" and the like."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else plural}"


def summary(kinds: Iterable[tuple[int, str, str]], size: int, seconds: float) -> str:
    """Return a line on what was done, for people.

    kinds  number, its noun, and that of several; those that are 0 are left out, but files
    size   bytes of contents
    """
    parts = [f"{n:,} {one if n == 1 else more}" for n, one, more in kinds if n or one == "file"]
    return f"{', '.join(parts)}: {units.size_text(size)} in {seconds:.1f} s"


def print_report(
    report: winkfs.Report, record: Mapping[str, Any], what: str, as_json: bool, more: int = 0
) -> int:
    """Print what a verify found -> exit status: notes on standard error, problems on standard
    output and a last line for `what`, or one record. more: problems that are not listed."""
    for note in [] if as_json else report.notes:
        warn(note)
    beyond = [f"and {counted(report.more, 'more problem')}"] if report.more else []
    state = counted(len(report.problems) + more, "problem") if report.problems else "sound"
    scope = f": {report.scope}" if report.scope else ""
    answer(record, as_json, *map(printable, report.problems), *beyond, f"{what}: {state}{scope}")
    return 1 if report.problems else 0


def print_facts(facts: Mapping[str, Any], as_json: bool) -> int:
    """Print facts as a record, or one a line with problems on standard error -> exit status."""
    problems = facts.get("problems", ())
    if as_json:
        emit(facts)
    else:
        print_nested({name: value for name, value in facts.items() if name != "problems"})
        for problem in problems:
            warn(problem)
    return 1 if problems else 0


def answer(record: Mapping[str, Any], as_json: bool, *lines: str) -> None:
    """Print a record for programs, or lines for people."""
    if as_json:
        emit(record)
        return
    for line in lines:
        sys.stdout.buffer.write(shown(line) + b"\n")


def print_nested(record: Mapping[str, Any], indent: str = "") -> None:
    """Print facts for people, one a line."""
    width = max((len(key) for key in record), default=0) + 1
    for key, value in record.items():
        label = printable(key)
        if isinstance(value, dict):
            sys.stdout.write(f"{indent}{label}:\n")
            print_nested(value, indent + "  ")
        else:
            sys.stdout.write(f"{indent}{label + ':':{width}} {_value_text(value)}\n")


def _value_text(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


# --- JSON ---


def emit(record: object) -> None:
    """Print a JSON object on one line. Bytes that are not UTF-8 become \\udcXX, so that Python's
    `os.fsencode(json.loads(line)["name"])` returns the name."""
    import json

    sys.stdout.write(json.dumps(record, ensure_ascii=True) + "\n")


# --- columns ---


def pairs(arguments: Iterable[str], of: str) -> dict[str, str]:
    """Parse arguments NAME=WORD -> NAME -> WORD. of: what the message calls the word."""
    found: dict[str, str] = {}
    for argument in arguments:
        name, sign, word = argument.partition("=")
        if not sign:
            raise click.UsageError(f"{argument!r} is no NAME={of}")
        if name in found:
            raise click.UsageError(f"{name} is given twice")
        found[name] = word
    return found


def column_text(value: Any) -> str:
    """Return a value of a column as text for people; null is a dash."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return os.fsdecode(value)
    if isinstance(value, list | bool):
        import json

        return json.dumps(units.column_json(value), ensure_ascii=False)
    return str(units.column_json(value))


# --- times ---


def parse_time(written: str) -> float | None:
    """Return seconds since the epoch, as int if they are whole, or None: see `units.parse_time`."""
    ns = units.parse_time(written)
    if ns is None or ns % units.NANO:
        return None if ns is None else ns / units.NANO
    return ns // units.NANO


TIME: Final = Quantity(
    "time", parse_time, "seconds since the epoch, or ISO 8601 as 2026-11-21T08:30Z"
)


# --- progress ---


class Progress:
    """Progress line on standard error, if that is a terminal and the work takes longer than
    PATIENCE.

    Call it with the number of units done since the last call.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        *,
        quiet: bool = False,
        where: str = "",
    ) -> None:
        """where: the container of the names, if messages are to contain it."""
        self._what, self._unit, self._total = what, unit, total
        self._where = f"{where}: " if where else ""
        self._done = 0
        shown = sys.stderr.isatty() and not quiet
        self._due = time.monotonic() + PATIENCE if shown else float("inf")
        self._bar: RichProgress | None = None
        self._often: dict[str, tuple[list[bytes], int]] = {}  # reason -> the first names, how many

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar:
            self._bar.stop()
            self._bar = None
        for what, (names, count) in self._often.items():
            more = f" and {count - len(names):,} more" if count > len(names) else ""
            self.warn(f"{self._where}{', '.join(map(short_name, names))}{more}: {what}")
        self._often.clear()

    def __call__(self, done: int) -> None:
        self._done += done
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self._done)
        elif time.monotonic() >= self._due:
            self._start()

    def note(self, note: Note) -> None:
        """Print a note on a file above the bar; notes that many files share are printed at the
        end."""
        if note.often:
            first, count = self._often.get(note.what, ([], 0))
            if len(first) < note.often:
                first.append(note.name)
            self._often[note.what] = first, count + 1
        else:
            name = f"{short_name(note.name)}: " if note.name else ""
            self.warn(f"{self._where}{name}{note.what}")

    def warn(self, line: str) -> None:
        if self._bar:
            whole = f"winkfs: {printable(line)}"
            self._bar.console.print(whole, markup=False, highlight=False, soft_wrap=True)
        else:
            warn(line)

    def _start(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.text import Text

        class Rate(progress.ProgressColumn):
            def render(self, task: progress.Task) -> Text:
                return Text(f"{task.speed or 0:,.0f}/s")

        amount: list[progress.ProgressColumn]
        if self._unit == "bytes":
            amount = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            amount = [progress.TextColumn("{task.completed:,.0f} " + self._unit), Rate()]
        left = [progress.TextColumn("left"), progress.TimeRemainingColumn(compact=True)]
        self._bar = progress.Progress(
            progress.SpinnerColumn(), progress.TextColumn("{task.description}"),
            *([progress.BarColumn()] if self._total else []), *amount,
            progress.TimeElapsedColumn(), *(left if self._total else []),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._bar.add_task(self._what, total=self._total, completed=self._done)
        self._bar.start()
