"""Another graph or other groups in each round."""

from __future__ import annotations

from partreduce.schedulers.constructions import base_graph, moshpit, shifts, sizes
from partreduce.schedulers.entry import SEED, Entry, Parameter
from partreduce.schedulers.rules import grids

ROUNDS = Parameter(
    name="rounds", default=16, minimum=1, maximum=10_000, help="rounds drawn; they repeat after the last"
)
K = Parameter(name="k", default=1, minimum=1, maximum=64, help="most partners of a worker in a round")

PER_ROUND = (
    Entry(
        name="one-peer-hypercube",
        summary="Pairs along one dimension a phase: exact consensus in log₂ n phases with one partner each.",
        source="Shi, Li, Johansson, Johansson, Finite-time convergent gossiping, IEEE/ACM ToN 2016",
        kind="groups",
        make=grids.one_peer_hypercube,
        refuse=sizes.power_of_two(", or use base-k-plus-1"),
        condition="n = 2^d",
        degree="1",
        period="log₂ n",
        figures="exact (contraction 0)",
    ),
    Entry(
        name="one-peer-exponential",
        summary="One message a round, 1, 2, 4, … workers further on in turn; exact when n is a power of two.",
        source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
        kind="rounds",
        make=shifts.one_peer_exponential,
        degree="1",
        period="⌈log₂ n⌉",
        figures="exact iff n = 2^c; else contraction e.g. 0.2023 (n = 5), 0.125 (7), 0.1916 (100)",
    ),
    Entry(
        name="base-k-plus-1",
        summary="Exact consensus for any n with at most k partners a round; the shortest published for one vector.",
        source="Takezawa et al., Beyond exponential graph, NeurIPS 2023",
        kind="rounds",
        make=base_graph.base_k_plus_1,
        refuse=base_graph.base_refusal,
        parameters=(K,),
        degree="≤ k",
        period="≤ 2 log_{k+1} n + 2",
        figures="exact (contraction 0); k = 1: 5 rounds for n = 5 and 7, 11 for 100",
    ),
    Entry(
        name="simple-base-k-plus-1",
        summary="As base-k-plus-1 without its use of small prime factors; never shorter.",
        source="Takezawa et al., Beyond exponential graph, NeurIPS 2023",
        kind="rounds",
        make=base_graph.simple_base_k_plus_1,
        refuse=base_graph.base_refusal,
        parameters=(K,),
        degree="≤ k",
        period="≤ 2 log_{k+1} n + 2",
        figures="exact (contraction 0)",
    ),
    Entry(
        name="moshpit-grid",
        summary="Averages along the axes of a grid that may have empty cells: any n, exact when the grid is full.",
        source="Ryabinin et al., Moshpit SGD, NeurIPS 2021",
        kind="groups",
        make=moshpit.moshpit_grid,
        refuse=moshpit.moshpit_grid_refusal,
        parameters=(Parameter(name="side", minimum=2, help="workers along an axis; auto: the least square that fits"),),
        condition="any n; exact iff n = side^d",
        degree="side − 1",
        period="d, the number of axes",
        figures="exact (contraction 0) when the grid is full",
    ),
    Entry(
        name="random-partitions",
        summary="Random groups of a given size in each phase: a rate near 1/√g per phase whatever n.",
        source="Prague's random groups (ASPLOS 2020); Ryabinin et al., Moshpit SGD, NeurIPS 2021",
        kind="groups",
        make=moshpit.random_partitions,
        refuse=moshpit.random_partitions_refusal,
        parameters=(
            Parameter(name="group", minimum=2, help="workers in a group; auto: 4, or n if that is less"),
            Parameter(
                name="phases", default=8, minimum=1, maximum=10_000, help="phases drawn; they repeat after the last"
            ),
            SEED,
        ),
        degree="g − 1",
        period="phases",
        figures="expected factor of the squared distance per phase: (n − g)/(g(n − 1)) when g divides n",
    ),
    Entry(
        name="od-equidyn",
        summary="One random shift a round, directed: one message a worker and a rate that does not depend on n.",
        source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
        kind="rounds",
        make=shifts.od_equidyn,
        refuse=shifts.equidyn_refusal,
        parameters=(
            ROUNDS,
            SEED,
        ),
        degree="1",
        period="rounds",
        figures="expected factor of the squared distance per round: 1/2 − 1/(2n)",
    ),
    Entry(
        name="ou-equidyn",
        summary="One random matching of workers a fixed distance apart a round: undirected, one partner each.",
        source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
        kind="rounds",
        make=shifts.ou_equidyn,
        refuse=shifts.equidyn_refusal,
        parameters=(
            ROUNDS,
            SEED,
        ),
        degree="1",
        period="rounds",
        figures="a rate that does not depend on n",
    ),
    Entry(
        name="sgp",
        summary="Exponential hops forward and back in turn: directed, one message a round, any n.",
        source="Assran et al., Stochastic gradient push for distributed deep learning, ICML 2019",
        kind="rounds",
        make=shifts.sgp,
        refuse=shifts.sgp_refusal,
        parameters=(
            Parameter(
                name="variant",
                kind="text",
                default="alternating",
                choices=("alternating", "bipartite"),
                help="alternating: ±2^k; bipartite: ±(1 + 2^k), even ranks with odd ranks",
            ),
        ),
        condition="any n; bipartite: n even",
        degree="1",
        period="up to 2⌈log₂ n⌉",
    ),
    Entry(
        name="gossipgrad",
        summary="Dissemination in log₂ n rounds; shuffled virtual ranks spread what each worker learns.",
        source="Daily et al., GossipGraD: scalable deep learning using gossip communication, 2018",
        kind="rounds",
        make=shifts.gossipgrad,
        refuse=shifts.gossipgrad_refusal,
        parameters=(
            Parameter(
                name="sweeps", default=2, minimum=1, maximum=1000, help="sweeps in a period; the first is unshuffled"
            ),
            SEED,
        ),
        degree="1",
        period="sweeps × ⌈log₂ n⌉",
        figures="exact for n = 2^c",
    ),
)
