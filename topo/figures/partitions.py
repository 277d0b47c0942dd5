"""Random partitions: the closed-form rate of group generators that draw their groups at random."""

from __future__ import annotations

from fractions import Fraction

from preduce.topo.errors import InputError


def random_partition_factor(num_workers: int, group_size: int) -> Fraction:
    """E‖x − mean‖² after one round of means in uniformly random groups, as a part of what it was before. O(1).

    (E[K] − 1)/(n − 1) for K groups counting each skipping worker as one: a uniformly random projection of rank K keeps
    that part of the squared distance. Here K is the least number of groups of at most `group_size` workers that are
    all full but one. About 1/√group_size per round on the distance, whatever n.

    Raises:
        InputError: fewer than 2 workers, or a group size outside 1..num_workers.
    """
    if num_workers < 2:
        raise InputError(f"random partition: {num_workers} workers; at least 2 are needed")
    if not 1 <= group_size <= num_workers:
        raise InputError(f"random partition: group size {group_size}; it lies in 1..{num_workers}")
    return expected_partition_factor(num_workers, Fraction(-(-num_workers // group_size)))


def expected_partition_factor(num_workers: int, expected_blocks: Fraction) -> Fraction:
    """(E[K] − 1)/(n − 1), for any exchangeable random partition with E[K] blocks (skips included). O(1).

    Raises:
        InputError: fewer than 2 workers, or an expectation outside 1..num_workers.
    """
    if num_workers < 2 or not 1 <= expected_blocks <= num_workers:
        raise InputError(
            f"random partition: {expected_blocks} blocks expected of {num_workers} workers; 1 <= blocks <= workers"
        )
    return (Fraction(expected_blocks) - 1) / (num_workers - 1)
