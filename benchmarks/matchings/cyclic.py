"""Search for exact consensus by relaxed pairs among rounds that a cyclic renumbering of the workers leaves as they are.

With n = q·k, worker u·q + x is place u of orbit x, and turning every orbit by one place (u → u+1 mod k) maps each round
to itself, weights included. A round is then a matching of the q orbits with a shift per pair of orbits: place u of x
meets place u+shift of y; for odd q and even k the orbit left over meets itself half a turn away. Few choices remain, so
the search reaches numbers of workers that free matchings do not; what has no such symmetry it cannot find.

On the character r of Z_k a round is the q×q matrix I − Σ a·d·d*, d = e_x − ω^{r·shift}·e_y, so that fitting the weights
costs k/2 products of q×q matrices per round instead of one of n×n.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.matchings.fit import SOLVED, Linearised, as_fractions, fit
from benchmarks.matchings.weights import PairSearchReport, contracts, is_exact, reaches_all

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from partreduce.schedulers.exact_rounds.known_rounds import WeightedRound

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]
    Complex = npt.NDArray[np.complex128]


NEAR = 1e-2
"""Squared residual after eight steps under which a candidate is worth more; most solutions stand below 1e-20."""


def random_links(rng: np.random.Generator, count: int, num_rounds: int, num_orbits: int, turn: int) -> Ints:
    """Random rounds, shape (count, num_rounds, links, 3): orbit, orbit, shift. The first round is canonical."""
    order = np.argsort(rng.random((count, num_rounds, num_orbits)), axis=-1)
    order[:, 0] = np.arange(num_orbits)
    even = num_orbits - num_orbits % 2
    left, right = order[..., 0:even:2], order[..., 1:even:2]
    shift = rng.integers(0, turn, left.shape)
    shift[:, 0] = 0
    links = np.stack([np.minimum(left, right), np.maximum(left, right), shift], axis=-1)
    if num_orbits % 2 and turn % 2 == 0:
        rest = order[..., -1:]
        links = np.concatenate([links, np.stack([rest, rest, np.full_like(rest, turn // 2)], axis=-1)], axis=2)
    return links


def partners_of(links: Ints, num_orbits: int, turn: int) -> Ints:
    """Every worker's partner (itself if idle), shape (count, num_rounds, n)."""
    count, num_rounds, num_links, _ = links.shape
    partners = np.tile(np.arange(num_orbits * turn), (count, num_rounds, 1))
    places = np.arange(turn)
    for link in range(num_links):
        x, y, shift = (links[:, :, link, k, None] for k in range(3))
        here, there = places * num_orbits + x, (places + shift) % turn * num_orbits + y
        np.put_along_axis(partners, here, there, axis=2)
        np.put_along_axis(partners, there, here, axis=2)
    return partners


