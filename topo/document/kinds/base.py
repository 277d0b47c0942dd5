"""What every strategy kind offers to the document layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from preduce.topo.cluster import Cluster
    from preduce.topo.strategies.base import Pace, Strategy


@dataclass(frozen=True, slots=True)
class Kind:
    """The models of one kind (several when the kind has several forms) and its two conversions.

    `load(raw, cluster, place)` checks a parsed object and returns the strategy; `dump(strategy)` returns the object
    without members that equal their default. Explicit phases stay `Phase` values in it; the encoder writes them.
    `canonical(dumped)` brings what has no order of its own into one order.
    """

    models: tuple[type[BaseModel], ...]
    load: Callable[[dict[str, Any], Cluster, str], Strategy]
    dump: Callable[[Any], dict[str, Any]]
    canonical: Callable[[dict[str, Any]], dict[str, Any]] = lambda dumped: dumped


def dump_common(strategy: Strategy) -> dict[str, Any]:
    """The members that all kinds share: `kind`; and `pace`, `overlap`, `averaging` where not the default."""
    result: dict[str, Any] = {"kind": strategy.kind}
    if strategy.pace != 1:
        result["pace"] = strategy.pace if isinstance(strategy.pace, int) else list(strategy.pace)
    if getattr(strategy, "overlap", False):
        result["overlap"] = True
    averaging = getattr(strategy, "averaging", Averaging.MEAN)
    if averaging != Averaging.MEAN:
        result["averaging"] = str(averaging)
    return result


def pace_value(pace: int | list[int]) -> Pace:
    """The pace as a value."""
    return pace if isinstance(pace, int) else tuple(pace)
