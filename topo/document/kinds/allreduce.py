"""Kind `allreduce` in documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from preduce.topo.document.kinds.base import Kind, dump_common, pace_value
from preduce.topo.document.model import Model, PaceField, validate
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.base import Averaging

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


class AllReduceModel(Model):
    """Everybody averages with everybody, once per round."""

    kind: Literal["allreduce"]
    pace: PaceField = 1
    overlap: bool = False
    averaging: Literal["mean", "step-normalised"] = "mean"


def _load(raw: dict[str, Any], cluster: Cluster, place: str) -> AllReduce:  # noqa: ARG001 - the signature of all kinds
    model = validate(AllReduceModel, raw, place)
    return AllReduce(pace=pace_value(model.pace), overlap=model.overlap, averaging=Averaging(model.averaging))


KIND = Kind((AllReduceModel,), _load, dump_common)
