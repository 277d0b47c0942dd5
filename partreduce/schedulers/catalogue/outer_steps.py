"""Catalogue entries with outer steps: an outer optimizer applies the workers' mean change (DiLoCo)."""

from __future__ import annotations

from functools import partial

from partreduce.schedulers.constructions import per_round
from partreduce.schedulers.entry import SEED, Entry, Parameter
from partreduce.schedulers.rules import outer_steps

EVERY = Parameter(name="every", default=30, minimum=2, maximum=10**5, help="steps between two outer steps (H)")
OUTER = (
    Parameter(name="lr", kind="float", default=0.7, minimum=0, maximum=100, help="learning rate of the outer SGD"),
    Parameter(name="momentum", kind="float", default=0.9, minimum=0, maximum=1, help="its Nesterov momentum, below 1"),
)

_outer = partial(Entry, kind="outer")

OUTER_STEPS = (
    _outer(
        name="diloco",
        summary="Each worker trains alone, and every H steps an outer optimizer applies what all moved; also in parts.",
        source="Douillard et al., DiLoCo, 2023 (arXiv 2311.08105), and Streaming DiLoCo, 2025 (arXiv 2501.18512)",
        make=outer_steps.diloco,
        unsupported_reason=outer_steps.diloco_unsupported_reason,
        parameters=(
            EVERY,
            Parameter(
                name="fragments", default=1, minimum=1, maximum=10**4, help="parts of the model that take turns (P)"
            ),
            Parameter(
                name="late", default=0, minimum=0, maximum=10**5, help="steps from sending a part to merging it (τ)"
            ),
            Parameter(
                name="alpha", kind="float", default=0.0, minimum=0, maximum=1, help="share of the local value kept (α)"
            ),
            *OUTER,
        ),
        condition="fragments ≤ every, late < every",
        degree="n − 1",
        period="1",
        metrics="those of local-sgd where alpha is 0",
    ),
    _outer(
        name="regions-diloco",
        summary="All of a region average in each step, and every H steps all workers take an outer step.",
        source="Douillard et al., DiLoCo, 2023 (arXiv 2311.08105), where a region is a worker",
        make=outer_steps.regions_diloco,
        unsupported_reason=outer_steps.regions_diloco_unsupported_reason,
        parameters=(
            Parameter(
                name="regions",
                minimum=2,
                maximum=10**6,
                help="as many, of neighboring nodes; auto: as the switches say, else each node",
            ),
            EVERY,
            *OUTER,
        ),
        condition="2 or more regions of 2 or more workers",
        degree="n − 1 in rounds of all",
        period="every",
        metrics="contraction 0",
    ),
    _outer(
        name="noloco",
        summary="Random pairs make outer steps, from each worker's own outer parameters: there is no global average.",
        source="Kolehmainen et al., NoLoCo, 2025 (arXiv 2506.10911), equations 1 to 3 with beta = gamma = lr",
        make=per_round.noloco,
        unsupported_reason=per_round.noloco_unsupported_reason,
        parameters=(
            EVERY,
            OUTER[0],
            Parameter(name="momentum", kind="float", default=0.5, minimum=0, maximum=1, help="its momentum, below 1"),
            Parameter(name="phases", default=8, minimum=1, maximum=10_000, help="draws of pairs, which then repeat"),
            SEED,
        ),
        condition="a rate and momentum with which differences die out; known for up to 64 workers",
        degree="1",
        period="phases",
        metrics="none: rounds are no mixing matrices; `verify` proves the operator on outer parameters and momenta",
    ),
)
