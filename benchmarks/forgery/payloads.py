"""Decides whether claims about payloads are true: by running a pipeline's queue, moving workers, and rounding numbers.

It shares nothing with prover or checker. The queue is a list of numbers for gradients, equality is checked on workers
that move at random, and errors of codecs on sums that are rounded stage by stage, of numbers that lose much.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.forgery.dense import worker_steps
from benchmarks.forgery.runs import (
    TOPS,
    delay_of,
    has_stages,
    mixes_late,
    nodes_of,
    outer_of,
    takes_gradients,
    turns_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from benchmarks.forgery.dense import Groups, Matrix

    Numbers = npt.NDArray[np.float64]

TRANSPORT = {"algorithm": "ring", "codec": "none", "where": "all", "block": 256, "error_feedback": False}


def _equal_replicas(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    if listed is None or turns_of(raw)[0] > 1 or entry["of"] != ("gradients" if takes_gradients(raw) else "parameters"):
        return False
    rng, n, period = np.random.default_rng(1), len(matrices[0]), len(matrices)
    values = np.zeros(n)
    flying = [np.zeros(n)] * delay_of(raw)
    outer, outer_params, momentum = outer_of(raw), 0.0, 0.0
    for t in range(3 * period):
        moved = rng.normal(size=n)
        w = matrices[t % period]
        if takes_gradients(raw):
            flying = [*flying, w @ moved]
            values = values + flying.pop(0)
        elif mixes_late(raw):
            values = w @ values + moved
        elif outer and len(listed[t % period]) == 1 and len(listed[t % period][0][0]) == n:
            movement = (values + moved).mean() - outer_params
            momentum = outer["momentum"] * momentum + movement
            outer_params += outer["lr"] * (movement + outer["momentum"] * momentum if outer["nesterov"] else momentum)
            relaxation = listed[t % period][0][1]
            values = (1 - relaxation) * (values + moved) + relaxation * outer_params
        else:
            values = w @ (values + moved)
        if t % period in entry["rounds"] and np.ptp(values) > 1e-9:
            return False
    return bool(entry["rounds"]) and all(0 <= t < period for t in entry["rounds"])


def _outer_consensus(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    """Check against the spectral radius of a period, from each worker's outer parameters and momentum."""
    outer, n = outer_of(raw), len(matrices[0])
    if listed is None or not outer.get("own"):
        return False
    states = np.eye(2 * n)  # a column for each outer parameter and each momentum that is 1 at first
    for phase in listed:
        outer_params, momenta = states[:n].copy(), states[n:].copy()
        for group, _ in phase:
            mean = outer_params[list(group)].mean(axis=0)
            for worker in group:
                movement = mean - outer_params[worker]
                momentum = outer["momentum"] * momenta[worker] + movement
                step = movement + outer["momentum"] * momentum if outer["nesterov"] else momentum
                states[worker], states[n + worker] = outer_params[worker] + outer["lr"] * step, momentum
    states[:n] -= states[:n].mean(axis=0)
    radius = float(np.abs(np.linalg.eigvals(states)).max())
    return float(Fraction(entry["squared"])) >= radius**2 - 1e-9


def rounded_to(numbers: Numbers, digits: int, smallest: float) -> Numbers:
    """Return the nearest numbers with so many binary digits, ties to even, in multiples of `smallest` at least."""
    exponents = np.frexp(numbers)[1] - digits
    units = np.maximum(np.ldexp(1.0, exponents), smallest)
    return np.asarray(np.rint(numbers / units) * units)


def single(numbers: Numbers) -> Numbers:
    return numbers.astype(np.float32).astype(np.float64)


def round_trip(numbers: Numbers, transport: dict[str, Any]) -> Numbers:
    """Return numbers after encoding and decoding by a codec's definition, in float64."""
    if transport["codec"] == "float16":
        return numbers.astype(np.float16).astype(np.float64)
    if transport["codec"] == "bfloat16":
        return rounded_to(numbers, 8, 2.0**-133)
    result, top = np.empty_like(numbers), TOPS[transport["codec"]]
    for start in range(0, len(numbers), transport["block"]):
        part = numbers[start : start + transport["block"]]
        step = np.abs(part).max(initial=0.0) / top
        scaled = part / step if step else np.zeros_like(part)
        result[start : start + transport["block"]] = np.clip(np.rint(scaled), -top, top) * step
    return result


