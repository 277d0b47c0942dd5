"""Conditions on a cluster that several catalogue entries share.

With its leading arguments bound, each function is an `Entry.unsupported_reason`: it returns a sentence that names the
nearest cluster or value that works, or None if the family exists for the cluster.
"""

from __future__ import annotations

from partreduce.schedulers.rules.algebra import local_ranks
from partreduce.topo.arithmetic.whole_numbers import ceil_log, divisors
from partreduce.topo.cluster import Cluster

MAX_BASE = 64
"""The most edges per worker of a de Bruijn graph whose base is chosen automatically."""


def at_least(least: int, otherwise: str, cluster: Cluster, **_: object) -> str | None:
    """Return the sentence `otherwise` if n < `least`, else None."""
    return None if cluster.num_workers >= least else otherwise


def multiple_of(step: int, cluster: Cluster, *, least: int, called: str, **_: object) -> str | None:
    """Return a sentence unless n is a multiple of `step` and at least `least`, which `called` describes in words."""
    count = cluster.num_workers
    if count >= least and count % step == 0:
        return None
    return f"{count} workers are not {called}; the nearest is {max(least, -(-count // step) * step)}"


def power_of_two(instead: str, cluster: Cluster, **_: object) -> str | None:
    """Return a sentence unless n is a power of two; its end `instead` names a family for other n."""
    count = cluster.num_workers
    if count & (count - 1) == 0:
        return None
    low = 2 ** (count.bit_length() - 1)
    return f"{count} is not a power of 2; the nearest are {low} or {2 * low}{instead}"


def shared_nodes(what_averages: str, cluster: Cluster, **_: object) -> str | None:
    """Return a sentence unless some node has 2 or more workers; `what_averages` is e.g. "Figure 10 averages"."""
    if len(local_ranks(cluster)) >= 2:
        return None
    return f"every node has 1 worker and {what_averages} inside nodes; use allreduce or hyper-cuboid"


def rectangle(least: int, cluster: Cluster, shape: tuple[int, ...] | None, **_: object) -> str | None:
    """Return a sentence unless n is a product of two sides ≥ `least`: those of `shape`, or any two if it is None."""
    count = cluster.num_workers
    best = sides(count, least)
    if shape is None and best is None:
        larger = next(m for m in range(count + 1, 2 * count + 10) if sides(m, least))
        return f"{count} is not a product of two sides ≥ {least}; the next number that is: {larger}"
    if shape is not None and (len(shape) != 2 or min(shape) < least or shape[0] * shape[1] != count):
        near = f"{best[0]}x{best[1]} fits" if best else "no shape fits; use ring"
        return f"shape {'x'.join(map(str, shape))} is not two sides ≥ {least} with product {count}; {near}"
    return None


def sides(number: int, least: int) -> tuple[int, int] | None:
    """Return two factors ≥ `least` of the number, as equal as possible, the smaller first; None if there are none."""
    fitting = [d for d in divisors(number) if d * d <= number and d >= least]
    return (fitting[-1], number // fitting[-1]) if fitting else None


def power_of_base(cluster: Cluster, base: int | None) -> str | None:
    """Return a sentence unless n is a power of `base` or, without a base, of some base up to `MAX_BASE`."""
    count = cluster.num_workers
    if base is not None and not exponent(count, base):
        return f"{count} is not a power of {base}; use base={smallest_base(count)}"
    if base is None and smallest_base(count) > MAX_BASE:
        return f"{count} is a power of nothing up to {MAX_BASE}: {smallest_base(count)} edges a worker; use exponential"
    return None


def exponent(number: int, base: int) -> int | None:
    """Return the exponent L with base^L = number; None if the number is no power of the base."""
    length = ceil_log(number, base)
    return length if base**length == number else None


def smallest_base(number: int) -> int:
    """Return the smallest base of which the number is a power, possibly the number itself."""
    return next(d for d in divisors(number) if d > 1 and exponent(number, d))
