"""Age bound: a proved lower bound on the consensus distance of every schedule, of any period, within a budget.

The noise of one round that has been averaged by the next a phases contributes ‖W_{t+a−1}…W_t‖² to the consensus
distance, so the consensus distance is the mean over phases of Σ_a F(p_{t−a+1}, …, p_t) with every term ≥ 0. Dropping
ages above `depth` leaves a cost that depends on the last `depth` phases only: with λ times the communication added, its
least long-run average γ(λ) is a minimum mean cycle. Any potential h gives a lower bound on γ, the least of g + h(next)
− h(here) over all edges; value iteration finds a good one. Then consensus distance ≥ γ(λ) − λ · budget for every λ ≥ 0.
Source: Lagrangian duality and Karp's minimum cycle mean in potential form; the truncation in ages is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.alphabet import Alphabet
from partreduce.schedulers.synthesis.clock import Clock

Floats = npt.NDArray[np.float64]

MAX_TABLE = 40_000_000
"""Entries of the largest table of windows that is built."""
LEAST_PRICE, MOST_PRICE = 0.2, 60.0
"""Prices of a full average, in units of consensus distance, between which lines are laid."""
SHALLOW = 2
"""The truncation that always has time: its tables are small."""
NEAR = 4.0
"""How far from a shallower truncation's best price a deeper one's is looked for, as a factor."""
DAMPING = np.float32(0.7)
SAFETY = 5e-6
"""Taken off every bound for the rounding of the single-precision tables, whose entries are below 1."""
LOOKS = 10
"""Iterations over a table that are worth building it."""
PER_PRODUCT = 3e-10
"""Nominal seconds of one product in making a table."""
PER_ENTRY = 4e-9
"""Nominal seconds of one entry of a table in one iteration."""


@dataclass(frozen=True, eq=False)
class AgeTables:
    """`tables[a−1]` (A, …, A), a axes: what noise of age a adds to the consensus distance, oldest phase first."""

    tables: tuple[npt.NDArray[np.float32], ...]
    costs: Floats
    floor: float
    clock: Clock | None = None

    def charge(self, nominal_seconds: float) -> None:
        """Count work for the search's clock, if there is one."""
        if self.clock is not None:
            self.clock.charge(nominal_seconds)

    @property
    def depth(self) -> int:
        return len(self.tables)

    @cached_property
    def _newest_first(self) -> list[npt.NDArray[np.float32]]:
        """The tables with the newest phase in the first axis, (A, 1, …, 1, A, …, A): a short last one is slow."""
        moved = [np.ascontiguousarray(np.moveaxis(table, -1, 0)) for table in self.tables]
        ones = [(1,) * (self.depth - table.ndim) for table in moved]
        return [table.reshape(table.shape[:1] + one + table.shape[1:]) for table, one in zip(moved, ones, strict=True)]

    def edge_costs(self, price: float) -> npt.NDArray[np.float32]:
        """The truncated cost of the newest phase, the first axis, given the depth−1 before it, oldest first.

        Price times its communication is added.
        """
        *younger, oldest = self._newest_first
        total = oldest + (price * self.costs).astype(np.float32).reshape(-1, *(1,) * (self.depth - 1))
        for table in younger:
            total += table
        return total


@dataclass(frozen=True, slots=True)
class DualBound:
    """consensus distance ≥ max over the lines of value − price · budget: for all schedules of the class described."""

    lines: tuple[tuple[float, float], ...]
    depth: int
    described: str = ""

    def at(self, budget: float) -> float:
        """The bound under a communication budget in seconds per step."""
        return max([0.0, *(value - price * budget for price, value in self.lines)])

    def budget_for(self, consensus_distance: float) -> float:
        """No schedule with at most this consensus distance communicates less than this, in seconds per step."""
        return max([0.0, *((value - consensus_distance) / price for price, value in self.lines if price > 0)])


