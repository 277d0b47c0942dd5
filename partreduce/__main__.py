"""The entry point of the command line, which turns every error into one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from contextlib import suppress

UNWRITTEN = 74
INTERNAL = 70
INTERRUPTED = 130
ARGUMENTS = ("data", "format", "max_queues", "model_bytes", "time_limit", "sync")
"""Arguments of Python functions in error messages that are options of the command line."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command line (default: `sys.argv[1:]`); return its exit code. Errors are one line on standard error."""
    arguments, debug = _without_debug(sys.argv[1:] if arguments is None else arguments)
    from partreduce.streams import OutputLostError, guarded_streams, silence

    try:
        with guarded_streams():
            return _answer(arguments, debug=debug)
    except (OutputLostError, BrokenPipeError) as error:
        problem = str(error) if isinstance(error, OutputLostError) else ""
        with suppress(OSError):  # standard error may be full
            os.write(2, f"partreduce: standard output: cannot be written: {problem}\n".encode() if problem else b"")
        silence()
        return UNWRITTEN if problem else 0


def _answer(arguments: list[str], *, debug: bool) -> int:
    """Run one command; print an error as one line, with `debug` also its traceback; return the exit code."""
    from partreduce.streams import OutputLostError
    from partreduce.topo.errors import PartreduceError

    try:
        return _invoke(arguments)
    except PartreduceError as error:
        if debug:
            traceback.print_exc()
        return _print_line(in_options(str(error)), error.exit_code)
    except KeyboardInterrupt:
        return _print_line("interrupted", INTERRUPTED)
    except (OutputLostError, BrokenPipeError):
        raise
    except ModuleNotFoundError as error:
        from partreduce.topo.extras import EXTRAS, missing

        top = (error.name or "").partition(".")[0]
        if top not in EXTRAS or debug:
            return _internal(error, debug=debug)
        refusal = missing([top], "this")
        return _print_line(str(refusal), refusal.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defense: a bug of ours ends in one sentence
        return _internal(error, debug=debug)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without --debug, and whether it was there; what follows the verb `run` is left as it is."""
    end = arguments.index("run") if "run" in arguments else len(arguments)
    kept = [a for a in arguments[:end] if a != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _invoke(arguments: list[str]) -> int:
    from partreduce.commands import build_app, verb_of
    from partreduce.console import fresh_terminal

    # For completion, the shell passes the line in an environment variable.
    line = " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))
    try:
        with fresh_terminal():
            result = build_app(verb_of(arguments or line.split()[1:]))(
                args=arguments, prog_name="partreduce", standalone_mode=False
            )
    except Exception as error:
        # typer's usage errors carry message and exit code; which class they derive from depends on its version.
        message, code = getattr(error, "format_message", None), getattr(error, "exit_code", None)
        if message is None or code is None:
            raise
        path = getattr(getattr(error, "ctx", None), "command_path", "partreduce")
        sentence = in_options(message()).replace(
            ": Value error, ", ": "
        )  # pydantic's prefix: typer parses choices with it
        return _print_line(f"{sentence} (see `{path} --help`)", int(code)) if message() else int(code)
    return result if isinstance(result, int) else 0


def in_options(message: str) -> str:
    """Replace the names in `ARGUMENTS` by options in an error message: `format=x` becomes `--format x`."""
    names = "|".join(ARGUMENTS)
    message = re.sub(rf"^({names})(?=:)", lambda found: _option(found[1]), message)
    message = re.sub(rf"\b({names})=(?=\w)", lambda found: f"{_option(found[1])} ", message)
    return re.sub(rf"\b({names})=", lambda found: _option(found[1]), message)


def _option(argument: str) -> str:
    return "--" + argument.replace("_", "-")


def _print_line(message: str, code: int) -> int:
    sys.stderr.write("partreduce: " + " ".join(message.splitlines()) + "\n")
    return code


def _internal(error: Exception, *, debug: bool) -> int:
    text = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(text)
        return _print_line(f"internal error: {type(error).__name__}: {error}", INTERNAL)
    handle, name = tempfile.mkstemp(prefix="partreduce-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return _print_line(
        f"internal error, a bug of partreduce: {type(error).__name__}: {error}; the traceback is in {name} "
        "(--debug shows it)",
        INTERNAL,
    )


if __name__ == "__main__":
    sys.exit(main())
