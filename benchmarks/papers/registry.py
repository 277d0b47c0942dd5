"""The five papers: what each is known for, the rows of the README, and who runs its experiments."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """`module` runs its experiments; without one they do not exist yet.

    A module has `run(minutes, only)` and `stored(only)`, which return Results, and where rows follow from rows of
    several runs `derived(results)`, which gives these.
    """

    name: str
    title: str
    claim: str
    module: str = ""
    headlines: tuple[tuple[str, str], ...] = ()
    """(figure, setting) of the rows that the README shows."""

    def load(self) -> ModuleType | None:
        """Its experiments."""
        return import_module(self.module) if self.module else None


PAPERS = (
    Paper(
        name="prague",
        title="Prague (ASPLOS'20)",
        claim="Groups instead of everybody: 1.2× as fast as All-Reduce among equals, 4.4× where one is slow.",
        module="benchmarks.papers.prague",
        headlines=(
            ("Over All-Reduce, all workers alike", "Figure 10's static schedule, 40 Mbit/s"),
            ("Over All-Reduce, all workers alike", "planner's recommendation, 40 Mbit/s"),
            ("Over All-Reduce, one worker 5× slower", "smart generator, the paper's rule, against the flat ring"),
            ("Over All-Reduce, one worker 5× slower", "planner's recommendation"),
            ("Over AD-PSGD, all workers alike", "smart generator, the paper's rule"),
            ("Over a parameter server", "smart generator, the paper's rule, against the synchronous one"),
        ),
    ),
    Paper(
        name="hop",
        title="Hop (ASPLOS'19)",
        claim="Backup workers up to 1.81× as fast under random slowdown; skipping holds a 4× slow one at 1.1.",
        module="benchmarks.papers.hop",
        headlines=(
            (
                "Figures 16 and 17: speed per step where workers are 6× slower at random, standard = 1",
                "svm: ring-based, backup 1",
            ),
            (
                "Figures 16 and 17: speed per step where workers are 6× slower at random, standard = 1",
                "digits: ring-based, backup 1",
            ),
            (
                "Figure 18: steps where one worker is 4× slower, over steps where all are alike",
                "svm: ring-based, standard",
            ),
            (
                "Figure 18: steps where one worker is 4× slower, over steps where all are alike",
                "svm: ring-based, backup 1, skip 10",
            ),
            (
                "Figure 19: speed to the loss where one worker is 4× slower, standard = 1",
                "svm: ring-based, backup 1, skip 10",
            ),
            ("Figure 13: speed to the loss, BSP server = 1", "svm, all alike: ring-based, standard"),
        ),
    ),
    Paper(
        name="eager-sgd",
        title="eager-SGD (PPoPP'20)",
        claim="Partial all-reduce 1.14 to 2.01× as fast as All-Reduce where workers are delayed.",
        module="benchmarks.papers.eager_sgd",
        headlines=(
            (
                "Figure 9: latency of a synchronous sum over that of a partial one",
                "32 processes, 64 B, 50 ms: solo",
            ),
            (
                "Figure 9: latency of a synchronous sum over that of a partial one",
                "32 processes, 64 B, 50 ms: majority",
            ),
            ("Gradients per second: All-Reduce = 1", "hyperplane, one of 8 delayed by 400 ms: solo"),
            ("Gradients per second: All-Reduce = 1", "images, 50 to 400 ms shifting: majority"),
            ("Gradients per second: All-Reduce = 1", "docstrings, lengths as they are: solo"),
            ("Gradients per second: All-Reduce = 1", "docstrings, lengths as they are: majority"),
            ("Gradients per second: All-Reduce = 1", "images, one 5× slow: half"),
        ),
    ),
    Paper(
        name="pipe-sgd",
        title="Pipe-SGD (NeurIPS'18)",
        claim="Gradients one step late and compressed: 2.0 to 3.2× as fast as D-Sync, 4.0 to 5.4× as PS-Sync.",
        module="benchmarks.papers.pipe_sgd",
        headlines=(
            ("Speed per step, D-Sync = 1", "digits, 4x1, 200 Mbit/s: Pipe + 8 bit"),
            ("Speed per step, D-Sync = 1", "digits, 4x1, 40 Mbit/s: Pipe + 8 bit"),
            ("Speed per step, D-Sync = 1", "digits, 4x4, 40 Mbit/s: Pipe + 8 bit, hierarchical"),
            ("Speed per step, PS-Sync = 1", "digits, 4x1, 200 Mbit/s: Pipe + 8 bit"),
            ("Speed to the loss, D-Sync = 1", "digits, 4x1, 40 Mbit/s: Pipe + 8 bit"),
        ),
    ),
    Paper(
        name="parallax",
        title="Parallax (2018)",
        claim="Dense and sparse parameters by different ways: up to 2.8× as fast as TF-PS, 6.3× as Horovod.",
        module="benchmarks.papers.parallax",
        headlines=(
            ("Speed to the loss, TF-PS = 1", "language, 4x4: planner's choice"),
            ("Speed to the loss, Horovod = 1", "language, 4x4: planner's choice"),
            ("Speed to the loss, Horovod = 1", "language, 16x1: planner's choice"),
            (
                "Speed to the loss, Horovod = 1",
                "language, 16x1: planner's choice, dense part by its own schedule",
            ),
            (
                "Speed to the loss, TF-PS = 1",
                "language, 4x4: planner's choice, dense part by its own schedule, rows in float16",
            ),
            ("Hybrid over the better of TF-PS and Horovod", "language, 4x4: hybrid"),
            ("Local aggregation over hybrid without it", "language, 4x4: hybrid"),
            ("Dense part by the planner's own schedule, over plain hybrid", "language, 4x4: per step, over hybrid"),
            ("Settings whose choice is within 5 % of the best", "of all settings"),
        ),
    ),
)