def greatest_depth(size: int) -> int:
    """The deepest truncation whose table fits, at least 1."""
    depth = 1
    while size ** (depth + 1) <= MAX_TABLE and depth < 6:
        depth += 1
    return depth


def age_tables(alphabet: Alphabet, depth: int, expired: Callable[[], bool] = lambda: False) -> AgeTables | None:
    """Tables for plain means and relaxed ones alike, None if the time ran out.

    O(A^depth · C·G²) as one matrix product per age.
    """
    space, size = alphabet.space, len(alphabet)
    scale = np.repeat(space.multiplicity, space.fresh[0].size) / space.num_workers  # (C·G²,)
    weight = alphabet.matrices.swapaxes(-1, -2) @ alphabet.matrices  # (A, C, G, G): WᵀW of the newest phase
    right = (weight.reshape(size, -1) * scale).T.astype(np.float32)  # (C·G², A)
    tables = [np.empty((size,) * age, dtype=np.float32) for age in range(1, depth + 1)]
    tables[0][:] = space.fresh.reshape(1, -1).astype(np.float32) @ right
    for first in range(size if depth > 1 else 0):  # one oldest phase at a time bounds the memory
        if expired():
            return None
        if space.clock is not None:
            space.clock.charge(1e-4 + PER_PRODUCT * size ** (depth - 1) * right.shape[0])
        # What is left of the noise after the age−1 older phases, for all their choices: (A^(age−2), C, G, G).
        covariance = alphabet.matrices[first] @ space.fresh @ alphabet.matrices[first].swapaxes(-1, -2)
        for age in range(2, depth + 1):
            left = covariance.reshape(-1, right.shape[0]).astype(np.float32)  # (A^(age−2), C·G²)
            tables[age - 1][first] = (left @ right).reshape((size,) * (age - 1))
            if age < depth:
                covariance = covariance.reshape(-1, 1, *space.fresh.shape)
                covariance = alphabet.matrices[None] @ covariance @ alphabet.matrices.swapaxes(-1, -2)[None]
    return AgeTables(tuple(tables), alphabet.costs / space.instants, space.floor, space.clock)


class Potential:
    """The last potential found, from which the iteration at the next price starts: a good guess saves most of it."""

    def __init__(self) -> None:
        self.values: npt.NDArray[np.float32] | None = None


def cycle_mean_bound(
    tables: AgeTables,
    price: float,
    expired: Callable[[], bool],
    *,
    guess: Potential | None = None,
    max_iterations: int = 200,
    tolerance: float = 1e-5,
) -> float:
    """A proved lower bound on the least long-run average of the truncated consensus distance + price · communication.

    It holds however early the iteration ends, and is within `tolerance` of the best if it ends by itself.
    """
    # A state is the last depth−1 phases, an edge appends a phase: edges (A, …, A) with depth axes, the appended phase
    # first, and potential with one axis less, which is one number per state.
    edges = tables.edge_costs(price)
    sums = np.empty_like(edges)
    if guess is not None and guess.values is not None:
        potential = guess.values
    else:
        potential = np.zeros(edges.shape[1:], dtype=np.float32)
    best = float(edges.min())
    tables.charge(PER_ENTRY * edges.size * len(tables.tables))
    for _ in range(max_iterations):
        tables.charge(5e-5 + PER_ENTRY * edges.size)
        # The successor of state (p, q, …, r) under phase s is (q, …, r, s); depth 1 has a single state.
        following = np.moveaxis(potential, -1, 0)[:, None] if edges.ndim > 1 else potential
        updated = np.add(edges, following, out=sums).min(axis=0)
        gain = updated - potential
        bound = float(gain.min())
        best = max(best, bound)
        # Undamped iteration would circle for ever where the best cycle is longer than one phase.
        potential = (potential + DAMPING * gain).astype(np.float32)
        potential -= potential.min()
        if float(gain.max()) - bound < tolerance or expired():
            break
    if guess is not None:
        guess.values = potential
    # Each comparison adds two single-precision numbers; their rounding is far below this share of their size.
    rounding = 1e-6 * float(np.abs(edges).max() + potential.max())
    return best + tables.floor - SAFETY - rounding


