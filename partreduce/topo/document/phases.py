"""Read and write the groups and graphs of schedule files: rule blocks, explicit groups, and graphs of weighted edges.

Explicit groups are read into flat arrays and written in bulk, fast enough for millions of groups.
"""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import chain, pairwise, repeat
from typing import Annotated, Any, TypeGuard

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, Tag, ValidatorFunctionWrapHandler, WrapValidator

from partreduce.topo.closed_model import Exact, Listed, Model, dump_fraction, parse_fraction, part_of, validate
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.fields import Count, Index, Whole
from partreduce.topo.phase import ONE, Phase
from partreduce.topo.place import child
from partreduce.topo.round import Round
from partreduce.topo.rule import Block, RuleView
from partreduce.topo.strategies.static import GroupPhases, RulePhases

_KEYS = {("group",), ("group", "relaxation"), ("relaxation", "group")}


def is_clean(phase: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether parsed JSON certainly has the form of explicit groups; a fast check, which ignores the range of ranks.

    After False the slow check by pydantic, minutes for a million workers, decides and names the error, if any.
    """
    if type(phase) is not list or not set(map(type, phase)) <= {dict} or not set(map(tuple, phase)) <= _KEYS:
        return False
    groups = [item["group"] for item in phase]
    if not set(map(type, groups)) <= {list} or min(map(len, groups), default=2) < 2:
        return False
    if not set(map(type, chain.from_iterable(groups))) <= {int}:
        return False
    try:
        for raw in {(type(item["relaxation"]), item["relaxation"]) for item in phase if "relaxation" in item}:
            parse_fraction(raw[1])
    except (TypeError, ValueError):
        return False
    return True


def phase_of(phase: list[dict[str, Any]], num_workers: int, place: str) -> Phase:
    """Build a Phase from JSON groups in any order, at path `place`; raise DocumentError for an invalid rank."""
    groups = [item["group"] for item in phase]
    sizes = np.fromiter(map(len, groups), dtype=np.int64, count=len(groups))
    flat = np.fromiter(chain.from_iterable(groups), dtype=np.int64, count=int(sizes.sum()))
    owner = np.repeat(np.arange(len(groups)), sizes)
    bad = np.flatnonzero((flat < 0) | (flat >= num_workers))
    if len(bad):
        where, starts = int(bad[0]), np.cumsum(sizes) - sizes
        inside = f"{child(place, int(owner[where]))}.group"
        problem = f"rank {int(flat[where])} is out of range; ranks are 0..{num_workers - 1}"
        raise DocumentError(child(inside, where - int(starts[owner[where]])), problem)
    same = owner[1:] == owner[:-1]
    if np.any((np.diff(flat) < 0) & same):
        flat = flat[np.lexsort((flat, owner))]
    twice = np.flatnonzero((np.diff(flat) == 0) & same)
    if len(twice):
        inside = f"{child(place, int(owner[twice[0]]))}.group"
        raise DocumentError(inside, f"worker {int(flat[twice[0]])} stands twice in it; keep it once")
    return _sort_groups(num_workers, flat, sizes, _relaxation_of(phase))


def _relaxation_of(phase: list[dict[str, Any]]) -> tuple[Fraction, ...] | None:
    if set(map(len, phase)) <= {1}:
        return None
    known: dict[int | str, Fraction] = {}
    factors = []
    for item in phase:
        raw = item.get("relaxation", 1)
        if raw not in known:
            known[raw] = raw if isinstance(raw, Fraction) else parse_fraction(raw)
        factors.append(known[raw])
    return None if all(factor == 1 for factor in known.values()) else tuple(factors)


def _sort_groups(num_workers: int, flat: Whole, sizes: Whole, relaxation: tuple[Fraction, ...] | None) -> Phase:
    """Build a Phase from groups of these `sizes` in any order; `flat` has all members, each group's ascending."""
    starts = np.cumsum(sizes) - sizes
    firsts = flat[starts]
    order = np.argsort(firsts, kind="stable")
    ties = np.diff(firsts[order]) == 0
    if ties.any():  # overlapping groups: equal first members are ordered by all members
        tied = np.flatnonzero(np.append(ties, False) | np.append(False, ties))
        ends, factors = starts + sizes, relaxation or (ONE,) * len(sizes)
        by_members = sorted(order[tied].tolist(), key=lambda g: (flat[starts[g] : ends[g]].tolist(), factors[g]))
        order[tied] = by_members
    if np.any(np.diff(order) < 0):
        sizes, starts = sizes[order], starts[order]
        ends = np.cumsum(sizes)
        flat = flat[np.arange(len(flat)) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)]
        relaxation = relaxation and tuple(relaxation[index] for index in order.tolist())
    return Phase.from_arrays(num_workers, flat.astype(np.int32), sizes, relaxation)


def plain_phase(phase: Phase) -> list[dict[str, Any]]:
    """Return the groups of a phase as JSON objects, without `relaxation` where it is 1."""
    groups = _lists(phase)
    if phase.relaxation is None:
        return [{"group": group} for group in groups]
    return [
        {"group": group} if factor == 1 else {"group": group, "relaxation": dump_fraction(factor)}
        for group, factor in zip(groups, phase.relaxation, strict=True)
    ]


