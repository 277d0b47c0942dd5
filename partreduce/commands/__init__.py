"""The verbs of the command line, one module each, which is imported when its verb is asked for.

So `partreduce --help` needs none of them, and a verb's module has one list of imports. What needs an optional library
is imported by the functions that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import typer

VERBS = ("design", "verify", "show", "simulate", "measure", "import", "run", "report", "demo")
HIDDEN = ("generator", "schema")
"""What other programs start, and what editors ask for; the list of verbs leaves them out."""

MODULES = {"import": "import_"}
"""Verbs that are words of the language have another file name."""


EXIT_CODES = {
    0: "ok",
    1: "refuted",
    2: "usage",
    3: "undecided",
    4: "infeasible",
    65: "bad input",
    69: "unavailable",
    70: "internal error",
    74: "file",
    75: "store lost",
    76: "evicted",
    77: "missing dependency",
    130: "interrupted",
}
"""Every exit code of partreduce itself, in the words of the help; docs/command-line.md explains them."""


OUTPUTS = ("output", "certificate", "export", "plot")
"""Parameters of verbs that name a file to write."""


def check_overwriting(given: Mapping[str, object]) -> None:
    """Check that no output is a file that the same command reads, such as the schedule by its certificate.

    Raises:
        InputError: an output is an input.
    """
    from pathlib import Path

    from partreduce.topo.document.reader import is_file
    from partreduce.topo.errors import InputError

    listed = {name: values if isinstance(values, (list, tuple)) else [values] for name, values in given.items()}
    files = [
        (name, Path(value))
        for name, values in listed.items()
        for value in values
        if isinstance(value, (str, Path)) and is_file(str(value)) and Path(value).is_file()
    ]
    for name, path in files:
        if name in OUTPUTS and any(path.samefile(other) for read, other in files if read not in OUTPUTS):
            raise InputError(f"--{name} {path}: is a file that this command reads; name another one to write")


def verb_of(words: Iterable[str]) -> str:
    """The verb that a command line names; empty where it names none."""
    return next((word for word in words if word in VERBS + HIDDEN), "")


def build_app(asked: str | None = None) -> typer.Typer:
    """The command line as a typer application, with every verb, or with that one alone and of the others the help."""
    import inspect
    from importlib import import_module

    import typer
    from typer.core import TyperCommand

    from partreduce.commands.usage import usage_error
    from partreduce.topo.errors import InputError

    app = typer.Typer(
        help="Design, prove and run the averaging schedule of a distributed training job.",
        epilog="Exit codes: " + ", ".join(f"{code} {words}" for code, words in EXIT_CODES.items()) + ".",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            from partreduce import __version__

            typer.echo(__version__)
            raise typer.Exit

    # The version is printed by a callback of the option: the function below runs only once there is a verb.
    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=print_version
        ),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        pass

    class Verb(TyperCommand):
        def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click
            try:
                check_overwriting(ctx.params)
                return super().invoke(ctx)
            except InputError as error:
                raise usage_error(error, ctx) from error

        def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click
            parameters = super().get_params(ctx)
            for parameter in parameters:
                if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                    parameter.metavar = ""  # a flag takes no value, and the help would show `<bool>` as one
            return parameters

    def show_help() -> None:
        """Stands for a verb that is listed only."""

    for verb in VERBS + HIDDEN:
        module = None
        if asked is None or verb == asked:
            module = import_module(f"partreduce.commands.{MODULES.get(verb, verb)}")
        document = _help_of(verb) if module is None else module.command.__doc__
        said = inspect.cleandoc(document).split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in said)  # typer would keep the source's lines
        function, settings = (show_help, {}) if module is None else (module.command, getattr(module, "SETTINGS", {}))
        app.command(verb, cls=Verb, help=text, hidden=verb in HIDDEN, **settings)(function)
    return app


def _help_of(verb: str) -> str:
    """The help of a verb whose module is not imported."""
    import ast
    from pathlib import Path

    source = Path(__file__).with_name(f"{MODULES.get(verb, verb)}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return next(ast.get_docstring(function) or "" for function in functions if function.name == "command")