def least_work(alphabet: Alphabet, depth: int) -> float:
    """Nominal seconds of the tables of one truncation and of the first line laid on them."""
    entry = PER_PRODUCT * alphabet.space.fresh.size + PER_ENTRY * (depth + LOOKS)
    return float(entry * float(len(alphabet)) ** depth)


def dual_bound(
    alphabet: Alphabet,
    expired: Callable[[], bool],
    *,
    depth: int | None = None,
    num_prices: int = 12,
    budgets: Sequence[float] = (),
    affordable: Callable[[float], bool] = lambda _: True,
) -> DualBound | None:
    """Lines of the bound for a range of prices, None if the alphabet is not complete (then nothing is proved).

    For each of `budgets` the price is tuned first (the bound is concave in it), which is where the bound becomes tight.
    Every line holds by itself, so a shallow truncation comes first, whose lines stand when the time is up early.
    """
    if not alphabet.complete:
        return None
    full = alphabet.full_average()
    scale = float(alphabet.costs[full] if full is not None else alphabet.costs.max()) / alphabet.space.instants
    deepest = depth if depth is not None else greatest_depth(len(alphabet))
    # One look at all entries of a table is never cut short, so a table is only begun where a few of them fit.
    while deepest > SHALLOW and not affordable(least_work(alphabet, deepest)):
        deepest -= 1
    lines: list[tuple[float, float]] = []
    reached = 0
    for truncation in sorted({min(SHALLOW, deepest), deepest}):
        tables = age_tables(alphabet, truncation, expired) if reached else age_tables(alphabet, truncation)
        if tables is not None:
            lines += lines_of(tables, scale, expired, num_prices=num_prices, budgets=budgets, known=lines)
            reached = tables.depth
    return DualBound(tuple(lines), reached, alphabet.described)


def lines_of(
    tables: AgeTables,
    scale: float,
    expired: Callable[[], bool],
    *,
    num_prices: int = 12,
    budgets: Sequence[float] = (),
    known: Sequence[tuple[float, float]] = (),
) -> list[tuple[float, float]]:
    """(price, value) lines: price 0, the best prices for `budgets`, a range. `scale` is a full average's seconds.

    The best prices are looked for near those of `known`, the lines of a weaker bound, if there are any.
    """
    lines, guess = [(0.0, cycle_mean_bound(tables, 0.0, expired))], Potential()
    if not scale > 0:
        return lines
    for budget in budgets:
        prices = (LEAST_PRICE / scale, MOST_PRICE / scale)
        if known:
            near = max(known, key=lambda line: line[1] - line[0] * budget)[0]
            prices = (near / NEAR, near * NEAR) if near > 0 else prices
        lines += _tune(tables, prices, budget, expired)
    for price in np.geomspace(LEAST_PRICE, MOST_PRICE, num_prices) / scale:
        if expired():
            break
        lines.append((float(price), cycle_mean_bound(tables, float(price), expired, guess=guess)))
    return lines


def _tune(
    tables: AgeTables, prices: tuple[float, float], budget: float, expired: Callable[[], bool]
) -> list[tuple[float, float]]:
    """Lines nearer and nearer to the best price for one budget: golden-section search on the price's logarithm."""
    lines: list[tuple[float, float]] = []
    guess = Potential()

    def gain(logarithm: float) -> float:
        price = exp(logarithm)
        tolerance = max(1e-5, 2e-4 * (high - low))  # far from the best price its value only steers
        lines.append((price, cycle_mean_bound(tables, price, expired, guess=guess, tolerance=tolerance)))
        return lines[-1][1] - price * budget

    ratio = 0.5 * (5**0.5 - 1)
    low, high = log(prices[0]), log(prices[1])
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = gain(left), gain(right)
    while high - low > 1e-4 and not expired():
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = gain(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = gain(left)
    return lines
