"""What a forked worker makes anew, so that a script finds in it what it would find in a process of its own.

A fork copies the launcher's generators of random numbers and its standard input, too, and every worker the same ones.
"""

from __future__ import annotations

import os
import sys


def fill_standard_descriptors() -> None:
    """For the launcher: where standard streams are closed, let no pipe of a worker get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def own_standard_streams(output: int, errors: int) -> None:
    """Take two pipes as standard output and error, and an empty standard input; nothing else of them stays open.

    The launcher's input is not shared out: a worker lies in the background of the terminal, where the kernel stops who
    reads from it, such as a program that the script starts.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, number)
    for descriptor in {nothing, output, errors} - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - as above


def draw_anew() -> None:
    """Seed torch's and NumPy's generators from the system, as each of them does when it is imported.

    Copies would draw alike in all workers: equal shuffles and so equal batches, unless the script seeds by rank.
    Python's own generator is seeded anew at a fork; those of devices come into being after it.
    """
    import torch

    torch.default_generator.seed()
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
