"""The mixing matrices W of a schedule's rounds, x ← W x: in floats, in fractions and as linear operators.

Row i of W holds the weights of all workers in worker i's new parameters, column j the weights of worker j's parameters.
Group means with factors `relaxation` are symmetric with unit row and column sums; a round of weighted averaging has
unit row sums, and unit column sums only when it is doubly stochastic.

`Operators` holds the rounds of a period, on workers or on a smaller space.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partreduce.topo.arithmetic.exact_matrices import ExactMatrix
from partreduce.topo.errors import InputError
from partreduce.topo.fields import Flags, Floats, Whole
from partreduce.topo.phase import ONE, Phase
from partreduce.topo.round import MixingStep, Round

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator

    from partreduce.topo.rule import RulePhase, RuleView
    from partreduce.topo.schedule import Schedule


MAX_DENSE_WORKERS = 20_000
MAX_EXACT_WORKERS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """The mixing matrices of one period, in order: for each of C classes of values, g×g matrices over *places*.

    In general a place is a worker, and C = 1. For a rule, whose groups follow from the digits of a node's index
    (`topo.rule`), the workers' values are split into classes: a class holds the Fourier components, over node indices,
    that vary along one set of digits. Averaging maps each class to itself, by a matrix over the local ranks, which are
    then the places. Workers, or local ranks, that are in the same groups in every round may share a place.

    `rounds` are groups of places, or graphs. `survives` has an array (groups, C) per round, False where a group's mean
    is zero on a class because the group averages over a digit along which the class varies; None if places are workers.
    `counts` (g,) is the number of workers, or of local ranks, of each place; None means 1 each.

    Raises:
        ScheduleError: two groups of one round share a worker.
    """

    rounds: tuple[MixingStep, ...]
    survives: tuple[Flags, ...] | None = None
    counts: Whole | None = None

    def __post_init__(self) -> None:
        for step in set(self.rounds):
            if isinstance(step, Phase):
                step.labels()

    @classmethod
    def of_rule(
        cls, rule: RuleView, classes: Sequence[Collection[int]], places: Sequence[Sequence[int]] | None = None
    ) -> Operators:
        """Build the operators of a rule (groups given by node digits) on some classes of values.

        Each entry of `classes` lists the node digits along which that class varies, each of `places` the local ranks
        of a place, which must be in the same blocks in every phase; by default every local rank is a place.
        O(phases · blocks · classes).
        """
        home = np.arange(rule.workers_per_node, dtype=np.int32)
        if places is not None:
            for place, ranks in enumerate(places):
                home[list(ranks)] = place
        made = {phase: _of_blocks(phase, classes, home) for phase in set(rule.phases)}
        rounds, survives = zip(*(made[phase] for phase in rule.phases), strict=True)
        return cls(rounds, survives, None if places is None else np.array([len(place) for place in places]))

    @property
    def size(self) -> int:
        return self.rounds[0].num_workers

    def apply(self, index: int, values: Floats) -> Floats:
        """Return W · `values` for W of round `index` and values of g places, (g, ...), or (g, C, ...) with C classes.

        O(values) for groups, O(edges) for graphs.
        """
        step = self.rounds[index]
        if isinstance(step, Round):
            return np.asarray(mixing_sparse(step) @ values)
        return step.averaged(values, None if self.survives is None else self.survives[index], self.counts)

    def matrices(self) -> Floats:
        """Return the matrices of all T rounds on all C classes of g places, shape (T, C, g, g).

        The basis is orthonormal (a place is scaled by the root of its count), so matrices of groups are symmetric.
        """
        size, num_classes = self.size, 1 if self.survives is None else self.survives[0].shape[1]
        roots = np.ones(size) if self.counts is None else np.sqrt(self.counts)
        units: Floats = np.broadcast_to(np.diag(1 / roots)[:, None], (size, num_classes, size))
        result, made = np.empty((len(self.rounds), num_classes, size, size)), dict[object, int]()
        for t, step in enumerate(self.rounds):
            first = made.setdefault(step if self.survives is None else id(self.survives[t]), t)
            if first < t:
                result[t] = result[first]
            elif isinstance(step, Round):
                result[t, 0] = mixing_matrix(step)
            else:
                result[t] = (self.apply(t, units) * roots[:, None, None]).swapaxes(0, 1)
        return result

    def exact(self, index: int, which: int = 0, onto: ExactMatrix | None = None) -> ExactMatrix:
        """Return W · `onto` in fractions, with W that of round `index` on class number `which`; W if `onto` is None.

        O(entries of `onto`); for graphs O(edges · columns of `onto`).
        """
        step = self.rounds[index]
        onto = ExactMatrix.identity(self.size) if onto is None else onto
        if isinstance(step, Round):
            return onto.drawn(step.edges())
        alive = [True] * len(step) if self.survives is None else self.survives[index][:, which].tolist()
        counts = None if self.counts is None else self.counts.tolist()
        return onto.averaged(((g.members, g.relaxation, lives) for g, lives in zip(step, alive, strict=True)), counts)

    def exact_period(self, which: int = 0, periods: int = 1) -> ExactMatrix:
        """Return (W_T … W_1)^`periods` in fractions on class number `which`, for the T rounds of a period."""
        product = ExactMatrix.identity(self.size)
        for t in range(len(self.rounds) * periods):
            if product.is_zero():
                break
            product = self.exact(t % len(self.rounds), which, product)
        return product

    def support(self) -> Flags:
        """Return a Boolean matrix; entry [i, j]: whether worker i's model after a period depends on j's before it.

        The rounds must be graphs without negative weights.
        """
        result = np.eye(self.size, dtype=np.bool_)
        for step in self.rounds:
            assert isinstance(step, Round), "asked of graphs"
            entries = np.eye(self.size, dtype=np.float32)
            entries[step.targets, step.sources] = np.array([weight > 0 for weight in step.weights])[step.weight_of]
            for worker, total in step.taken().items():
                entries[worker, worker] = total < 1
            result = entries @ result.astype(np.float32) > 0
        return result

    def period_operator(self, start: int = 0) -> LinearOperator:
        """Return the product of a period's rounds, beginning with round `start`, as scipy's LinearOperator.

        It applies one round after another and never forms the product.
        """
        from scipy.sparse.linalg import LinearOperator

        order = [(start + t) % len(self.rounds) for t in range(len(self.rounds))]
        graphs = {step: mixing_sparse(step) for step in set(self.rounds) if isinstance(step, Round)}

        def through(values: Floats, indices: Sequence[int], *, turned: bool) -> Floats:
            for step in (self.rounds[t] for t in indices):
                if isinstance(step, Round):
                    values = (graphs[step].T if turned else graphs[step]) @ values
                else:  # group means are their own transpose
                    values = step.averaged(values)
            return values

        def forward(values: Floats) -> Floats:
            return through(values, order, turned=False)

        def backward(values: Floats) -> Floats:
            return through(values, order[::-1], turned=True)

        shape = (self.size, self.size)
        return LinearOperator(shape, forward, backward, forward, np.float64, backward)


def _of_blocks(
    phase: RulePhase, classes: Sequence[Collection[int]], home: npt.NDArray[np.int32]
) -> tuple[Phase, Flags]:
    """Return a rule's phase as groups of places, one per block, and `Operators.survives` of it, shape (blocks, C).

    `home` is the place of every local rank, `classes` the node digits along which each of C classes varies.
    """
    groups = sorted(
        (np.unique(home[list(block.local)]).tolist(), block.relaxation, block.across)
        for block in phase
        if block.makes_groups
    )
    members = np.array([place for places, _, _ in groups for place in places], dtype=np.int32)
    factors = tuple(relaxation for _, relaxation, _ in groups) if any(r != 1 for _, r, _ in groups) else None
    found = Phase.from_arrays(int(home.max()) + 1, members, [len(places) for places, _, _ in groups], factors)
    alive = [[not set(digits) & set(across) for digits in classes] for _, _, across in groups]
    return found, np.array(alive, dtype=np.bool_).reshape(len(groups), len(classes))


def mixing_matrix(step: MixingStep) -> Floats:
    """Return the dense mixing matrix of a phase or round, (n, n); InputError above 20,000 workers. O(n²)."""
    _check_size(step.num_workers, MAX_DENSE_WORKERS, "use Operators.period_operator")
    if isinstance(step, Phase):
        return step.apply(np.eye(step.num_workers))
    matrix = np.zeros((step.num_workers, step.num_workers))
    np.fill_diagonal(matrix, own_weights(step))
    matrix[step.targets, step.sources] = step.edge_weights()
    return matrix


def own_weights(graph: Round) -> Floats:
    """Return the weight that each worker gives itself, shape (n,). O(edges)."""
    given = np.bincount(graph.targets, weights=graph.edge_weights(), minlength=graph.num_workers)
    return np.asarray(1.0 - given, dtype=np.float64)


def first_column(graph: Round) -> Floats:
    """Return the first column of a graph's mixing matrix: the weights of worker 0, shape (n,). O(edges)."""
    column, away = np.zeros(graph.num_workers), graph.sources == 0
    column[0] = own_weights(graph)[0]
    column[graph.targets[away]] = graph.edge_weights()[away]
    return column


