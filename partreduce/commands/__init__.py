"""The verbs of the command line, one module each, imported when its verb is used.

So `partreduce --help` imports none of them, and a verb's module has one list of imports. Functions that use an optional
library import it themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import typer

    from partreduce.topo.errors import InputError

VERBS = ("design", "verify", "show", "simulate", "measure", "import", "run", "report", "demo")
HIDDEN = ("generator", "schema", "help")
"""Verbs that the list of verbs leaves out: for other programs, for editors, and for tables of keys."""

MODULES = {"import": "import_"}
"""The module names of verbs that are Python keywords."""

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
"""Every exit code of partreduce, with its meaning in the help; docs/command-line.md explains them."""

EXAMPLES = {
    "design": (
        "partreduce design 4x4 --model-bytes 500MB --set nic=25MB/s -o schedule.json",
        "partreduce design 4x4 --build 'allreduce(every=4)' -o schedule.json",
        "partreduce design cluster.yaml --tolerate-failures 1 -o schedule.json",
    ),
    "verify": (
        "partreduce verify schedule.json",
        "partreduce verify schedule.json --explain",
        "partreduce verify groups.py:group_of --cluster 2x4 --period 6 --export schedule.json",
    ),
    "show": (
        "partreduce show schedule.json",
        "partreduce show schedule.json -o schedule.svg",
        "partreduce show schedule.json --max-workers 16 --max-phases 24",
    ),
    "simulate": (
        "partreduce simulate schedule.json --model-bytes 500MB --set nic=25MB/s",
        "partreduce simulate schedule.json --set slow=3:5x -o timeline.svg",
        "partreduce simulate a.json b.json --set disturb=hop:6x",
    ),
    "measure": (
        "partreduce measure --workers 4 -o cluster.yaml",
        "torchrun --nproc-per-node 4 -m partreduce measure --step train.py:step -o cluster.yaml",
        "partreduce measure train.py:job cluster.yaml --workers 4 -o pilot.json",
    ),
    "import": (
        "partreduce import graph.graphml -o schedule.json",
        "partreduce import edges.txt --format edge-list --cluster 4x4 -o schedule.json",
        "partreduce import diloco.json --format torchft --cluster 4x8 -o schedule.json",
    ),
    "run": (
        "partreduce run --workers 4 train.py --epochs 3",
        "partreduce run --schedule schedule.json --tolerate-failures 1 --max-restarts 2 train.py",
        "partreduce run --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29400 --nproc-per-node 4 train.py",
    ),
    "report": (
        "partreduce report runs/allreduce runs/schedule",
        "partreduce report runs/allreduce-1 runs/allreduce-2 runs/schedule",
        "partreduce report runs/allreduce runs/schedule --loss 0.1",
    ),
    "demo": ("partreduce demo", "partreduce demo -o demo --steps 40", "partreduce demo --turns 1 --seed 3"),
    "generator": (),
    "schema": (
        "partreduce schema",
        "partreduce schema cluster -o cluster.schema.json",
        "partreduce schema pilot -o pilot.schema.json",
    ),
    "help": ("partreduce help settings", "partreduce help limits", "partreduce help --help"),
}
"""The examples at the end of each verb's help."""

PANELS = (
    "Options",
    "The cluster",
    "The model",
    "Workers",
    "Multi-node",
    "The catalogue",
    "How workers may average",
    "Objective and limits",
    "Fault tolerance",
    "Output",
    "General",
)
"""The order of the panels of options in the help: inputs, search, output, general."""

OUTPUTS = ("output", "certificate", "export", "plot")
"""Parameters of verbs that name a file to write."""


def check_overwriting(given: Mapping[str, object]) -> None:
    """Raise InputError if a file that a command would write is one that it reads.

    `given` maps the names of the command's parameters to their values.
    """
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


def verb_of(words: Sequence[str]) -> str:
    """Return the verb that a command line starts with; empty if it starts with an option or is empty."""
    return words[0] if words and words[0] in VERBS + HIDDEN else ""


