"""Man pages, made from the commands: `winkfs help --man COMMAND`, and docs/man."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence

import click

STATUS = """\
0: success. 1: a file is missing or damaged, the system refused something, or two sides that were \
compared differ; all that is intact was processed. 2: wrong usage. 128 and the number of a signal: \
stopped by it, 141 because the reader of the output has ended."""
WIDTH = 72  # characters of a line of input, before they are escaped
ESCAPES = (
    ("\\", r"\e"), ("-", r"\-"), ("`", r"\(ga"), ("^", r"\(ha"), ("~", r"\(ti"), ("'", r"\(aq"),
)  # fmt: skip
VARIABLES = (
    ("WINKFS_CACHE_SIZE", "Bytes kept of what is read over a network, as 500M; 0: none."),
    ("WINKFS_TRACEBACK", "Set: an unexpected error shows where it comes from."),
    ("AWS_ENDPOINT_URL", "The store to ask for s3://."),
    ("NO_COLOR", "Set: no colours. TERM=dumb: no progress line either."),
)


def page(root: click.Group, words: Sequence[str], listed: Sequence[tuple[str, str]] = ()) -> str:
    """Return the man page of a command, in roff.

    words   the command and its subcommand, none: `winkfs` itself
    listed  of `winkfs`: the commands, and a line on each
    raises  UsageError for a word that is no command
    """
    command, context = _found(root, words)
    name = "-".join(["winkfs", *words])
    lines = [f'.TH {name.upper()} 1 "" winkfs "winkfs manual"', ".SH NAME",
             rf"{_escaped(name)} \- {_escaped(_brief(command))}", ".SH SYNOPSIS"]  # fmt: skip
    lines += [*_usage(command, context), ".SH DESCRIPTION", *_paragraphs(command.help or "")]
    options = list(_options(command))
    lines += [".SH OPTIONS", *options] if options else []
    if isinstance(command, click.Group) and not listed:
        lines.append(".SH COMMANDS")
        for each in command.list_commands(context):
            sub = command.get_command(context, each)
            assert sub is not None
            below = click.Context(sub, info_name=each, parent=context)
            lines += [f".SS {_escaped(each)}", *_usage(sub, below), ".PP"]
            lines += [*_paragraphs(sub.help or ""), *_options(sub)]
    if listed:
        lines.append(".SH COMMANDS")
        for each, what in listed:
            lines += [".TP", rf"\fBwinkfs\-{_escaped(each)}\fR(1)", *_text(what)]
        lines.append(".SH ENVIRONMENT")
        for each, what in VARIABLES:
            lines += [".TP", rf"\fB{_escaped(each)}\fR", *_text(what)]
    lines += [".SH EXIT STATUS", *_text(STATUS)]
    if words:
        lines += [".SH SEE ALSO", r"\fBwinkfs\fR(1)"]
    return "\n".join(lines) + "\n"


def _found(root: click.Group, words: Sequence[str]) -> tuple[click.Command, click.Context]:
    command: click.Command = root
    context = click.Context(root, info_name="winkfs")
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands: {word}", context)
        _, found, _ = command.resolve_command(context, [word])
        assert found is not None
        command, context = found, click.Context(found, info_name=word, parent=context)
    return command, context


def _brief(command: click.Command) -> str:
    """Return the first sentence of the help, for the head of a page."""
    text = " ".join((command.help or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _usage(command: click.Command, context: click.Context) -> Iterator[str]:
    pieces = [r"[\fIOPTION\fR]..."]
    for param in command.params:
        if isinstance(param, click.Argument):
            name = param.metavar or f"{str(param.name).upper()}{'...' if param.nargs < 0 else ''}"
            name = _escaped(name)
            pieces.append(name if param.required or name.startswith("[") else f"[{name}]")
    if isinstance(command, click.Group):
        pieces.append("COMMAND [ARGUMENT]...")
    yield rf"\fB{_escaped(context.command_path)}\fR"
    yield " ".join(pieces)


def _options(command: click.Command) -> Iterator[str]:
    """Yield a paragraph for each option, made of what no version of click writes otherwise."""
    for param in command.params:
        if not isinstance(param, click.Option) or param.hidden:
            continue
        names = [rf"\fB{_escaped(name)}\fR" for name in (*param.opts, *param.secondary_opts)]
        value = ""
        if not (param.is_flag or param.count):
            kind = param.type
            value = param.metavar or kind.name.upper()
            if isinstance(kind, click.Choice) and not param.metavar:
                value = "|".join(map(str, kind.choices))
            value = rf" \fI{_escaped(value)}\fR"
        default = f" [default: {param.default}]" if param.show_default else ""
        yield ".TP"
        yield ", ".join(names) + value
        yield from _text(f"{param.help or ''}{default}")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those after a \\b keep their lines."""
    first = True
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text).strip()):
        if not first:
            yield ".PP"
        first = False
        if part.lstrip().startswith("\b"):
            yield ".nf"
            yield from map(_escaped, part.partition("\b")[2].strip("\n").split("\n"))
            yield ".fi"
        else:
            yield from _text(part)


def _text(text: str) -> list[str]:
    """Return a paragraph in lines as roff takes them."""
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return list(map(_escaped, lines))


def _escaped(line: str) -> str:
    for char, name in ESCAPES:
        line = line.replace(char, name)
    return rf"\&{line}" if line.startswith(".") else line
