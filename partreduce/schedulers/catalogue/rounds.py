"""Catalogue entries whose graph or groups change from round to round."""

from __future__ import annotations

from functools import partial

from partreduce.schedulers.constructions import base_graph, per_round, preconditions
from partreduce.schedulers.entry import SEED, Entry, Parameter
from partreduce.schedulers.rules import grids

K = Parameter(name="k", default=1, minimum=1, maximum=64, help="most partners of a worker in a round")

PER_ROUND = (
    Entry(
        name="one-peer-hypercube",
        summary="Pairs along one dimension a phase: exact consensus in log₂ n phases with one partner each.",
        source="Shi, Li, Johansson, Johansson, Finite-time convergent gossiping, IEEE/ACM ToN 2016",
        kind="groups",
        make=grids.one_peer_hypercube,
        unsupported_reason=partial(preconditions.power_of_two, ", or use base-k-plus-1"),
        condition="n = 2^d",
        degree="1",
        period="log₂ n",
        metrics="exact (contraction 0)",
    ),
    Entry(
        name="one-peer-exponential",
        summary="One message a round, 1, 2, 4, … workers further on in turn; exact when n is a power of two.",
        source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
        kind="rounds",
        make=per_round.one_peer_exponential,
        degree="1",
        period="⌈log₂ n⌉",
        metrics="exact iff n = 2^c; else contraction e.g. 0.2023 (n = 5), 0.125 (7), 0.1916 (100)",
    ),
    Entry(
        name="base-k-plus-1",
        summary="Exact consensus for any n with at most k partners a round; the shortest published for one vector.",
        source="Takezawa et al., Beyond exponential graph, NeurIPS 2023",
        kind="rounds",
        make=base_graph.base_k_plus_1,
        unsupported_reason=base_graph.base_unsupported_reason,
        parameters=(K,),
        degree="≤ k",
        period="≤ 2 log_{k+1} n + 2",
        metrics="exact (contraction 0); k = 1: 5 rounds for n = 5 and 7, 11 for 100",
    ),
    Entry(
        name="moshpit-grid",
        summary="Averages along the axes of a grid that may have empty cells: any n, exact when the grid is full.",
        source="Ryabinin et al., Moshpit SGD, NeurIPS 2021",
        kind="groups",
        make=per_round.moshpit_grid,
        unsupported_reason=per_round.moshpit_grid_unsupported_reason,
        parameters=(Parameter(name="side", minimum=2, help="workers along an axis; auto: the least square that fits"),),
        condition="any n; exact iff n = side^d",
        degree="side − 1",
        period="d, the number of axes",
        metrics="exact (contraction 0) when the grid is full",
    ),
    Entry(
        name="random-partitions",
        summary="Random groups of a given size in each phase: a rate near 1/√g per phase whatever n.",
        source="Prague's random groups (ASPLOS 2020); Ryabinin et al., Moshpit SGD, NeurIPS 2021",
        kind="groups",
        make=per_round.random_partitions,
        unsupported_reason=per_round.random_partitions_unsupported_reason,
        parameters=(
            Parameter(name="group", minimum=2, help="workers in a group; auto: 4, or n if that is less"),
            Parameter(
                name="phases", default=8, minimum=1, maximum=10_000, help="phases drawn; they repeat after the last"
            ),
            SEED,
        ),
        degree="g − 1",
        period="phases",
        metrics="expected factor of the squared distance per phase: (n − g)/(g(n − 1)) when g divides n",
    ),
)
