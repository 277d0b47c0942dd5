"""Optional libraries: which extra of partreduce installs each, and the error when one is missing."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from partreduce.topo.errors import MissingDependencyError

EXTRAS = {
    "torch": ("torch", "torch"),
    "ortools": ("OR-Tools", "plan"),
    "matplotlib": ("matplotlib", "plot"),
    "zmq": ("pyzmq", "service"),
    "safetensors": ("safetensors", "service"),
    "sklearn": ("scikit-learn", "demo"),
}
"""For each optional module, the library's name and the extra of partreduce that installs it."""


def is_installed(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def missing(modules: Iterable[str], purpose: str) -> MissingDependencyError:
    """Return an error: `purpose` needs these `modules`, and the pip command that installs them. It is not raised."""
    names = [EXTRAS[module][0] for module in modules]
    extras = ",".join(dict.fromkeys(EXTRAS[module][1] for module in modules))
    words = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return MissingDependencyError(f"{purpose} needs {words}; install it with: pip install 'partreduce[{extras}]'")


def require(*modules: str, purpose: str) -> None:
    """Raise MissingDependencyError if a module that `purpose` needs is not installed; no module is imported."""
    if absent := [module for module in modules if not is_installed(module)]:
        raise missing(absent, purpose)


def load(module: str, purpose: str) -> Any:  # noqa: ANN401 - a module
    """Import an optional module; if it is missing, raise MissingDependencyError naming the `purpose` that needs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top not in EXTRAS:
            raise
        raise missing([top], purpose) from None