def build_app(requested: str | None = None) -> typer.Typer:
    """Return the command line as a typer application, in which only the verb `requested` can run; None: all can.

    The modules of other verbs are not imported. With `requested` empty, all verbs have their help, which the list of
    verbs shows; with a verb, only that one has.
    """
    import inspect
    from importlib import import_module

    import typer
    from typer.core import TyperCommand, TyperGroup

    from partreduce.topo.errors import InputError

    class Verbs(TyperGroup):
        def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click
            return _without_values(super().get_params(ctx))

    app = typer.Typer(
        cls=Verbs,
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
            return sorted(_without_values(super().get_params(ctx)), key=_place_in_help)

    def show_help() -> None:
        """Placeholder for a verb that the help only lists."""

    for verb in VERBS + HIDDEN:
        module = None
        if requested is None or verb == requested:
            module = import_module(f"partreduce.commands.{MODULES.get(verb, verb)}")
        document = module.command.__doc__ if module else "" if requested else _help_of(verb)
        paragraphs = inspect.cleandoc(document).split("\n\n")
        text = "\n\n".join(
            " ".join(paragraph.split()) for paragraph in paragraphs
        )  # typer would keep the source's lines
        function, settings = (show_help, {}) if module is None else (module.command, getattr(module, "SETTINGS", {}))
        app.command(verb, cls=Verb, help=text, epilog=_examples_of(verb), hidden=verb in HIDDEN, **settings)(function)
    return app


def usage_error(error: InputError, context: Any) -> Exception:  # noqa: ANN401 - of typer's own click
    """Turn an InputError about a value of the command line into typer's usage error, which names the option.

    `context` is typer's context of the command. An error that names no option or value of the command line is returned
    unchanged, such as one about the content of a file.
    """
    import typer

    from partreduce.topo.errors import DocumentError, HandshakeError

    if isinstance(error, (DocumentError, HandshakeError)):
        return error
    place, sign, problem = str(error).partition(": ")
    first = place.split(" ")[0]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if not sign or source is None or source.name != "COMMANDLINE":
            continue
        value, option = context.params.get(parameter.name), max(parameter.opts, key=len)
        if not option.startswith("-"):
            option = str(parameter.metavar or parameter.name).strip("[].").upper()
        if first in parameter.opts and first.startswith("-"):
            return typer.BadParameter(problem, ctx=context, param_hint=place)
        places = {key: (key, f"{option.removeprefix('--')}-{key}", f"hardware.{key}") for key in _keys(value)}
        if key := next((key for key, names in places.items() if first in names), None):  # as functions name it
            return typer.BadParameter(problem, ctx=context, param_hint=f"{option} {key}")
        if isinstance(value, (str, Path)) and Path(value).is_file():  # the error may be in the file's content
            continue
        if place == str(value):
            return typer.BadParameter(problem, ctx=context, param_hint=f"{option} {place}")
        if first in (option, parameter.name):
            return typer.BadParameter(problem, ctx=context, param_hint=option if place == parameter.name else place)
    return error


def _keys(value: object) -> list[str]:
    """Return the keys in the value of a repeatable option, a list of texts `KEY=VALUE`; empty for other values."""
    entries = [str(entry).partition("=") for entry in value] if isinstance(value, list) else []
    return [key for key, sign, _ in entries if sign]


def _without_values(parameters: list[Any]) -> list[Any]:
    """Leave out of the help of flags the value `<bool>`, which they do not take; return the parameters."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def _place_in_help(parameter: Any) -> int:  # noqa: ANN401 - of typer's own click
    """Return the position of a parameter's panel (a titled box of options) in the help, −1 for an argument.

    An option without a panel is assigned to "General", "Output" or "Options" by its name.
    """
    if parameter.param_type_name == "argument":
        return -1
    if parameter.rich_help_panel is None:
        general = {"help": "General"} | dict.fromkeys(OUTPUTS, "Output")
        parameter.rich_help_panel = general.get(parameter.name, "Options")
    return PANELS.index(parameter.rich_help_panel)


def _examples_of(verb: str) -> str | None:
    """Return the examples at the end of a verb's help, one per paragraph (typer joins lines); None without examples."""
    return "\n\n".join(("Examples:", *EXAMPLES[verb])) if EXAMPLES[verb] else None


def _help_of(verb: str) -> str:
    """Return the help of a verb, the docstring of its `command`, without importing its module."""
    import ast

    source = Path(__file__).with_name(f"{MODULES.get(verb, verb)}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return next(ast.get_docstring(function) or "" for function in functions if function.name == "command")
