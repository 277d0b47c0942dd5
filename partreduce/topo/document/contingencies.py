"""The contingencies of a schedule in documents: one object for each class of losses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from partreduce.topo.closed_model import Listed, Model, part_of, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Contingency, Survivors
from partreduce.topo.document.groups import plain_phase
from partreduce.topo.document.phases import GroupMembers, RuleMembers, dump_phases, load_phases
from partreduce.topo.errors import DocumentError
from partreduce.topo.fields import Index
from partreduce.topo.phase import Phase
from partreduce.topo.place import child

MAX_CONTINGENCIES = 2**16


class LossModel(Model):
    """What survivors run after a loss: the schedule's groups without the lost workers, or all in one group."""

    lost: Annotated[Listed[Index], Field(min_length=1)]
    groups: Literal["remaining", "all"] = "remaining"


class _OwnPhases(Model):
    lost: Annotated[Listed[Index], Field(min_length=1)]


class LossRuleModel(RuleMembers, _OwnPhases):
    """What survivors run after a loss that leaves nodes of equal size: phases as rules."""


class LossGroupsModel(GroupMembers, _OwnPhases):
    """What survivors run after a loss: phases of groups; survivors are numbered anew in ascending order."""


MODELS = (LossModel, LossRuleModel, LossGroupsModel)


def load_contingencies(raw: list[Any], cluster: Cluster, place: str) -> tuple[Contingency, ...]:
    """The contingencies of a parsed list.

    Raises:
        DocumentError: the first member that breaks the format, with its place.
    """
    return tuple(_load(one, cluster, child(place, index)) for index, one in enumerate(raw))


def _load(raw: object, cluster: Cluster, place: str) -> Contingency:
    if not isinstance(raw, dict) or "phases" not in raw:
        known = validate(LossModel, raw, place)
        return Contingency(tuple(sorted(known.lost)), Survivors(known.groups))
    for key in raw:
        if key not in LossRuleModel.model_fields:
            raise DocumentError(place, f'has the key "{key[:60]}" beside phases; known: lost, node_radices, phases')
    lost = validate(_OwnPhases, part_of(raw, "lost"), place).lost
    if max(lost) >= cluster.num_workers or len(set(lost)) > cluster.num_workers - 2:
        raise DocumentError(
            child(place, "lost"), f"names ranks of 0..{cluster.num_workers - 1}, and leaves 2 or more workers"
        )
    return Contingency(tuple(sorted(lost)), load_phases(raw, cluster.without(lost), place))


def dump_contingency(contingency: Contingency) -> dict[str, Any]:
    """The object of a contingency; `load_contingencies` reads it back."""
    result: dict[str, Any] = {"lost": list(contingency.lost)}
    if isinstance(contingency.groups, Survivors):
        return result if contingency.groups is Survivors.REMAINING else result | {"groups": str(contingency.groups)}
    members = dump_phases(contingency.groups)
    members["phases"] = [plain_phase(one) if isinstance(one, Phase) else one for one in members["phases"]]
    return result | members
