"""Files from which whole schedules follow: stacks of matrices, Base-(k+1)'s node file, MATCHA's lists of matchings."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from partreduce.schedulers.constructions.matcha import MAX_WORKERS, sampled_matchings
from partreduce.schedulers.imports.adjacency import load_npy, of_matrix
from partreduce.schedulers.imports.base import matrix_round, schedule
from partreduce.schedulers.imports.exact import say
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.reader import parse_json
from partreduce.topo.errors import DocumentError, ScheduleError
from partreduce.topo.graphs.base import Graph
from partreduce.topo.schedule import Schedule

MAX_ROUNDS = 10_000


def is_stack(data: bytes, source: str) -> bool:
    """Whether a NumPy file holds a stack of matrices: three axes.

    Raises:
        DocumentError: no NumPy file.
    """
    return load_npy(data, source).ndim == 3


def read_matrix_stack(data: bytes, source: str, *, cluster: Cluster | None = None) -> Schedule:
    """One mixing matrix a round, as they stand: an array of shape (rounds, n, n), or JSON with it under `w_list`.

    Entry [t, i, j] is what worker i takes from worker j in round t. A round need not connect all.

    Raises:
        DocumentError: another form, or a round that is no square matrix of numbers.
        ScheduleError: entries or rows of a round that are no shares, or a cluster of another size.
    """
    if data.startswith(b"\x93NUMPY"):
        stack = load_npy(data, source)
    else:
        value = parse_json(data, source=source)
        listed = value.get("w_list") if isinstance(value, dict) else None
        try:
            stack = np.array(listed, dtype=np.float64)
        except (TypeError, ValueError):
            raise DocumentError("w_list", "is not a list of matrices of one size", source) from None
    if stack.ndim != 3 or not 1 <= len(stack) <= MAX_ROUNDS:
        shape = "x".join(map(str, stack.shape)) or "empty"
        raise DocumentError("document", f"is {shape}; a stack is 1 to {MAX_ROUNDS} rounds of a square matrix", source)
    rounds = []
    for t, matrix in enumerate(stack):
        try:
            rounds.append(matrix_round(of_matrix(matrix, source)))
        except ScheduleError as error:
            raise ScheduleError(f"{source}: round {t}: {error}") from None
    return schedule(PurePath(source).stem, rounds, cluster)


def read_base_graph(data: bytes, source: str, *, cluster: Cluster | None = None, k: int = 1) -> Schedule:
    """`{"n_nodes": n, "node0": {"node_id": 0, "ip_address": …}, …}` as a Base-(k+1) schedule.

    Workers with one `ip_address` are placed on one node, unless a cluster is given. The file names workers, no rounds:
    those are our construction's. Which the repository's program runs are its `graph.w_list`, see `read_matrix_stack`.

    Raises:
        DocumentError: another form.
        ScheduleError: too few workers for k, or a cluster of another size.
    """
    value = parse_json(data, source=source)
    count = value.get("n_nodes") if isinstance(value, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= 10**6:
        raise DocumentError("n_nodes", "is not a number of workers between 2 and 1000000", source)
    assert isinstance(value, dict)
    nodes: dict[str, list[int]] = {}
    for i in range(count):
        node = value.get(f"node{i}")
        if not isinstance(node, dict) or node.get("node_id", i) != i:
            raise DocumentError(f"node{i}", f"is missing or has another node_id than {i}", source)
        nodes.setdefault(str(node.get("ip_address", i)), []).append(i)
    chosen = Cluster.irregular(list(nodes.values())) if cluster is None else cluster
    if chosen.num_workers != count:
        raise DocumentError("n_nodes", f"is {count}, cluster {chosen} has {chosen.num_workers} workers", source)
    say(
        "the file names workers and no rounds: these are the rounds of our own Base-(k+1) construction; the "
        "repository's may differ, and are read from numpy.save('w.npy', torch.stack(graph.w_list))"
    )
    return build("base-k-plus-1", chosen, k=k)


def read_matcha(
    data: bytes,
    source: str,
    *,
    name: str = "matcha",
    cluster: Cluster | None = None,
    budget: float = 0.5,
    rounds: int = 16,
    seed: int = 0,
) -> Schedule:
    """`[[[0, 1], [2, 3]], [[1, 2]]]`, or that under the key `matchings`: one list of pairs a matching.

    Probabilities and weight are those of MATCHA for the budget; `rounds` draws are made, which then repeat.

    Raises:
        DocumentError: another form, or a worker twice in one matching, which is named.
        ScheduleError: matchings that together leave workers apart.
    """
    value = parse_json(data, source=source)
    matchings = value.get("matchings") if isinstance(value, dict) else value
    if not isinstance(matchings, list) or not matchings:
        raise DocumentError("matchings", "is not a list of lists of pairs", source)
    pairs = [_pairs(matching, f"matchings[{m}]", source) for m, matching in enumerate(matchings)]
    count = 1 + max(max(pair) for matching in pairs for pair in matching)
    if count > MAX_WORKERS:
        raise DocumentError(
            "matchings", f"name {count} workers; MATCHA's program is solved for up to {MAX_WORKERS}", source
        )
    parts = [Graph.undirected(count, [a for a, _ in matching], [b for _, b in matching]) for matching in pairs]
    union = Graph.directed(
        count, np.concatenate([part.sources for part in parts]), np.concatenate([part.targets for part in parts])
    )
    union.require_connected()
    return schedule(name, sampled_matchings(parts, budget, rounds, seed).rounds, cluster)


def _pairs(matching: object, place: str, source: str) -> list[tuple[int, int]]:
    if not isinstance(matching, list) or not matching:
        raise DocumentError(place, "is not a list of pairs", source)
    pairs: list[tuple[int, int]] = []
    seen: set[int] = set()
    for p, pair in enumerate(matching):
        if (
            not (isinstance(pair, list) and len(pair) == 2 and all(type(w) is int and 0 <= w < 10**6 for w in pair))
            or pair[0] == pair[1]
        ):
            raise DocumentError(f"{place}[{p}]", "is not a pair of different ranks", source)
        for worker in pair:
            if worker in seen:
                raise DocumentError(f"{place}[{p}]", f"worker {worker} stands twice in one matching", source)
            seen.add(worker)
        pairs.append((pair[0], pair[1]))
    return pairs
