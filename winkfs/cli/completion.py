"""`winkfs completion`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print a completion script for SHELL (default: $SHELL): commands, options and names.

    \b
      eval "$(winkfs completion bash)"                                      in ~/.bashrc
      eval "$(winkfs completion zsh)"                                       in ~/.zshrc
      winkfs completion fish > ~/.config/fish/completions/winkfs.fish
    """
    from click.shell_completion import get_completion_class

    from winkfs.cli import COMPLETE, cli

    chosen = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(chosen)
    if kind is None:
        raise click.UsageError(f"name the shell: one of {', '.join(SHELLS)}")
    click.echo(kind(cli, {}, "winkfs", COMPLETE).source())
