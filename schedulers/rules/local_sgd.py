"""Local SGD: every worker takes H steps alone, then everybody averages parameters; all-reduce under another name."""

from preduce.schedulers.rules.allreduce import every_h_steps

ENTRY = every_h_steps(
    name="local-sgd",
    summary="H steps alone, then one average over everybody: 1/H of the traffic, more disagreement.",
    source="Stich, Local SGD converges fast and communicates little, ICLR 2019",
    default=4,
    minimum=2,
)