def phase_text(phase: Phase, *, spaced: bool) -> str:
    """Return the JSON text of `plain_phase`, with spaces after separators if `spaced`."""
    separators = (", ", ": ") if spaced else (",", ":")
    if phase.relaxation is not None or not len(phase):
        return json.dumps(plain_phase(phase), sort_keys=True, separators=separators)
    lists = json.dumps(_lists(phase), separators=separators)[1:-1]
    comma, key = separators[0], json.dumps("group") + separators[1]
    return "[{" + key + lists.replace(f"]{comma}[", f"]}}{comma}{{{key}[") + "}]"


def _lists(phase: Phase) -> list[list[int]]:
    sizes = phase.sizes
    if len(sizes) and sizes.min() == sizes.max():
        listed: list[list[int]] = phase.members.reshape(-1, int(sizes[0])).tolist()
        return listed
    flat, bounds = phase.members.tolist(), phase.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(bounds)]


MAX_PERIOD = 2**18
"""The most phases of a period: checking more would take minutes, and no run could create that many groups."""

MAX_UNROLLED = 2**24
"""The most ranks in phases with `repeat`, each repetition counted; about what a file of `MAX_BYTES` can list."""


class BlockModel(Model):
    """A block of a rule: workers with these local ranks average across nodes that differ only in the digits `across`.

    An empty `across` averages inside each node. `relaxation` is that of the groups.
    """

    local: Annotated[Listed[Index], Field(min_length=1)]
    across: Listed[Index]
    relaxation: Exact = ONE


class GroupModel(Model):
    """Two or more workers that average together: x <- x + relaxation * (mean - x)."""

    group: Annotated[Listed[Index], Field(min_length=2)]
    relaxation: Exact = ONE


def _quickly(phase: object, naming_check: ValidatorFunctionWrapHandler) -> list[dict[str, Any]]:
    """Return a valid phase of explicit groups; run pydantic (`naming_check`) only if `is_clean(phase)` is False."""
    if is_clean(phase):
        return phase
    return [item.model_dump(exclude_unset=True) for item in naming_check(phase)]


class RuleMembers(Model):
    """Phases given by rules over node digits, for any number of nodes."""

    # A cluster has fewer than 2**31 nodes and every radix is at least 2, so there are at most 31 digits.
    node_radices: Annotated[Listed[Annotated[Count, Field(ge=2)]], Field(max_length=31)]
    phases: Annotated[Listed[Listed[BlockModel]], Field(min_length=1, max_length=MAX_PERIOD)]


class GroupMembers(Model):
    """Phases given by explicit lists of groups."""

    phases: Annotated[
        Listed[Annotated[Listed[GroupModel], WrapValidator(_quickly)]], Field(min_length=1, max_length=MAX_PERIOD)
    ]


STATIC_MODELS = (RuleMembers, GroupMembers)


class RepeatedPhase(Model):
    """A phase that runs `repeat` times in a row."""

    phase: list[Any]
    repeat: Annotated[Count, Field(ge=2, le=MAX_PERIOD)]


