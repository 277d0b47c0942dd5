"""Kind `pairwise` in documents: the active workers, and who may meet whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from preduce.topo.document.kinds.base import Kind, dump_common, pace_value
from preduce.topo.document.model import Index, Listed, Model, PaceField, Rounds, validate
from preduce.topo.document.place import child
from preduce.topo.errors import DocumentError
from preduce.topo.strategies.base import Averaging
from preduce.topo.strategies.pairwise import Pairwise

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster

Pair = Annotated[Listed[Index], Field(min_length=2, max_length=2)]


class PairwiseModel(Model):
    """Asynchronous averaging of two workers at a time."""

    kind: Literal["pairwise"]
    active: Annotated[Listed[Index], Field(min_length=1)]
    edges: Annotated[Listed[Pair], Field(min_length=1)] | None = None
    seed: Rounds = 0
    pace: PaceField = 1
    overlap: bool = False
    averaging: Literal["mean", "step-normalised"] = "mean"


def _load(raw: dict[str, Any], cluster: Cluster, place: str) -> Pairwise:  # noqa: ARG001 - the signature of all kinds
    model = validate(PairwiseModel, raw, place)
    edges = None if model.edges is None else tuple((a, b) for a, b in model.edges)
    seen: set[frozenset[int]] = set()
    for index, (a, b) in enumerate(edges or ()):
        if frozenset((a, b)) in seen:
            raise DocumentError(
                child(child(place, "edges"), index), f"is [{a}, {b}]; this pair is given twice; keep it once"
            )
        seen.add(frozenset((a, b)))
    return Pairwise(
        active=tuple(model.active),
        edges=edges,
        seed=model.seed,
        pace=pace_value(model.pace),
        overlap=model.overlap,
        averaging=Averaging(model.averaging),
    )


def _dump(strategy: Pairwise) -> dict[str, Any]:
    result = dump_common(strategy) | {"active": list(strategy.active)}
    if strategy.edges is not None:
        result["edges"] = [list(edge) for edge in strategy.edges]
    if strategy.seed:
        result["seed"] = strategy.seed
    return result


def _canonical(dumped: dict[str, Any]) -> dict[str, Any]:
    """Active ranks ascend; an edge starts with its lower rank, and edges ascend."""
    result = dumped | {"active": sorted(dumped["active"])}
    if "edges" in dumped:
        result["edges"] = sorted(sorted(edge) for edge in dumped["edges"])
    return result


KIND = Kind((PairwiseModel,), _load, _dump, _canonical)
