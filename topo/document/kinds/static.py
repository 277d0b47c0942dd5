"""Kind `static` in documents: rule blocks (with `node_radices`) or explicit groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from preduce.topo.document.fraction import dump_fraction
from preduce.topo.document.groups import is_clean, phase_of
from preduce.topo.document.kinds.base import Kind, dump_common, pace_value
from preduce.topo.document.model import Count, Exact, Index, Listed, Model, PaceField, Rounds, validate
from preduce.topo.document.place import child
from preduce.topo.errors import DocumentError, ScheduleError
from preduce.topo.phase import ONE
from preduce.topo.rule import Block
from preduce.topo.strategies.base import Averaging
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.phase import Phase
    from preduce.topo.rule import RulePhase


MAX_PERIOD = 2**18
"""The most phases of a period: longer lists would take minutes to check, and a run could never create their groups."""


class BlockModel(Model):
    """The local ranks `local` average over the node digits `across`; none is inside each node."""

    local: Annotated[Listed[Index], Field(min_length=1)]
    across: Listed[Index]
    relax: Exact = ONE


class GroupModel(Model):
    """Two or more workers that average together."""

    group: Annotated[Listed[Index], Field(min_length=2)]
    relax: Exact = ONE


def _quickly(phase: object, naming_check: ValidatorFunctionWrapHandler) -> list[dict[str, Any]]:
    """Phases of explicit groups skip the model when the bulk check already accepts them."""
    if is_clean(phase):
        return phase
    return [item.model_dump(exclude_unset=True) for item in naming_check(phase)]


class _StaticModel(Model):
    kind: Literal["static"]
    pace: PaceField = 1
    prologue: Rounds = 0
    overlap: bool = False
    averaging: Literal["mean", "step-normalised"] = "mean"


class StaticRuleModel(_StaticModel):
    """Phases as rules, for any number of nodes."""

    # A cluster has fewer than 2**31 nodes and every radix is at least 2, so there are at most 31 digits.
    node_radices: Annotated[Listed[Annotated[Count, Field(ge=2)]], Field(max_length=31)]
    phases: Annotated[Listed[Listed[BlockModel]], Field(min_length=1, max_length=MAX_PERIOD)]


class StaticGroupsModel(_StaticModel):
    """Phases as explicit groups."""

    phases: Annotated[
        Listed[Annotated[Listed[GroupModel], WrapValidator(_quickly)]], Field(min_length=1, max_length=MAX_PERIOD)
    ]


def _load(raw: dict[str, Any], cluster: Cluster, place: str) -> Static:
    rule = "node_radices" in raw
    model: StaticRuleModel | StaticGroupsModel
    phases: tuple[RulePhase, ...] | tuple[Phase, ...]
    if rule:
        model = validate(StaticRuleModel, raw, place)
        phases = tuple(
            tuple(Block(tuple(block.local), tuple(block.across), block.relax) for block in phase)
            for phase in model.phases
        )
    else:
        _refuse_blocks_without_radices(raw, place)
        model = validate(StaticGroupsModel, raw, place)
        listed: list[Any] = model.phases
        phases = tuple(
            phase_of(phase, cluster.num_workers, child(child(place, "phases"), t)) for t, phase in enumerate(listed)
        )
    return Static(
        phases=phases,
        node_radices=tuple(model.node_radices) if isinstance(model, StaticRuleModel) else None,
        pace=pace_value(model.pace),
        prologue=model.prologue,
        overlap=model.overlap,
        averaging=Averaging(model.averaging),
    )


def _refuse_blocks_without_radices(raw: dict[str, Any], place: str) -> None:
    phases = raw.get("phases")
    first = phases[0] if isinstance(phases, list) and phases else None
    if isinstance(first, list) and first and isinstance(first[0], dict) and "local" in first[0]:
        raise DocumentError(
            place,
            'the key "node_radices" is missing; phases of blocks need it; write explicit phases as groups instead',
        )


def _dump(strategy: Static) -> dict[str, Any]:
    result = dump_common(strategy)
    if len(strategy.phases) > MAX_PERIOD:
        raise ScheduleError(f"phases: has {len(strategy.phases)} entries; a document holds at most {MAX_PERIOD}")
    if strategy.prologue:
        result["prologue"] = strategy.prologue
    if strategy.node_radices is None:
        return result | {"phases": list(strategy.explicit_phases())}
    phases = [[_dump_block(block) for block in phase] for phase in strategy.rule_phases()]
    return result | {"node_radices": list(strategy.node_radices), "phases": phases}


def _dump_block(block: Block) -> dict[str, Any]:
    result: dict[str, Any] = {"local": list(block.local), "across": list(block.across)}
    return result if block.relax == 1 else result | {"relax": dump_fraction(block.relax)}


def _canonical(dumped: dict[str, Any]) -> dict[str, Any]:
    """Explicit phases are in one order already; blocks, local ranks and digits are brought into ascending order."""
    if "node_radices" not in dumped:
        return dumped
    phases = [
        sorted(
            (block | {"local": sorted(block["local"]), "across": sorted(block["across"])} for block in phase),
            key=lambda block: (block["local"], block["across"], str(block.get("relax", 1))),
        )
        for phase in dumped["phases"]
    ]
    return dumped | {"phases": phases}


KIND = Kind((StaticRuleModel, StaticGroupsModel), _load, _dump, _canonical)