def mixing_sparse(graph: Round) -> csr_array:
    """Return the mixing matrix of a graph in compressed sparse rows. O(edges)."""
    from scipy.sparse import coo_array, csr_array, diags_array

    moves = coo_array((graph.edge_weights(), (graph.targets, graph.sources)), shape=(graph.num_workers,) * 2)
    return csr_array(moves + diags_array(own_weights(graph)))


def exact_product(steps: Sequence[MixingStep]) -> ExactMatrix:
    """Return the exact product W_T … W_1 of phases or rounds, listed from W_1; InputError above 2,000 workers.

    O(T · n · entries).
    """
    _check_size(steps[0].num_workers, MAX_EXACT_WORKERS, "rules have exact_consensus_distance, whatever their size")
    return Operators(tuple(steps)).exact_period()


def period_product(schedule: Schedule, start: int = 0) -> Floats:
    """Return the dense product W_{s+T−1} … W_{s+1} W_s of a period from phase s = `start`, shape (n, n).

    InputError above 20,000 workers. The strategy must have fixed phases or rounds. O(T · entries · n).
    """
    operators = Operators(schedule.steps())
    _check_size(schedule.num_workers, MAX_DENSE_WORKERS, "use Operators.period_operator")
    product = np.eye(schedule.num_workers)
    for t in range(len(operators.rounds)):
        product = operators.apply((start + t) % len(operators.rounds), product)
    return product


