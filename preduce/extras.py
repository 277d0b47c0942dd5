"""Optional libraries, asked for in one sentence when they are missing."""

from __future__ import annotations

from importlib.util import find_spec

from preduce.topo.errors import MissingFeatureError

EXTRAS = {"torch": "torch", "sklearn": "demo", "matplotlib": "plot"}


def require(module: str, purpose: str) -> None:
    """Refuse to go on without an optional library.

    Raises:
        MissingFeatureError: it is not installed; the message says how to install it.
    """
    if find_spec(module) is None:
        raise MissingFeatureError(f"{purpose} needs {module}; install it with: pip install 'preduce[{EXTRAS[module]}]'")


def require_torch() -> None:
    """Refuse to start workers without torch."""
    require("torch", "running workers")
