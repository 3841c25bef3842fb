"""The command line: `winkfs COMMAND ...`. The module of a command is imported when it runs."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from winkfs.cli._common import VERSION, Group, explain, path_of, printable, warn
from winkfs.errors import DamageWarning, Stopped, signal_of, stop
from winkfs.units import parse_size

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GROUPS: Final = {  # of `winkfs --help`: name -> (module in this package, "": this one; one line)
    "Containers": {
        "create": ("change", "Make an empty container."),
        "pack": ("pack", "Pack a directory or an archive into a container."),
        "unpack": ("unpack", "Unpack a container into a directory, a tar or a zip file."),
        "cp": ("copy", "Copy files of containers into another container."),
        "split": ("copy", "Split a container into several."),
        "sync": ("sync", "Make a container, a data set or a directory equal to another."),
        "diff": ("diff", "List what differs between stores, directories, tar files."),
        "export": ("export", "Write the files as WebDataset, MDS or Parquet."),
        "columns": ("change", "List, add or drop the columns of a container."),
    },
    "Files in a container": {
        "ls": ("ls", "List the files of a container."),
        "find": ("find", "Find files by name, size, time, type or condition."),
        "du": ("du", "Show the bytes below each directory."),
        "tree": ("tree", "Show the files as a tree."),
        "cat": ("read", "Write the content of files to standard output."),
        "get": ("unpack", "Copy files and directories out of a container."),
        "put": ("change", "Create or replace a file."),
        "append": ("change", "Append to a file, or create it."),
        "rm": ("change", "Remove files."),
        "mv": ("change", "Rename a file or a directory."),
        "stat": ("read", "Show the metadata of a file."),
        "grep": ("grep", "Search contents for lines that match a pattern."),
        "query": ("query", "Run a query of SQL over the files."),
    },
    "State and space": {
        "info": ("info", "Show the state of a container, a mount or a single file."),
        "report": ("report", "Describe a container or another store on a page of HTML."),
        "metrics": ("report", "Print figures of mounts and stores for Prometheus."),
        "compact": ("maintain", "Reclaim the space of deleted and replaced files."),
    },
    "Damage and backup": {
        "verify": ("maintain", "Check every entry, inode and checksum."),
        "reindex": ("maintain", "Rebuild the index from the data file."),
        "backup": ("maintain", "Copy a container or a data set that is in use."),
        "repair": ("maintain", "Repair a damaged container."),
        "rollback": ("maintain", "Return to the state of the last sync."),
        "salvage": ("maintain", "Copy the intact files of a damaged data file."),
        "fct": ("fct", "Inspect or change a single file: kvseq, hindex, perm, segment."),
    },
    "Other stores": {
        "dataset": ("dataset", "Create and maintain data sets: folders of containers."),
        "store": ("store", "Create and use stores of records: message stores, LogStores."),
        "queue": ("queue", "Create and use queues of messages, by arrival or priority."),
        "ring": ("ring", "Create and use queues of fixed size in a file or on a device."),
    },
    "Mount": {
        "mount": ("mount", "Mount a container as a directory."),
        "umount": ("mount", "Unmount a directory."),
        "mounts": ("mount", "List all mounts."),
    },
    "Spark": {
        "pipeline": ("pipeline", "Run Spark jobs: ingest, digest, sort, group, dedup, stats."),
    },
    "Object storage": {
        "push": ("remote", "Copy a container to object storage."),
        "pull": ("remote", "Copy a container from object storage."),
        "sign": ("remote", "Print a link to a file of a container on object storage."),
        "cache": ("remote", "Show, empty or fill the cache of remote containers."),
        "remote": ("remote", "Check whether a store can have data sets that are written."),
    },
    "Shell": {
        "completion": ("", "Print a shell completion script."),
    },
}
COMMANDS: Final = {name: command for group in GROUPS.values() for name, command in group.items()}
OWN_H: Final = ("ls", "du", "tree", "grep")  # have an option -h
NO_ARGS: Final = getattr(click.exceptions, "NoArgsIsHelpError", ())  # of click 8.2 or later
COMPLETE: Final = "_WINKFS_COMPLETE"  # set by the shell's script where it wants completions
MANUAL: Final = ["help", "--man"]
SHELLS: Final = ("bash", "zsh", "fish")
INTERRUPTED: Final = 128 + signal.SIGINT
PIPE_CLOSED: Final = 128 + signal.SIGPIPE


class LazyGroup(Group):
    """Group that imports the module of a command when it runs; `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[name][0]}", __name__)
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                width = max(map(len, COMMANDS))
                formatter.write_dl([(f"{name:{width}}", what) for name, (_, what) in group.items()])


def _endpoint(_: click.Context, __: click.Parameter, url: str | None) -> None:
    """Have the libraries find the store, also in other processes."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter("it begins with http:// or https://")
        os.environ["AWS_ENDPOINT_URL"] = url


def _cache_size(_: click.Context, param: click.Parameter, size: Any) -> None:
    """Have this process, and those that it starts, use so much of a cache, or none."""
    if param.name == "no_cache":
        if size:
            os.environ["WINKFS_CACHE_SIZE"] = "0"
    elif size is not None:
        if parse_size(size) is None:
            raise click.BadParameter("bytes, or 500M, 2G; 0: no cache")
        os.environ["WINKFS_CACHE_SIZE"] = size


def _single_writer(_: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        os.environ["WINKFS_SINGLE_WRITER"] = "1"


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["--help"]})
@click.option(
    "--endpoint-url", metavar="URL", expose_value=False, callback=_endpoint,
    help="Ask this store for s3://, instead of Amazon's ($AWS_ENDPOINT_URL).",
)  # fmt: skip
@click.option(
    "--cache-size", metavar="SIZE", expose_value=False, callback=_cache_size,
    help="Keep at most so much of what is read over a network ($WINKFS_CACHE_SIZE; 1G).",
)  # fmt: skip
@click.option(
    "--no-cache", is_flag=True, expose_value=False, callback=_cache_size,
    help="Keep none of it, and use none of it.",
)  # fmt: skip
@click.option(
    "--single-writer", is_flag=True, expose_value=False, callback=_single_writer,
    help="Write a data set to a store that has not passed `winkfs remote check`; no other "
         "process may ($WINKFS_SINGLE_WRITER).",
)  # fmt: skip
@VERSION
def cli() -> None:
    """Store millions of small files in a few large append-only files.

    BASE is the path of a container without suffix: its files are BASE.data, BASE.idx and, if it is
    append-only, BASE.time. `winkfs help COMMAND` describes a command, `winkfs help --man COMMAND`
    as a man page.

    Exit status: 0 success, 1 something failed or is damaged, 2 wrong usage, 128 + signal: stopped
    by a signal. NO_COLOR and TERM=dumb are honoured.
    """


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print a completion script for SHELL (default: $SHELL): commands, options and names.

    \b
      eval "$(winkfs completion bash)"    # in ~/.bashrc
      eval "$(winkfs completion zsh)"     # in ~/.zshrc
      winkfs completion fish > ~/.config/fish/completions/winkfs.fish
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in SHELLS:
        raise click.UsageError(f"name the shell: one of {', '.join(SHELLS)}")
    click.echo(_script(chosen), nl=False)


def _script(shell: str) -> str:
    from winkfs.cli.complete import SCRIPTS

    return SCRIPTS[shell]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command -> exit status. Any error becomes one line on standard error."""
    _prepare_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, stop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)  # the commands report damage
            status = _run(arguments(list(sys.argv[1:] if args is None else args)))
        sys.stdout.flush()
    except BrokenPipeError:
        status = PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        warn("interrupted")
        status = INTERRUPTED
    except Stopped as stopped:
        warn(f"stopped by {signal.Signals(stopped.number).name}")
        status = 128 + stopped.number
    except click.ClickException as error:
        warn(_usage(error))
        status = error.exit_code
    except Exception as error:
        if os.environ.get("WINKFS_TRACEBACK"):
            raise
        sent = _signal_behind(error)
        warn(f"{signal.Signals(sent).name}: {explain(error)}" if sent else explain(error))
        status = 128 + sent if sent else 1
    _hush(status)
    return status


def _signal_behind(error: BaseException | None) -> int:
    """Return the signal during whose handling an error occurred, as in a clean-up; 0: none."""
    while error is not None and not signal_of(error):
        error = error.__context__
    return signal_of(error)


def arguments(args: list[str]) -> list[str]:
    """Translate the arguments: `help COMMAND` and `COMMAND -h` become `COMMAND --help`, but not
    where -h is its own; `BASE DIR -o OPTIONS`, which mount.fuse passes for
    `mount -t fuse.winkfs`, becomes a mount."""
    if args[:2] == MANUAL:
        return args
    end = args.index("--") if "--" in args else len(args)
    command = next((arg for arg in args if arg in COMMANDS), "")
    if command not in OWN_H or args[-2:] == [command, "-h"]:
        args = ["--help" if arg == "-h" else arg for arg in args[:end]] + args[end:]
    if args[:1] == ["help"]:
        return [*args[1:], "--help"]
    if len(args) == 4 and args[2] == "-o" and args[0] not in COMMANDS:
        return ["mount", "-o", args[3], "--", *args[:2]]
    return args


def _prepare_streams() -> None:
    """Replace standard streams that are closed (`>&-`) by /dev/null: otherwise a file of a
    container would get their number. Replace an unbuffered output by one that writes all bytes."""
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open()
    sys.stdout = sys.stdout or nothing.open("w")
    sys.stderr = sys.stderr or nothing.open("w")
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.FileIO):  # PYTHONUNBUFFERED, python -u
        sys.stdout = io.TextIOWrapper(
            WholeWriter(io.FileIO(raw.fileno(), "w", closefd=False)), sys.stdout.encoding,
            sys.stdout.errors, newline="\n", write_through=True,
        )  # fmt: skip


class WholeWriter(io.BufferedWriter):
    """File of which each `write` returns when all bytes are written.

    Python's own unbuffered output writes once: a disk that is nearly full, a limit or a signal
    would cut what is longer, without an error.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes -> how many. Raises OSError."""
        count = super().write(data)
        self.flush()
        return count


def _run(args: list[str]) -> int:
    if wanted := os.environ.get(COMPLETE):
        return _complete(wanted)
    if args[:2] == MANUAL:
        from winkfs.cli.manual import page

        listed = [(name, what) for name, (_, what) in COMMANDS.items()]
        click.echo(page(cli, args[2:], () if args[2:] else listed), nl=False)
        return 0
    try:
        with cli.make_context("winkfs", args) as ctx:
            return cli.invoke(ctx) or 0
    except NO_ARGS as error:
        error.show()
        return int(error.exit_code)
    except click.exceptions.Exit as end:
        return end.exit_code


def _complete(wanted: str) -> int:
    """Print what completes a word for the script of a shell, or the script."""
    shell, _, source = wanted.partition("_")
    if shell in SHELLS and not source:
        from winkfs.cli.complete import answer

        click.echo(answer(cli, shell))
    elif shell in SHELLS and source == "source":
        click.echo(_script(shell), nl=False)
    else:  # a script that an older version printed
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "winkfs", COMPLETE, wanted)
    return 0


def _usage(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        command = error.ctx.command_path
        if isinstance(error, click.NoSuchOption):
            from winkfs.cli.words import use_of

            if use := use_of(path_of(error.ctx), error.option_name):
                text = f"no such option {error.option_name}: use winkfs {use}"
        text = f"{path_of(error.ctx)}: {text}".removeprefix(": ")
        return f"{text.rstrip('.')}: see {command} --help"
    return printable(text)


def _hush(status: int) -> None:
    """Keep Python from reporting at exit once more that standard output cannot be written."""
    if status:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