def relaxations(schedule: Schedule) -> set[Fraction]:
    """Return the distinct relaxations (`Group`) of a period's groups; empty for strategies without fixed groups."""
    if (rule := schedule.rule()) is not None:
        return {block.relaxation for phase in rule.phases for block in phase if block.makes_groups}
    phases = schedule.phased.steps(schedule.cluster) if schedule.is_phased else ()
    return {factor for phase in phases for factor in phase.relaxation or (ONE,)}


def may_lengthen(schedule: Schedule) -> bool:
    """Whether a group has a relaxation (`Group`) outside 0..2, so that averaging may enlarge differences."""
    return any(not 0 <= factor <= 2 for factor in relaxations(schedule))


def is_doubly_stochastic(step: MixingStep) -> bool:
    """Whether rows *and* columns of the step's mixing matrix sum to 1 exactly; its entries may be negative."""
    if isinstance(step, Phase):
        step.labels()
        return True
    return not step.surplus()


def has_negative_entries(step: MixingStep) -> bool:
    """Whether the mixing matrix has an entry < 0, from a relaxation > |G|/(|G|−1), an edge or a worker's own weight."""
    if isinstance(step, Phase):
        if step.relaxation is None:
            return False
        return any(r * (k - 1) > k for r, k in zip(step.relaxation, step.sizes.tolist(), strict=True))
    return any(weight < 0 for weight in step.weights) or step.own_weight() < 0


def _check_size(n: int, limit: int, way_out: str) -> None:
    if n > limit:
        raise InputError(f"mixing matrix: {n} workers; at most {limit} are held as one matrix; {way_out}")