def linearise_links(links: Ints, num_orbits: int, turn: int) -> Callable[[Floats], Linearised]:
    """The residual of the product on every character, as a function of the weights (count, rounds · links)."""
    # Axes: b candidates, t rounds, l links of a round, r characters (one of each conjugate pair), x and y orbits.
    count, num_rounds, num_links, _ = links.shape
    characters = np.arange(turn // 2 + 1)
    unit = np.eye(num_orbits, dtype=np.complex128)
    turned = np.exp(2j * np.pi / turn * links[..., 2, None] * characters)  # (b, t, l, r)
    d = unit[links[..., 0]][..., None, :] - turned[..., None] * unit[links[..., 1]][..., None, :]  # (b, t, l, r, x)
    # A link of an orbit with itself would count each of its pairs twice.
    d *= np.where(links[..., 0] == links[..., 1], np.sqrt(0.5), 1.0)[..., None, None]
    # The two conjugate characters count once each, so that the error is the Frobenius norm of the whole product.
    twice = np.where((characters == 0) | (2 * characters == turn), 1.0, np.sqrt(2.0))[:, None, None]
    target = np.zeros((len(characters), num_orbits, num_orbits))
    target[0] = 1 / num_orbits

    def linearise(weights: Floats) -> Linearised:
        a = weights.reshape(count, num_rounds, num_links)
        # (b, t, r, x, y): each round on each character; `before[t]` and `after` are products of rounds, (b, r, x, y).
        rounds = unit - np.einsum("btl,btlrx,btlry->btrxy", a, d, d.conj(), optimize=True)
        before = [np.broadcast_to(unit, rounds[:, 0].shape)]
        for t in range(num_rounds):
            before.append(rounds[:, t] @ before[-1])
        after, columns, rows = before[0], [], []
        for t in range(num_rounds - 1, -1, -1):
            columns.append(np.einsum("brxy,blry->blrx", after, d[:, t], optimize=True))
            rows.append(np.einsum("blrx,brxy->blry", d[:, t].conj(), before[t], optimize=True))
            after = after @ rounds[:, t]
        # The derivative for one link is the rank-one matrix −u vᵀ on every character: u, v (b, t·l, r, x).
        u, v = np.concatenate(columns[::-1], axis=1), np.concatenate(rows[::-1], axis=1)
        jacobian = _real(-twice * (u[..., :, None] * v[..., None, :]), 2)
        residual = _real(twice * (before[-1] - target), 1)
        gram = jacobian @ jacobian.transpose(0, 2, 1)
        return Linearised((residual**2).sum(axis=1), (jacobian @ residual[:, :, None])[:, :, 0], gram)

    return linearise


def _real(values: Complex, kept: int) -> Floats:
    """Complex (…, …) as real parts and imaginary parts in one last axis, the first `kept` axes kept."""
    flat = values.reshape(*values.shape[:kept], -1)
    return np.concatenate([flat.real, flat.imag], axis=-1)


def search_cyclic(
    num_workers: int,
    num_rounds: int,
    *,
    turn: int,
    time_limit: float,
    seed: int = 0,
    batch: int = 256,
) -> PairSearchReport:
    """Look for rounds that a turn of order `turn`, a divisor of n, leaves as they are. Finding none proves nothing.

    The weight is 1/2 in the first and the last round, as in `pair_weights.solve_pairs`; n ≤ 63.
    """
    start = time.monotonic()
    rng = np.random.default_rng(seed)
    num_orbits = num_workers // turn
    tried = reachable = 0
    seen: set[bytes] = set()
    while time.monotonic() - start < time_limit:
        links = random_links(rng, batch * 8, num_rounds, num_orbits, turn)
        tried += len(links)
        links = links[reaches_all(partners_of(links, num_orbits, turn))]
        fresh = []
        for item in links:
            if (key := item.tobytes()) not in seen:
                seen.add(key)
                fresh.append(item)
        reachable += len(fresh)
        for low in range(0, len(fresh), batch):
            rounds = _solve(np.stack(fresh[low : low + batch]), num_orbits, turn, rng)
            if rounds is not None:
                return PairSearchReport(rounds, tried, reachable, time.monotonic() - start)
            if time.monotonic() - start >= time_limit:
                break
    return PairSearchReport(None, tried, reachable, time.monotonic() - start)


def _solve(links: Ints, num_orbits: int, turn: int, rng: np.random.Generator) -> tuple[WeightedRound, ...] | None:
    """Exact rounds from the first of the candidates that has a solution."""
    shape = links.shape[:3]
    inner = np.ones(shape, dtype=bool)
    inner[:, [0, -1]] = False
    free = inner.reshape(len(links), -1)
    weights = np.where(inner, rng.uniform(0.25, 0.75, shape), 0.5).reshape(free.shape)
    weights, error = fit(linearise_links(links, num_orbits, turn), weights, free, num_iterations=8)
    near = np.flatnonzero(error < NEAR)
    if not len(near):
        return None
    links, weights, free = links[near], weights[near], free[near]
    weights, error = fit(linearise_links(links, num_orbits, turn), weights, free, num_iterations=30)
    for index in np.flatnonzero(error < SOLVED).tolist():
        one = links[index : index + 1]
        fractions = as_fractions(linearise_links(one, num_orbits, turn), weights[index])
        if fractions is None:
            continue
        rounds = []
        for t in range(shape[1]):
            pairs = []
            for link, (x, y, shift) in enumerate(one[0, t].tolist()):
                places = range(turn if x != y else turn // 2)
                weight = fractions[t * shape[2] + link]
                pairs += [(u * num_orbits + x, (u + shift) % turn * num_orbits + y, weight) for u in places if weight]
            rounds.append(tuple(pairs))
        if is_exact(num_orbits * turn, rounds) and contracts(rounds):
            return tuple(rounds)
    return None
