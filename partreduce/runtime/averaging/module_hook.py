"""Hooks on the user's modules that no copy and no file of a module has.

`torch.save(model)` and `copy.deepcopy(model)` take a module's hooks along. A hook of this class is left out: in its
place stands a function of Python's standard library that does nothing, so a file can be loaded without this package,
and a copy is watched by nobody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

NOTHING = contextlib.nullcontext.__exit__
"""Takes any positional arguments, does nothing and returns None."""


class ModuleHook:
    """A callable to register on a module; subclasses have the `__call__` that torch calls."""

    def __deepcopy__(self, _memo: object) -> Callable[..., object]:
        return NOTHING

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return getattr, (contextlib.nullcontext, NOTHING.__name__)
