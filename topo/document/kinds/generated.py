"""Kind `generated` in documents: the rules by which the group generator hands out groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from preduce.topo.document.kinds.base import Kind, dump_common, pace_value
from preduce.topo.document.model import Count, Model, PaceField, Rounds, validate
from preduce.topo.strategies.base import Averaging
from preduce.topo.strategies.generated import Division, Generated, InitiatorRule

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster

GroupSize = Annotated[Count, Field(ge=2)]
DEFAULT = Generated()


class GeneratedModel(Model):
    """Groups handed out on request by the group generator."""

    kind: Literal["generated"]
    group_size: GroupSize = DEFAULT.group_size
    division: Literal["random", "global", "inter-intra", "node-then-all"] = "inter-intra"
    initiator: Literal["paper", "laggard-local", "laggard-late"] = "laggard-local"
    slow_threshold: Count | None = DEFAULT.slow_threshold
    all_every: Count = DEFAULT.all_every
    seed: Rounds = 0
    pace: PaceField = 1
    overlap: bool = False
    averaging: Literal["mean", "step-normalised"] = "mean"


def _load(raw: dict[str, Any], cluster: Cluster, place: str) -> Generated:  # noqa: ARG001 - the signature of all kinds
    model = validate(GeneratedModel, raw, place)
    return Generated(
        group_size=model.group_size,
        division=Division(model.division),
        initiator=InitiatorRule(model.initiator),
        slow_threshold=model.slow_threshold,
        all_every=model.all_every,
        seed=model.seed,
        pace=pace_value(model.pace),
        overlap=model.overlap,
        averaging=Averaging(model.averaging),
    )


def _dump(strategy: Generated) -> dict[str, Any]:
    result = dump_common(strategy)
    for name in ("group_size", "division", "initiator", "slow_threshold", "all_every", "seed"):
        value = getattr(strategy, name)
        if value != getattr(DEFAULT, name):
            result[name] = str(value) if isinstance(value, str) else value
    return result


KIND = Kind((GeneratedModel,), _load, _dump)
