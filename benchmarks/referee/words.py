"""What is called otherwise since the record was made: old on the left, new on the right. All of it applies to records.

`KEYS` are JSON keys, in schedules as in what commands print. A key may be given with those above it, such as
`strategy.how`, where the same word stays elsewhere; lists count for nothing in that, and the longest match wins.
`VALUES` are words at a key, by the old key, with those above it or without. `FORMS` are whole values that stand now at
a key, by the old key, where it has another form. `PHRASES` are regular expressions for all other strings: command
lines, Python calls, messages, names of schedules; and for keys that are names, not words. They are applied one after
the other.
"""

from __future__ import annotations

import re
from typing import Any

KEYS: dict[str, str] = {
    # schedules
    "strategy.when": "sync",
    "strategy.what": "payload",
    "strategy.how": "transport",
    "when.late": "delay",
    "when.gap": "iteration_gap",
    "when.quorum": "partial",
    "quorum.synchronise_every": "synchronize_every",
    "gap.order": "update_order",
    "how.form": "algorithm",
    "how.fom": "algoritm",
    "how.sending": "gradient_buckets",
    "outer.anchor": "outer_params",
    "strategy.pace": "steps_per_round",
    "phases.relax": "relaxation",
    "strategy.overlap": "is_delayed",
    "strategy.initiator": "slow_worker_policy",
    "contingencies": "failure_plan",
    # timelines
    "timeline.overlap": "is_delayed",
    "timeline.paces": "worker_steps",
    # plans
    "recommendation.when": "sync",
    "recommendation.form": "algorithm",
    "recommendation.sending": "gradient_buckets",
    "recommendation.quorum": "partial",
    "pace": "steps_per_round",
}
VALUES: dict[str, dict[str, str]] = {
    "generated.json.name": {"generated": "dynamic_groups"},
    "x.json.name": {"generated": "dynamic_groups"},
    "command": {"late": "delay"},
    "strategy.kind": {"generated": "dynamic_groups"},
    "strategy.averaging": {"step-normalised": "step-normalized"},
    "strategy.initiator": {"laggard-local": "pair_locally", "laggard-late": "defer", "laggard": "straggler"},
    "gap.order": {"serial": "adapt_then_combine", "parallel": "dpsgd"},
    "how.sending": {"whole": "single", "layers": "per_layer"},
    "outer.anchor": {"common": "shared", "own": "per_worker"},
    "recommendation.when": {
        "lockstep": "synchronous",
        "late": "delay",
        "gap": "iteration_gap",
        "quorum": "partial",
    },
    "recommendation.sending": {"whole": "single", "layers": "per_layer"},
}
FORMS: dict[str, Any] = {"schedule.contingencies": {"rule": "keep_groups", "failures": 1}}
PHRASES: dict[str, str] = {
    # names of schedules of ours
    r"\bpace (\d)(?= on |$)": r"steps per round \1",
    r"\bpaces(?=( normalised)?( on |$))": "worker steps",
    r"^generated (?=random|global|inter-intra|node-then-all|all)": "dynamic groups ",
    r"^static own anchors": "static outer params per worker",
    r"^gap parallel": "gap dpsgd",
    r"\bcontingencies(?= on |$)": "failure plan",
    r"normalised": "normalized",
    # Python
    r"\bpartreduce\.plan\b": "partreduce.design",
    r"\bpartreduce\.prove\b": "partreduce.verify",
    r"\bpartreduce\.figures\b": "partreduce.metrics",
    r"\bpartreduce\.shard\b": "partreduce.shard_dataset",
    r"\bpartreduce\.parallelize\b": "partreduce.parallelize_embeddings",
    r"\bpartreduce\.Job\b": "partreduce.PlanRequest",
    r"\bstrategies\.Outer\b": "strategies.OuterStep",
    r"\bstrategies\.Gap\b": "strategies.IterationGap",
    r"\bstrategies\.How\b": "strategies.Transport",
    r"\busing=(?=')": "build=",
    r"\bLockstep\b": "Synchronous",
    r"\(pace=": "(steps_per_round=",
    # options
    "--using\\b": "--build",
    "--take\\b": "--select",
    "--survive\\b": "--tolerate-failures",
    "--form\\b": "--algorithm",
    "--nodes\\b": "--simulate-nodes",
    "--when\\b": "--sync",
    r"--sync late\b": "--sync delay",
    # what messages say of a place in a file: `strategy.when.gap.backup`
    r"\bwhen(?=\.(gap|late|quorum|merge|pipeline)\b)": "sync",
    r"(?<=\bstrategy\.)when\b": "sync",
    r"\b(?<=strategy\.)what\b|\bwhat(?=\.(outer|fragments|tables)\b)": "payload",
    r"\b(?<=strategy\.)how\b|\bhow(?=\.(form|sending|codec|where|block|error_feedback)\b)": "transport",
    r"(?<=\bsync\.)gap\b": "iteration_gap",
    r"(?<=\bsync\.)late\b": "delay",
    r"(?<=\bsync\.)quorum\b": "partial",
    r"(?<=\biteration_gap\.)order\b": "update_order",
    r"(?<=\btransport\.)form\b": "algorithm",
    r"(?<=\btransport\.)sending\b": "gradient_buckets",
    r"(?<=\bouter\.)anchor\b": "outer_params",
    r"(?<=\bstrategy\.)pace\b": "steps_per_round",
    r"(?<=\bstrategy\.)initiator\b": "slow_worker_policy",
    r"(?<=\]\.)relax\b": "relaxation",
    r"(?<=^ScheduleError: )pace(?=:)": "steps_per_round",
    # values that messages list
    r"\{\"late\": ": '{"delay": ',
    r"\"gap\": ": '"iteration_gap": ',
    r"\{\"quorum\": \{": '{"partial": {',
    r"\"lockstep\"": '"synchronous"',
    r"'whole' or 'layers'": "'single' or 'per_layer'",
    r"'serial' or 'parallel'": "'adapt_then_combine' or 'dpsgd'",
    r"'laggard-local' or 'laggard-late'": "'pair_locally' or 'defer'",
    r"\"laggard\"": '"straggler"',
    r"\"overlap\"": '"is_delayed"',
    r"\"fom\"": '"algoritm"',
    r"\"form\"": '"algorithm"',
    r"\bkind, pace, when, what, how\b": "kind, steps_per_round, sync, payload, transport",
    r"\blockstep, late, pipeline, gap, quorum\b": "synchronous, delay, pipeline, iteration_gap, partial",
    r"'generated'": "'dynamic_groups'",
    r"(?<=, )generated(?=, pairwise)": "dynamic_groups",
    r"(?<=, strategy )generated\b": "dynamic_groups",
    # classes
    r"\bFileProblem\b": "FileError",
    r"\bFigures(?=\()": "ScheduleMetrics",
    r"\bFigure(?=\()": "Metric",
    r"^Outer(?=\()": "OuterStep",
    r"\banchor=<Anchor.COMMON: 'common'>": "outer_params=<OuterParams.SHARED: 'shared'>",
    # sentences
    r"(?<=gradient_buckets: is )layers\b": "per_layer",
    r"(?<=outer_params: is )own\b": "per_worker",
    r"\bpace (?=\d|is\b)": "steps_per_round ",
    r"\banchors come to agree": "the outer parameters come to agree",
    r"\bfrom anchors of each worker's own\b": "from each worker's own outer parameters",
    r"\bslow or lost\b": "slow or failed",
    r"\bruns beside the computing\b": "runs during computing",
    r"\bcannot go on from\b": "cannot continue from",
    r"\bfigures\b": "metrics",
    r"\blockstep\b": "synchronous",
    r"\bneighbour": "neighbor",
    r"\bsynthesised\b": "synthesized",
    r"\bform (?=ring|hierarchical)": "algorithm ",
}


def translated(value: Any, above: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - any JSON
    """The same in new words."""
    form = _longest(FORMS, above)
    if form is not None:
        return form
    if isinstance(value, dict):
        return {_key((*above, key)): translated(part, (*above, key)) for key, part in value.items()}
    if isinstance(value, list):
        return [translated(part, above) for part in value]
    if not isinstance(value, str):
        return value
    new = (_longest(VALUES, above) or {}).get(value)
    return _phrased(value) if new is None else new


def _key(path: tuple[str, ...]) -> str:
    new = _longest(KEYS, path)
    if new is not None:
        return new
    return path[-1] if path[-1].isidentifier() else _phrased(path[-1])


def _longest(table: dict[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401 - what the table holds
    """What a table says of a path's end; the longest that it knows."""
    ends = (".".join(path[start:]) for start in range(len(path)))
    return next((table[end] for end in ends if end in table), None)


def _phrased(text: str) -> str:
    for old, new in PHRASES.items():
        text = re.sub(old, new, text)
    return text