def coded_sum(given: Numbers, nodes: list[int], transport: dict[str, Any], *, staged: bool) -> Numbers:
    """Return the sum of members' numbers, shape [members, count], with the rounding of a codec."""
    exchanged = staged or transport["codec"] in TOPS
    short: Callable[[Numbers], Numbers] = single if exchanged else lambda x: round_trip(x, transport)
    across = transport["where"] == "across-nodes"
    if across and len(set(nodes)) == 1:
        return add_up(list(given), single)
    rows = list(given) if across and staged else [round_trip(row, transport) for row in given]
    if staged:
        rows = [
            round_trip(add_up([row for row, at in zip(rows, nodes, strict=True) if at == node], single), transport)
            for node in sorted(set(nodes))
        ]
    total = add_up(rows, short)
    return round_trip(total, transport) if exchanged else total


def add_up(rows: list[Numbers], rounding: Callable[[Numbers], Numbers]) -> Numbers:
    total = rows[0]
    for row in rows[1:]:
        total = rounding(total + row)
    return total


def bad_inputs(count: int, transport: dict[str, Any]) -> list[Numbers]:
    """Return members' numbers, shape [members, numbers], for which rounding errors are large."""
    rng = np.random.default_rng(3)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(transport["codec"], 2.0**-8)
    first = np.zeros((count, 3))
    first[0], first[1:] = 1.0, unit * (1 - 2.0**-9)
    top = TOPS.get(transport["codec"], 127)
    halves = np.tile(np.concatenate([[top], np.arange(0.5, 40, 1) % top]), (count, 1))
    return [rng.normal(size=(count, 40)), rng.random((count, 40)) * unit + 1, first, first[::-1], halves,
            halves * rng.random((count, 1))]  # fmt: skip


def error_and_size(
    given: Numbers, nodes: list[int], transport: dict[str, Any], *, staged: bool
) -> tuple[Numbers, Numbers]:
    """Return (error of the coded mean, A of the claim) for every number."""
    shares = single(given / len(given))
    seen = coded_sum(shares, nodes, transport, staged=staged)
    sizes = np.abs(given)
    if transport["codec"] in TOPS:
        for start in range(0, given.shape[1], transport["block"]):
            part = sizes[:, start : start + transport["block"]]
            part[:] = part.max(axis=1, keepdims=True)
    return np.abs(seen - given.mean(axis=0)), sizes.mean(axis=0)


def _codec_error(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, _: list[Matrix]) -> bool:
    transport = TRANSPORT | raw["strategy"].get("transport", {})
    if listed is None or transport["codec"] == "none":
        return False
    node_of = nodes_of(raw)
    groups = {tuple(sorted(members)) for phase in listed for members, _ in phase}
    if raw["strategy"].get("prologue", 0):
        groups.add(tuple(range(len(node_of))))
    relative, absolute = float(Fraction(entry["relative"])), float(Fraction(entry["absolute"]))
    for group in groups:
        nodes = [node_of[worker] for worker in group]
        for given in bad_inputs(len(group), transport):
            error, size = error_and_size(given, nodes, transport, staged=has_stages(raw, group))
            if (error > relative * size + absolute).any():
                return False
    return entry["roundings"] == max(_roundings(raw, transport, group) for group in groups)


