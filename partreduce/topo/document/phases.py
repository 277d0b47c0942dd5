"""The phases of `static` in documents: rule blocks (with `node_radices`) or explicit groups."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from partreduce.topo.closed_model import Exact, Listed, Model, part_of, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.groups import is_clean, phase_of
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.fields import Count, Index
from partreduce.topo.fraction import dump_fraction
from partreduce.topo.phase import ONE
from partreduce.topo.place import child
from partreduce.topo.rule import Block
from partreduce.topo.strategies.static import GroupPhases, RulePhases

MAX_PERIOD = 2**18
"""The most phases of a period: longer lists would take minutes to check, and a run could never create their groups."""


MAX_UNROLLED = 2**24
"""Ranks that repeated phases may stand for in all: about as many as a file of the default size limit lists."""


class BlockModel(Model):
    """The local ranks `local` average over the node digits `across`; none is inside each node."""

    local: Annotated[Listed[Index], Field(min_length=1)]
    across: Listed[Index]
    relaxation: Exact = ONE


class GroupModel(Model):
    """Two or more workers that average together."""

    group: Annotated[Listed[Index], Field(min_length=2)]
    relaxation: Exact = ONE


def _quickly(phase: object, naming_check: ValidatorFunctionWrapHandler) -> list[dict[str, Any]]:
    """Phases of explicit groups skip the model when the bulk check already accepts them."""
    if is_clean(phase):
        return phase
    return [item.model_dump(exclude_unset=True) for item in naming_check(phase)]


class RuleMembers(Model):
    """Phases as rules, for any number of nodes."""

    # A cluster has fewer than 2**31 nodes and every radix is at least 2, so there are at most 31 digits.
    node_radices: Annotated[Listed[Annotated[Count, Field(ge=2)]], Field(max_length=31)]
    phases: Annotated[Listed[Listed[BlockModel]], Field(min_length=1, max_length=MAX_PERIOD)]


class GroupMembers(Model):
    """Phases as explicit groups."""

    phases: Annotated[
        Listed[Annotated[Listed[GroupModel], WrapValidator(_quickly)]], Field(min_length=1, max_length=MAX_PERIOD)
    ]


STATIC_MODELS = (RuleMembers, GroupMembers)


class RepeatedPhase(Model):
    """A phase that stands for `repeat` equal ones in a row."""

    phase: list[Any]
    repeat: Annotated[Count, Field(ge=2, le=MAX_PERIOD)]


def repeated_phase_schema(phase: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an entry of `phases`: a phase, or an object with a phase and how often it repeats."""
    schema = RepeatedPhase.model_json_schema()
    schema["properties"]["phase"] = phase
    return {"anyOf": [phase, schema]}


def load_phases(raw: dict[str, Any], cluster: Cluster, place: str) -> RulePhases | GroupPhases:
    """The phases of a parsed strategy. Groups that overlap are allowed: `verify` refutes them."""
    where = child(place, "phases")
    raw, counts = _take_repeats(raw, where)
    if "node_radices" in raw:
        rules = validate(RuleMembers, part_of(raw, "node_radices", "phases"), place)
        blocks = (
            tuple(Block(tuple(block.local), tuple(block.across), block.relaxation) for block in phase)
            for phase in rules.phases
        )
        return RulePhases(tuple(rules.node_radices), tuple(chain.from_iterable(map(repeat, blocks, counts))))
    _check_blocks_without_radices(raw, place)
    checked: list[Any] = validate(GroupMembers, part_of(raw, "phases"), place).phases
    phases = [phase_of(phase, cluster.num_workers, child(where, t)) for t, phase in enumerate(checked)]
    size = sum(count * len(phase.members) for phase, count in zip(phases, counts, strict=True) if count > 1)
    if size > MAX_UNROLLED:
        raise DocumentError(where, f"repeated phases list {size} ranks in all; expected at most {MAX_UNROLLED}")
    return GroupPhases(tuple(chain.from_iterable(map(repeat, phases, counts))))


def _take_repeats(raw: dict[str, Any], where: str) -> tuple[dict[str, Any], list[int]]:
    """The members of a strategy with each entry of `phases` as a plain phase, and how often each repeats.

    Places in later messages count the entries of the file, and not the phases that these stand for.
    """
    listed = raw.get("phases")
    if not isinstance(listed, list):
        return raw, []
    plain, counts = [], []
    for index, entry in enumerate(listed):
        if isinstance(entry, dict):
            repeated = validate(RepeatedPhase, entry, child(where, index))
            plain.append(repeated.phase)
            counts.append(repeated.repeat)
        else:
            plain.append(entry)
            counts.append(1)
    if len(counts) < sum(counts) > MAX_PERIOD:  # the model refuses a list that is too long without repetitions
        raise DocumentError(where, f"has {sum(counts)} phases; expected at most {MAX_PERIOD}")
    return raw | {"phases": plain}, counts


def _check_blocks_without_radices(raw: dict[str, Any], place: str) -> None:
    phases = raw.get("phases")
    first = phases[0] if isinstance(phases, list) and phases else None
    if isinstance(first, list) and first and isinstance(first[0], dict) and "local" in first[0]:
        raise DocumentError(
            place,
            'the key "node_radices" is missing; phases of blocks need it; write explicit phases as groups instead',
        )


def dump_phases(phases: RulePhases | GroupPhases) -> dict[str, Any]:
    """The members `phases` and, for rules, `node_radices`; explicit phases stay values, which the writer spells."""
    if len(phases) > MAX_PERIOD:
        raise ScheduleError(f"phases: has {len(phases)} entries; a document holds at most {MAX_PERIOD}")
    if isinstance(phases, GroupPhases):
        return {"phases": list(phases.phases)}
    blocks = [[_dump_block(block) for block in phase] for phase in phases.phases]
    return {"node_radices": list(phases.node_radices), "phases": blocks}


def _dump_block(block: Block) -> dict[str, Any]:
    result: dict[str, Any] = {"local": list(block.local), "across": list(block.across)}
    return result if block.relaxation == 1 else result | {"relaxation": dump_fraction(block.relaxation)}


def canonical_phases(dumped: dict[str, Any]) -> dict[str, Any]:
    """Explicit phases are in one order already; blocks, local ranks and digits are brought into ascending order."""
    if "node_radices" not in dumped:
        return dumped
    phases = [
        sorted(
            (block | {"local": sorted(block["local"]), "across": sorted(block["across"])} for block in phase),
            key=lambda block: (block["local"], block["across"], str(block.get("relaxation", 1))),
        )
        for phase in dumped["phases"]
    ]
    return dumped | {"phases": phases}
