"""Reading `contingencies`: what survivors run when workers are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from .averages import Average
from .refusal import require
from .strict_json import as_choice, as_integers, as_list, as_object

MAX_CONTINGENCIES = 2**16

Loss = tuple[int, ...]
"""The lost workers, ascending."""

Form = Literal["groups", "rule"]


class Contingency(NamedTuple):
    """`remaining` are the schedule's groups without the lost, `all` is one group of all survivors in every round.

    Otherwise the survivors have phases of their own: listed `groups`, or a `rule` with these radices, on nodes of so
    many workers.
    """

    lost: Loss
    form: Literal["remaining", "all", "groups", "rule"]
    phases: list[list[Average]]
    radices: list[int]
    size: int


def read_contingencies(
    raw: dict[str, Any],
    nodes: Callable[[], Iterable[Sequence[int]]],
    num_workers: int,
    read_phases: Callable[[dict[str, Any], int, int, int, str], tuple[Form, list[int], list[list[Average]]]],
) -> list[Contingency]:
    """The list under `contingencies`, which is brought into canonical form in place.

    `nodes` lists the workers of each node, `read_phases(entry, survivors, nodes, workers of each or 0, place)` reads
    phases as a strategy has them.
    """
    listed = as_list(raw["contingencies"], "contingencies")
    require(0 < len(listed) <= MAX_CONTINGENCIES, "contingencies", f"has 1 to {MAX_CONTINGENCIES}")
    found = []
    for number, entry in enumerate(listed):
        place = f"contingencies[{number}]"
        as_object(entry, place, ("lost",), ("groups", "phases", "node_radices"))
        lost = as_integers(entry["lost"], f"{place}.lost", 0, num_workers)
        lost.sort()
        require(lost and len(set(lost)) == len(lost), f"{place}.lost", "names 1 worker or more, each once")
        require(num_workers - len(lost) >= 2, f"{place}.lost", "leaves 2 workers or more")
        groups = entry.pop("groups", "remaining")
        as_choice(groups, f"{place}.groups", ("remaining", "all"))
        is_static = raw["strategy"]["kind"] == "static"
        if "phases" in entry:
            require(is_static and groups == "remaining", place, "phases are for static, and in the place of groups")
            num_nodes, size = _survivors(nodes(), frozenset(lost))
            form, radices, phases = read_phases(entry, num_workers - len(lost), num_nodes, size, place)
            found.append(Contingency(tuple(lost), form, phases, radices, size if form == "rule" else 0))
            continue
        require("node_radices" not in entry, place, "radices go with phases")
        require(is_static or groups == "remaining", place, "All-Reduce goes on with all who are left")
        if groups == "all":
            entry["groups"] = groups
        found.append(Contingency(tuple(lost), groups, [], [], 0))
    order = sorted(range(len(listed)), key=lambda at: (len(found[at].lost), found[at].lost))
    losses = [found[at].lost for at in order]
    require(len(set(losses)) == len(losses), "contingencies", "a loss stands in one of them")
    raw["contingencies"] = [listed[at] for at in order]
    return [found[at] for at in order]


def _survivors(nodes: Iterable[Sequence[int]], lost: frozenset[int]) -> tuple[int, int]:
    """How many nodes are left, and the workers of each; 0 unless all have as many, in the order of ranks."""
    kept = [node for node in ([worker for worker in node if worker not in lost] for node in nodes) if node]
    ranks = [worker for node in kept for worker in node]
    sizes = set(map(len, kept))
    return len(kept), sizes.pop() if len(sizes) == 1 and ranks == sorted(ranks) else 0