def _sent_bytes(entry: dict[str, Any], raw: dict[str, Any], listed: Groups, matrices: list[Matrix]) -> bool:
    """Check against every message of every round, as shares of an operation's payload."""
    transport, (parts, late, _), steps_per_round = (
        TRANSPORT | raw["strategy"].get("transport", {}),
        turns_of(raw),
        max(worker_steps(raw, 1)),
    )
    node_of, n = nodes_of(raw), len(matrices[0])
    if listed is None:
        rounds = [[(s, t, Fraction(1)) for s, t in graph["edges"]] for graph in raw["strategy"]["rounds"]]
    else:
        phases = [[sorted(members) for members, _ in phase if len(members) > 1] for phase in listed]
        phases += [[list(range(n))]] if raw["strategy"].get("prologue", 0) else []
        rounds = [[m for group in phase for m in _messages(group, raw, transport)] for phase in phases]
    worker, node = [Fraction(0)], [Fraction(0)]
    for messages in rounds:
        worker += [sum((b for s, _, b in messages if s == one), Fraction(0)) for one in range(n)]
        out = [(node_of[s], b) for s, t, b in messages if node_of[s] != node_of[t]]
        node += [sum((b for at, b in out if at == one), Fraction(0)) for one in set(node_of)]
    merges = [(turn + 1) * steps_per_round // parts for turn in range(4 * parts)]
    flying = max(sum(end - late <= step < end for end in merges) for step in range(3 * steps_per_round))
    flying = max(1, flying, delay_of(raw))
    each = _width(transport)
    if transport["where"] == "across-nodes":  # a group on one node sends float32, one without stages what is coded
        each = max(Fraction(1), each)
    stated = (Fraction(entry[name]) for name in ("of_worker", "of_node", "in_flight"))
    real = (max(worker), max(node), flying * each)
    return entry["parts"] == parts and all(a == b for a, b in zip(stated, real, strict=True))


def _width(transport: dict[str, Any]) -> Fraction:
    """Return the encoded bytes per byte of float32, counted for 64 blocks, which are whole bytes in every codec."""
    count = transport["block"] * 64
    bits = {"none": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}[transport["codec"]]
    return Fraction(count * bits // 8 + (64 * 4 if transport["codec"] in TOPS else 0), count * 4)


def _messages(group: list[int], raw: dict[str, Any], transport: dict[str, Any]) -> list[tuple[int, int, Fraction]]:
    """Return (source, target, bytes per byte of payload) of one sum."""
    node_of = nodes_of(raw)
    is_inside = transport["where"] == "across-nodes" and len({node_of[worker] for worker in group}) == 1
    width = Fraction(1) if is_inside else _width(transport)
    if not has_stages(raw, tuple(group)):
        exchanges = transport["codec"] in TOPS and not is_inside
        return [*_all_to_all(group, width), *_around(group, width, 1)] if exchanges else _around(group, width, 2)
    found, lanes = [], [[w for w in group if node_of[w] == node] for node in sorted({node_of[w] for w in group})]
    first = Fraction(1) if transport["where"] == "across-nodes" else width
    for members in lanes:
        found += [*_all_to_all(members, first), *_all_to_all(members, width)]
    for shard in zip(*lanes, strict=True):
        found += _around(list(shard), width / len(lanes[0]), 2)
    return found


def _around(group: list[int], width: Fraction, times: int) -> list[tuple[int, int, Fraction]]:
    """Return messages in which each of k parts goes k − 1 steps around the ring, `times` times."""
    part = width / len(group)
    return [(one, following, part) for one, following in zip(group, group[1:] + group[:1], strict=True)
            for _ in range(times * (len(group) - 1))]  # fmt: skip


def _all_to_all(group: list[int], width: Fraction) -> list[tuple[int, int, Fraction]]:
    """Return messages in which every worker sends a part to every other."""
    return [(one, other, width / len(group)) for one in group for other in group if one != other]


def _roundings(raw: dict[str, Any], transport: dict[str, Any], group: tuple[int, ...]) -> int:
    nodes = [nodes_of(raw)[worker] for worker in group]
    across, staged = transport["where"] == "across-nodes", has_stages(raw, group)
    if across and len(set(nodes)) == 1:
        return 0
    if staged or transport["codec"] in TOPS:
        return 3 if staged and not across else 2
    return len(group)


JUDGES = {
    "equal-replicas": _equal_replicas,
    "outer-consensus": _outer_consensus,
    "codec-error": _codec_error,
    "sent-bytes": _sent_bytes,
}
