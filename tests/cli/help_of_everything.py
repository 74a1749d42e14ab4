"""Shows the help of every command, and says on standard error whether that loaded MindSpore."""

import contextlib
import sys

import typer

from dimred.cli.main import typer_app
from tests.helpers.commands import command_words

if __name__ == "__main__":
    for words in command_words(typer.main.get_command(typer_app)):
        with contextlib.suppress(SystemExit):
            typer_app([*words, "--help"])
    print("mindspore" in sys.modules, file=sys.stderr)
