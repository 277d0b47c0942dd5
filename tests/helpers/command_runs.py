"""Runs one command of the command line inside the test's process; its errors come as they were raised."""

import typer
from typer.testing import CliRunner


def runner(command):
    """What runs a command with some arguments and gives its result."""
    app = typer.Typer()
    app.command()(command)

    def run(*arguments):
        result = CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result

    return run
