"""Import a function of the user's own file, `FILE.py:NAME`: for `--model`, `--step`, `measure` and `verify`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from partreduce.topo.errors import FileError, InputError, PartreduceError


def function_of(text: str, place: str) -> Callable[..., Any]:
    """Execute a Python file, with its own folder first on the import path, and return one of its functions.

    `text` is `FILE.py:NAME`; error messages begin with the option `place`. Raises FileError for a missing file, and
    InputError for another form, a file that raises an error, and a name that is no function.
    """
    path, name = file_and_name(text, place)
    spec = importlib.util.spec_from_file_location(f"_partreduce_user_{path.stem}", path.resolve())
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "likewise"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that classes of the file can be pickled and resolved
    with _as_if_run(path):
        try:
            spec.loader.exec_module(module)
        except PartreduceError:
            raise
        except SystemExit:
            guard = 'put what makes it a program under `if __name__ == "__main__":`'
            raise InputError(f"{place} {text}: {path} ended the program when it was executed; {guard}") from None
        except Exception as error:
            raise InputError(
                f"{place} {text}: importing {path} failed: {one_line(error)}{_line_of(error, path)}"
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        near = get_close_matches(name, [key for key, value in vars(module).items() if callable(value)], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{place} {text}: {path} has no function {name}{hint}")
    found: Callable[..., Any] = function
    return found


def file_and_name(text: str, place: str) -> tuple[Path, str]:
    """Split `FILE.py:NAME` into the path of an existing file and the function's name.

    Raises InputError for another form and FileError for a missing file; the former begins with the option `place`.
    """
    file, sign, name = text.rpartition(":")
    path = Path(file)
    if not sign or not name.isidentifier() or path.suffix != ".py":
        raise InputError(f"{place} {text}: write FILE.py:NAME, a file and a function in it")
    if not path.is_file():
        raise FileError(f"{path}: cannot be read: there is no such file")
    return path, name


@contextmanager
def _as_if_run(path: Path) -> Iterator[None]:
    """Context manager: put the file's folder first on the import path, and clear the command-line arguments.

    Afterwards the folder is last on the path, for imports inside functions.
    """
    folder, arguments = str(path.resolve().parent), sys.argv
    sys.path.insert(0, folder)
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = arguments
        with suppress(ValueError):  # the file may have removed it
            sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _line_of(error: BaseException, path: Path) -> str:
    """Return the line of the file where an error arose, such as ` (line 31)`; empty if it arose elsewhere."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())
    ]
    return f" (line {lines[-1]})" if lines else ""


def one_line(error: BaseException) -> str:
    """Format an exception of the user's code as one line: its class and the first 200 characters of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
