"""The check that the other four packages are ours: their generic names are easily shadowed by a user's own folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FLOORS = ("topo", "schedulers", "verify", "runtime")


class ShadowedError(ImportError):
    """A package of another origin answers to one of our names."""


def check_house(names: tuple[str, ...] = FLOORS) -> None:
    """Refuse to start when `topo`, `schedulers`, `verify` or `runtime` do not lie beside `preduce`.

    Raises:
        ShadowedError: one is missing or comes from elsewhere; the message names both paths.
    """
    home = Path(__file__).resolve().parent.parent
    for name in names:
        spec = find_spec(name)
        if spec is None:
            raise ShadowedError(f"preduce in {home / 'preduce'} needs the package {home / name}, which is missing")
        found = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
        if not found and spec.origin:
            found = [Path(spec.origin).resolve()]
        if home / name not in found:
            other = found[0] if found else "an unknown place"
            raise ShadowedError(
                f"`import {name}` finds {other}, but preduce needs {home / name}: rename that file or folder, or start "
                "from another directory"
            )