def repeated_phase_schema(phase: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an entry of `phases`, given that of a `phase`: a phase or a `RepeatedPhase`."""
    schema = RepeatedPhase.model_json_schema()
    schema["properties"]["phase"] = phase
    return {"anyOf": [phase, schema]}


def load_phases(raw: dict[str, Any], cluster: Cluster, place: str) -> RulePhases | GroupPhases:
    """Build the phases of a strategy's JSON object `raw`: rules if it has `node_radices`, else explicit groups.

    `place` is the object's path in the file. Raises DocumentError for an invalid member; groups that share a worker
    are accepted here.
    """
    where = child(place, "phases")
    raw, counts = _take_repeats(raw, where)
    if "node_radices" in raw:
        rules = validate(RuleMembers, part_of(raw, "node_radices", "phases"), place)
        blocks = (
            tuple(Block(tuple(block.local), tuple(block.across), block.relaxation) for block in phase)
            for phase in rules.phases
        )
        return RulePhases(tuple(rules.node_radices), tuple(chain.from_iterable(map(repeat, blocks, counts))))
    first = raw["phases"][0] if isinstance(raw.get("phases"), list) and raw["phases"] else None
    if isinstance(first, list) and first and isinstance(first[0], dict) and "local" in first[0]:
        missing = 'the key "node_radices" is missing; phases of blocks need it; write explicit phases as groups instead'
        raise DocumentError(place, missing)
    checked: list[Any] = validate(GroupMembers, part_of(raw, "phases"), place).phases
    phases = [phase_of(phase, cluster.num_workers, child(where, t)) for t, phase in enumerate(checked)]
    size = sum(count * len(phase.members) for phase, count in zip(phases, counts, strict=True) if count > 1)
    if size > MAX_UNROLLED:
        raise DocumentError(where, f"repeated phases list {size} ranks in all; expected at most {MAX_UNROLLED}")
    return GroupPhases(tuple(chain.from_iterable(map(repeat, phases, counts))))


def _take_repeats(raw: dict[str, Any], where: str) -> tuple[dict[str, Any], list[int]]:
    """Return a strategy's JSON object with each `RepeatedPhase` replaced by its phase, and each entry's repetitions.

    `where` is the path of `phases`; more than `MAX_PERIOD` of them raise DocumentError. Phases are checked before they
    are repeated, so messages count a file's entries.
    """
    listed = raw.get("phases")
    if not isinstance(listed, list):
        return raw, []
    plain, counts = [], []
    for index, entry in enumerate(listed):
        repeated = validate(RepeatedPhase, entry, child(where, index)) if isinstance(entry, dict) else None
        plain.append(entry if repeated is None else repeated.phase)
        counts.append(1 if repeated is None else repeated.repeat)
    if len(counts) < sum(counts) > MAX_PERIOD:  # the model already limits lists without repetitions
        raise DocumentError(where, f"has {sum(counts)} phases; expected at most {MAX_PERIOD}")
    return raw | {"phases": plain}, counts


def dump_phases(phases: RulePhases | GroupPhases) -> dict[str, Any]:
    """Return the members of a strategy's JSON object that hold its phases, in canonical order.

    Rules have `node_radices` and `phases`; explicit groups only `phases`, a list of `Phase` values, not yet JSON.
    Raises ScheduleError for more than `MAX_PERIOD` phases.
    """
    if len(phases) > MAX_PERIOD:
        raise ScheduleError(f"phases: has {len(phases)} entries; a document holds at most {MAX_PERIOD}")
    if isinstance(phases, GroupPhases):
        return {"phases": list(phases.phases)}
    blocks = [
        [
            {"local": list(block.local), "across": list(block.across)}
            | ({} if block.relaxation == 1 else {"relaxation": dump_fraction(block.relaxation)})
            for block in phase
        ]
        for phase in RuleView(phases.node_radices, phases.phases, 0).canonical.phases
    ]
    return {"node_radices": list(phases.node_radices), "phases": blocks}


Edge = Annotated[Listed[Index], Field(min_length=2, max_length=2)]
EdgeWeighting = Annotated[
    Annotated[Exact, Tag("one")] | Annotated[Listed[Exact], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "one"),
]


class RoundModel(Model):
    """A round over a graph with edges `[source, target]`; a worker's own weight is 1 minus its incoming weights."""

    edges: Listed[Edge]
    weights: EdgeWeighting


class RoundsMember(Model):
    """Rounds of weighted averaging over graphs."""

    rounds: Annotated[Listed[RoundModel], Field(min_length=1)]


GRAPH_MODELS = (RoundsMember,)


def load_rounds(raw: dict[str, Any], cluster: Cluster, place: str) -> tuple[Round, ...]:
    """Build a strategy's rounds from `raw`, its JSON object at path `place`; raise DocumentError for invalid ones."""
    model = validate(RoundsMember, part_of(raw, "rounds"), place)
    return tuple(
        _round(graph, cluster.num_workers, child(child(place, "rounds"), t)) for t, graph in enumerate(model.rounds)
    )


def _round(model: RoundModel, num_workers: int, place: str) -> Round:
    edges = np.array(model.edges, dtype=np.int64).reshape(-1, 2)
    sources, targets = edges[:, 0], edges[:, 1]
    weights = model.weights
    if isinstance(weights, list) and len(weights) != len(edges):
        problem = f"has {len(weights)} entries for {len(edges)} edges; give 1 weight for all or 1 for each edge"
        raise DocumentError(child(place, "weights"), problem)
    _check_edges((edges >= num_workers).any(axis=1), edges, place, f"ranks are 0..{num_workers - 1}")
    _check_edges(
        sources == targets, edges, place, "a worker's weight on itself is what the others leave; leave the edge out"
    )
    order, twice = np.lexsort((sources, targets)), np.zeros(len(edges), dtype=bool)
    twice[order[1:]] = (np.diff(sources[order]) == 0) & (np.diff(targets[order]) == 0)
    _check_edges(twice, edges, place, "is given twice; keep it once")
    if isinstance(weights, list):
        return Round.from_arrays(num_workers, sources, targets, weights, range(len(weights)))
    return Round.from_arrays(num_workers, sources, targets, [weights], np.zeros(len(edges), dtype=np.int32))


def _check_edges(bad: npt.ArrayLike, edges: Whole, place: str, rule: str) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        index = int(where[0])
        source, target = edges[index].tolist()
        raise DocumentError(child(child(place, "edges"), index), f"is {source}→{target}; {rule}")


def dump_rounds(rounds: tuple[Round, ...]) -> dict[str, Any]:
    """Return a JSON object with the only member `rounds`, for a strategy of weighted averaging."""
    return {"rounds": [_dump_round(graph) for graph in rounds]}


def _dump_round(graph: Round) -> dict[str, Any]:
    edges = np.stack([graph.sources, graph.targets], axis=1).tolist()
    used = [dump_fraction(Fraction(weight)) for weight in graph.weights]
    if len(used) == 1:
        return {"edges": edges, "weights": used[0]}
    return {"edges": edges, "weights": [used[index] for index in graph.weight_of.tolist()]}
