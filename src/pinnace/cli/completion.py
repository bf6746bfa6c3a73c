"""``pinnace completion``: what a shell needs to complete commands, options and the names of clusters."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pinnace.errors import UsageError

VARIABLE = "_PINNACE_COMPLETE"  # by which the shell's script asks us


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    For bash: eval "$(pinnace completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc, with zsh. For fish: pinnace
    completion fish > ~/.config/fish/completions/pinnace.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"there is no completion for {shell}")
    click.echo(kind(context.find_root().command, {}, "pinnace", VARIABLE).source())
