"""Completion for shells: a script for each, and what completes a word of a command line.

The script passes the line up to the cursor, and gets lines of three fields separated by tabs: the
type (plain; dir, file: the shell completes a path), the value, and a description or nothing.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from winkformats.disk.schemes import is_far
from winkfs.names import to_bytes, to_str

if TYPE_CHECKING:
    from winkfs.reader import Reader

LINE: Final = "_WINKFS_LINE"  # the command line up to the cursor
CUT: Final = "_WINKFS_CUT"  # characters at its end that bash replaces
MOST: Final = 1000  # names that are offered
SCRIPTS: Final = {
    "bash": r"""_winkfs_completion() {
    local type value text
    COMPREPLY=()
    while IFS=$'\t' read -r type value text; do
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain) COMPREPLY+=("$value") ;;
        esac
    done < <(_WINKFS_LINE="${COMP_LINE:0:COMP_POINT}" _WINKFS_CUT=${#2} _WINKFS_COMPLETE=bash "$1")
    if [[ ${#COMPREPLY[@]} = 1 && ${COMPREPLY[0]} = */ ]]; then compopt -o nospace; fi
}
complete -o nosort -F _winkfs_completion winkfs
""",
    "zsh": r"""#compdef winkfs
_winkfs_completion() {
    local type value text
    local -a names folders described
    while IFS=$'\t' read -r type value text; do
        case $type in
        dir) _path_files -/ ;;
        file) _path_files ;;
        plain)
            if [[ -n $text ]]; then described+=("${value//:/\\:}:$text")
            elif [[ $value == */ ]]; then folders+=("$value")
            else names+=("$value")
            fi ;;
        esac
    done < <(_WINKFS_LINE="${(j: :)words[1,CURRENT]}" _WINKFS_COMPLETE=zsh winkfs)
    if (( $#described )); then _describe -V winkfs described; fi
    if (( $#folders )); then compadd -V folders -S '' -a folders; fi
    if (( $#names )); then compadd -V names -a names; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _winkfs_completion "$@"
else
    compdef _winkfs_completion winkfs
fi
""",
    "fish": r"""function _winkfs_completion
    set -l line (commandline -cp | string collect)
    for answer in (env _WINKFS_LINE="$line" _WINKFS_COMPLETE=fish winkfs)
        set -l parts (string split -m 2 \t -- $answer)
        switch $parts[1]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
            case plain
                printf '%s\t%s\n' $parts[2] $parts[3]
        end
    end
end
complete --command winkfs --no-files --keep-order --arguments '(_winkfs_completion)'
""",
}


def answer(cli: click.Command, shell: str) -> str:
    """Return what completes the last word of the line in the environment, for the script of a
    shell."""
    line = os.environ.get(LINE, "")
    start, quote = _last_word(line)
    word = (split_arg_string(line[start:]) or [""])[0]
    args = split_arg_string(line[:start])[1:]
    found = ShellComplete(cli, {"obj": args}, "winkfs", "").get_completions(args, word)
    option = word[: word.index("=") + 1] if word.startswith("--") and "=" in word else ""
    lines = []
    for item in found:
        value = option + str(item.value)
        if item.type == "plain" and shell == "bash":
            cut = len(line) - int(os.environ.get(CUT, "0"))
            value = _for_bash(value, quote, line[start : max(cut, start)])
        text = " ".join((item.help or "").split())
        lines.append("\t".join((item.type, value, text)))
    return "\n".join(lines)


def _last_word(line: str) -> tuple[int, str]:
    """Return where the last word of a command line begins, and the quotation mark that is open at
    its end, or nothing."""
    start, quote, escaped = 0, "", False
    for i, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            start = i + 1
    return start, quote


def _for_bash(value: str, quote: str, kept: str) -> str:
    """Return a word as bash puts it into the line.

    quote  the quotation mark that is open, or nothing
    kept   the part of the word that bash leaves in the line
    """
    if quote == "'":
        return value.replace("'", "'\\''")
    if quote:
        return re.sub(r'([\\$`"])', r"\\\1", value)
    return re.sub(r"([^\w%+,./:=@^-])", r"\\\1", value).removeprefix(kept)


# --- what there is ---


def names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the names in the store of a command that begin so, up to the next slash.

    Names that a terminal cannot show are left out, and so is a store on object storage.
    cost  a look-up in the catalog for each directory, MOST at most
    """
    with _opened(ctx) as reader:
        return [CompletionItem(name) for name in _level(reader, to_bytes(incomplete))]


def columns(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the columns of the store for a list as a,b."""
    before, comma, start = incomplete.rpartition(",")
    given = before.split(",")
    with _opened(ctx) as reader:
        found = [name for name in reader.columns if name.startswith(start) and name not in given]
    return [CompletionItem(before + comma + name) for name in found]


def condition(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the columns that the last word of a condition may mean."""
    from winkfs.container.where import BUILTIN

    start = re.split(r"\W", incomplete)[-1]
    before = incomplete.removesuffix(start)
    with _opened(ctx) as reader:
        found = [name for name in (*reader.columns, *BUILTIN) if name.startswith(start)]
    return [CompletionItem(before + name) for name in found]


def _opened(ctx: click.Context) -> Reader:
    from winkfs.registry import open_silently

    if not ctx.params.get("base"):  # click parses nothing behind an option without its value
        args = ctx.obj[ctx.obj.index(ctx.info_name) + 1 : -1]
        ctx = ctx.command.make_context(ctx.info_name, args, resilient_parsing=True)
    base = ctx.params.get("base")
    if not base or is_far(base):
        raise FileNotFoundError(base)
    return open_silently(base, as_of=ctx.params.get("as_of"))


def _level(reader: Reader, prefix: bytes) -> list[str]:
    """Return the names with a prefix, and in place of those that have a slash behind it the
    directory with a slash.

    cost  that of `tables.shallow`
    """
    from winkfs.container.container import Container
    from winkfs.dataset.reading import DatasetReading
    from winkfs.tables import shallow

    if not isinstance(reader, Container | DatasetReading):
        return []
    found = set[bytes]()
    for rows, begun in shallow(reader, prefix, lambda error: None, at_once=1):
        pairs = zip(rows.names, rows.directories.tolist(), strict=True)
        found.update(name + b"/" * directory for name, directory in pairs)
        found.update(b"/" if name == b"/" else name + b"/" for name in begun.names)
        if len(found) >= MOST:
            break
    texts = map(to_str, sorted(found))
    return [text for text in texts if text.isprintable()][:MOST]
