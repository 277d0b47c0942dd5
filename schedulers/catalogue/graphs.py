"""Fixed graphs: one round that repeats. The functions that draw them are in `topo.graphs`, their weights too."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import log
from typing import TYPE_CHECKING

from preduce.schedulers.constructions import sizes
from preduce.schedulers.constructions.matcha import likely_connected
from preduce.schedulers.constructions.shifts import equistatic, equistatic_refusal
from preduce.schedulers.entry import SEED, Entry, Parameter
from preduce.schedulers.factors import ceil_log2
from preduce.topo.graphs.classic import complete, grid, hypercube, ring, star, torus
from preduce.topo.graphs.directed import de_bruijn, exponential, kautz
from preduce.topo.graphs.hop import double_ring, hop_figure_21, ring_based
from preduce.topo.graphs.random_graphs import erdos_renyi, random_regular
from preduce.topo.graphs.weights import METHODS, constant, weigh
from preduce.topo.strategies.neighbor import Neighbor

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.topo.cluster import Cluster
    from preduce.topo.graphs.base import Graph

MAX_COMPLETE = 5000

WEIGHTS = Parameter(
    name="weights", kind="text", default="metropolis", choices=tuple(METHODS), help="how edges are weighed"
)


def weighed(graph_of: Callable[..., Graph]) -> Callable[..., Neighbor]:
    """What builds the graph `graph_of(n, **parameters)` over all workers in rank order, weighed as `weights` says."""

    def make(cluster: Cluster, *, weights: str, **parameters: object) -> Neighbor:
        return Neighbor(rounds=(weigh(graph_of(cluster.num_workers, **parameters), weights),))

    return make


def _rectangular(graph_of: Callable[[int, int], Graph], least: int) -> Callable[..., Graph]:
    """A graph of rows and columns for n workers: of the given shape, else as square as possible."""

    def of_size(num_workers: int, shape: tuple[int, ...] | None) -> Graph:
        chosen = shape or sizes.sides(num_workers, least)
        assert chosen is not None
        return graph_of(chosen[0], chosen[1])

    return of_size


def _hypercube(num_workers: int) -> Graph:
    return hypercube(ceil_log2(num_workers))


def _figure_21(num_workers: int, setting: str) -> Graph:
    assert num_workers == 8
    return hop_figure_21(setting)


def _figure_21_refusal(cluster: Cluster, **_: object) -> str | None:
    """The figure shows 8 workers."""
    if cluster.num_workers == 8:
        return None
    return f"the figure shows 8 workers, not {cluster.num_workers}; use ring-based for other sizes"


def _complete_refusal(cluster: Cluster, **_: object) -> str | None:
    """A complete graph has n²/2 edges."""
    count = cluster.num_workers
    if count <= MAX_COMPLETE:
        return None
    return f"{count} workers have {count * (count - 1) // 2} edges; use allreduce, the same mean with less traffic"


def _de_bruijn(cluster: Cluster, base: int | None) -> Neighbor:
    """Weight 1/base on every edge i → base·i + a mod n."""
    chosen = sizes.smallest_base(cluster.num_workers) if base is None else base
    length = sizes.exponent(cluster.num_workers, chosen)
    assert length is not None
    return Neighbor(rounds=(constant(de_bruijn(chosen, length), Fraction(1, chosen)),))


def _kautz(cluster: Cluster, degree: int | None) -> Neighbor:
    """Weight 1/degree on every edge, none on oneself."""
    shape = sizes.kautz_shape(cluster.num_workers, degree)
    assert shape is not None
    return Neighbor(rounds=(constant(kautz(*shape), Fraction(1, shape[0])),))


def _random_regular_refusal(cluster: Cluster, degree: int, **_: object) -> str | None:
    """Degree < n and n·degree even."""
    count = cluster.num_workers
    if degree >= count:
        return f"degree {degree} needs more than {degree} workers; the largest degree here is {count - 1}"
    if count * degree % 2:
        near = degree + 1 if degree + 1 < count else degree - 1
        return f"{count} workers of degree {degree} have half an edge too many; use an even degree such as {near}"
    return None


def _erdos_renyi(num_workers: int, probability: float | None, seed: int) -> Graph:
    return erdos_renyi(num_workers, likely_connected(num_workers) if probability is None else probability, seed)


def _erdos_renyi_refusal(cluster: Cluster, probability: float | None, **_: object) -> str | None:
    """Too small a probability leaves the graph in pieces."""
    threshold = log(cluster.num_workers) / cluster.num_workers
    if probability is not None and probability < 0.5 * threshold:
        return f"probability {probability:g} leaves the graph in pieces; use more than ln n / n = {threshold:.4f}"
    return None


_graph = partial(Entry, kind="graph", period="1")

GRAPHS = (
    _graph(
        name="ring",
        summary="Two neighbours a worker: the least traffic of all fixed graphs, and the slowest consensus.",
        source="Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017",
        make=weighed(ring),
        refuse=sizes.at_least(3, "a ring has at least 3 workers; use allreduce for 2"),
        parameters=(WEIGHTS,),
        condition="n ≥ 3",
        degree="2",
        figures="slem gap 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²)",
    ),
    _graph(
        name="ring-based",
        summary="A ring whose workers also hear from the most distant worker.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
        make=weighed(ring_based),
        refuse=sizes.multiple_of(2, least=4, called="an even number ≥ 4"),
        parameters=(WEIGHTS,),
        condition="n even, ≥ 4",
        degree="3",
        figures="n = 8: hop gap 2/3, with self-loops 1/2; n = 16: hop gap 0.1953",
    ),
    _graph(
        name="double-ring",
        summary="Two ring-based graphs joined worker to worker.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
        make=weighed(double_ring),
        refuse=sizes.multiple_of(4, least=8, called="a multiple of 4 from 8 on"),
        parameters=(WEIGHTS,),
        condition="n divisible by 4, ≥ 8",
        degree="4",
    ),
    _graph(
        name="hop-figure-21",
        summary="Three graphs over 8 workers on machines of 4, 2 and 2, with gaps that the paper prints.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019, Figure 21",
        make=weighed(_figure_21),
        refuse=_figure_21_refusal,
        parameters=(
            Parameter(
                name="setting",
                kind="text",
                default="a",
                choices=("a", "b", "c"),
                help="a: ring-based; b: one gateway worker a machine; c: links at different workers",
            ),
            WEIGHTS,
        ),
        condition="n = 8",
        degree="3 (a), up to 5 (b), up to 4 (c)",
        figures="hop gaps 2/3, 0.268192, 0.268848",
    ),
    _graph(
        name="torus",
        summary="Workers on a grid that closes in both directions: four neighbours each.",
        source="folklore; figures as in Ying et al., NeurIPS 2021",
        make=weighed(_rectangular(torus, 3)),
        refuse=sizes.rectangle(3),
        parameters=(
            Parameter(name="shape", kind="ints", help="rows x columns; auto: as square as possible"),
            WEIGHTS,
        ),
        condition="n = a·b with a, b ≥ 3",
        degree="4",
        figures="slem gap 1 − max |1 + 2cos(2πi/a) + 2cos(2πj/b)|/5",
    ),
    _graph(
        name="grid",
        summary="Workers on a rectangle, with the neighbours that exist.",
        source="folklore; figures as in Ying et al., NeurIPS 2021",
        make=weighed(_rectangular(grid, 2)),
        refuse=sizes.rectangle(2),
        parameters=(
            Parameter(name="shape", kind="ints", help="rows x columns; auto: as square as possible"),
            WEIGHTS,
        ),
        condition="n = a·b with a, b ≥ 2",
        degree="up to 4",
    ),
    _graph(
        name="star",
        summary="Everybody talks to worker 0 only; what a parameter server looks like as a graph.",
        source="folklore",
        make=weighed(star),
        parameters=(WEIGHTS,),
        condition="any n",
        degree="n − 1 at the hub, 1 elsewhere",
        figures="Metropolis weights: contraction 1 − 1/n",
    ),
    _graph(
        name="complete",
        summary="Everybody talks to everybody: the mean in one round, at n − 1 messages a worker.",
        source="folklore",
        make=weighed(complete),
        refuse=_complete_refusal,
        parameters=(WEIGHTS,),
        condition="n ≤ 5000",
        degree="n − 1",
        figures="exact (contraction 0)",
    ),
    _graph(
        name="hypercube",
        summary="Neighbours differ in one bit: logarithmic degree and gap, all edges at once.",
        source="folklore; figures as in Ying et al., NeurIPS 2021",
        make=weighed(_hypercube),
        refuse=sizes.power_of_two(),
        parameters=(WEIGHTS,),
        condition="n = 2^d",
        degree="log₂ n",
        figures="slem gap 2/(1 + log₂ n)",
    ),
    _graph(
        name="exponential",
        summary="Directed edges to the workers 1, 2, 4, … further on: logarithmic degree, large gap, any n.",
        source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
        make=weighed(exponential),
        parameters=(WEIGHTS,),
        condition="any n",
        degree="⌈log₂ n⌉",
        figures="slem gap 2/(1 + ⌈log₂ n⌉) for even n, larger for odd n",
    ),
    _graph(
        name="de-bruijn",
        summary="A fixed directed graph that reaches the exact mean: log_m n rounds with m edges a worker.",
        source="Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009",
        make=_de_bruijn,
        refuse=sizes.power_of_base,
        parameters=(
            Parameter(name="base", minimum=2, help="m, edges a worker; auto: the smallest of which n is a power"),
        ),
        condition="n = m^L",
        degree="m",
        figures="W^L = J exactly, although ‖W − J‖₂ = 1 for L > 1",
    ),
    _graph(
        name="kautz",
        summary="The largest directed graphs for their degree and diameter; no weight on oneself.",
        source="Kautz 1968; weights as for de Bruijn graphs",
        make=_kautz,
        refuse=sizes.kautz_size,
        parameters=(
            Parameter(name="degree", minimum=2, maximum=64, help="edges a worker; auto: the smallest that fits"),
        ),
        condition="n = d^D + d^(D−1), D ≥ 2",
        degree="d",
        figures="|λ₂| = 1/d; ‖W^t − J‖₂ = 1 for t < D, then d^−(t−D+1)",
    ),
    _graph(
        name="random-regular",
        summary="Every worker has the same number of random neighbours: nearly the largest gap for its degree.",
        source="Friedman 2008 (near-Ramanujan); pairing model of Bollobás 1980",
        make=weighed(random_regular),
        refuse=_random_regular_refusal,
        parameters=(
            Parameter(name="degree", default=4, minimum=2, help="neighbours a worker"),
            SEED,
            WEIGHTS,
        ),
        condition="n·d even, d < n",
        degree="d",
        figures="second singular value about (1 + 2√(d−1))/(d + 1)",
    ),
    _graph(
        name="erdos-renyi",
        summary="Every pair of workers is joined with the same probability.",
        source="Erdős and Rényi 1959",
        make=weighed(_erdos_renyi),
        refuse=_erdos_renyi_refusal,
        parameters=(
            Parameter(
                name="probability",
                kind="float",
                minimum=0,
                maximum=1,
                help="of each edge; auto: 2 ln n / n (at most 1)",
            ),
            SEED,
            WEIGHTS,
        ),
        condition="probability above ln n / n",
        degree="about 2 ln n",
        figures="constant gap with high probability",
    ),
    _graph(
        name="d-equistatic",
        summary="A few random cyclic shifts at once (directed): a gap that does not shrink with n.",
        source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
        make=partial(equistatic, undirected=False),
        refuse=equistatic_refusal,
        parameters=(
            Parameter(name="num_shifts", minimum=1, help="M, shifts drawn; auto: ⌈ln n⌉"),
            SEED,
        ),
        degree="M",
        figures="‖W − J‖₂ < ε with probability 1 − p for M = 8 ln(2n/p)/(3ε²)",
    ),
    _graph(
        name="u-equistatic",
        summary="A few random cyclic shifts at once (undirected): a gap that does not shrink with n.",
        source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
        make=partial(equistatic, undirected=True),
        refuse=equistatic_refusal,
        parameters=(
            Parameter(name="num_shifts", minimum=1, help="M, shifts drawn; auto: ⌈ln n⌉"),
            SEED,
        ),
        degree="2M",
        figures="‖W − J‖₂ < ε with probability 1 − p for M = 8 ln(2n/p)/(3ε²)",
    ),
)
