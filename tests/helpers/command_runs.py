"""Runs one command of the command line inside the test's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from typer.testing import CliRunner

from partreduce.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


def ran(capsys, arguments, code=0):
    """Run a command, check its exit code, and return what it printed."""
    assert main(arguments) == code
    return capsys.readouterr()


def runner(command: Callable) -> Callable[..., Result]:
    """Return a function that runs the command with some arguments and returns its result, or raises its error."""
    app = typer.Typer()
    app.command()(command)

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return run
