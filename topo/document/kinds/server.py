"""Kind `server` in documents: where the shards of the parameter server are, and how long it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from preduce.topo.document.kinds.base import Kind, dump_common, pace_value
from preduce.topo.document.model import Index, Listed, Model, PaceField, Rounds, validate
from preduce.topo.strategies.base import Averaging
from preduce.topo.strategies.server import Server

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


class ServerModel(Model):
    """A sharded parameter server; the order of `hosts` is the order of the shards."""

    kind: Literal["server"]
    hosts: Annotated[Listed[Index], Field(min_length=1, default_factory=lambda: [0])]
    synchronous: bool = True
    staleness: Rounds | None = None
    pace: PaceField = 1
    overlap: bool = False
    averaging: Literal["mean", "step-normalised"] = "mean"


def _load(raw: dict[str, Any], cluster: Cluster, place: str) -> Server:  # noqa: ARG001 - the signature of all kinds
    model = validate(ServerModel, raw, place)
    return Server(
        hosts=tuple(model.hosts),
        synchronous=model.synchronous,
        staleness=model.staleness,
        pace=pace_value(model.pace),
        overlap=model.overlap,
        averaging=Averaging(model.averaging),
    )


def _dump(strategy: Server) -> dict[str, Any]:
    result = dump_common(strategy)
    if strategy.hosts != (0,):
        result["hosts"] = list(strategy.hosts)
    if not strategy.synchronous:
        result["synchronous"] = False
    if strategy.staleness is not None:
        result["staleness"] = strategy.staleness
    return result


KIND = Kind((ServerModel,), _load, _dump)
