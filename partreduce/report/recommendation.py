"""The answer of `design` in at most 40 lines of 80 columns: what is recommended, what it gains and costs, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from partreduce.console import seconds, size
from partreduce.planner.comparison import Comparison, compare, variants
from partreduce.planner.gain import TIE, Gain
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.plan import Plan
from partreduce.report.payoff import best_with_codec
from partreduce.report.reasons import lost, why_not
from partreduce.report.terminal import switch_levels
from partreduce.topo.describe import describe
from partreduce.topo.errors import PartreduceError
from partreduce.verify.facts import ScheduleFacts

WIDTH = 80
LABEL = 13
"""Columns of the words on the left."""
CELLS = 10
"""Columns of a number in the table."""
MOST_LINES = 3
"""Of a schedule in the table."""
NEAR = 1.05
"""Speedups that differ by less are one."""
OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD with momentum", "adam": "AdamW"}


def recommendation(planned: Plan, job: PlanRequest, assumed: Mapping[str, str], proved: str) -> list[str]:
    """The lines, none longer than `WIDTH`.

    Args:
        planned: the plan, with all its options.
        job: what was asked.
        assumed: defaults that stand in for what nobody stated, by option.
        proved: what the proof of the recommendation comes to, as a sentence.
    """
    compared, hardware = compare(planned.recommendation, planned.options, job), job.hardware
    chosen = compared.chosen
    what = "Recommendation" if job.take is None else f"Taken: {chosen.name},"
    place = f"{job.cluster}{switch_levels(hardware, job.cluster.num_nodes)}"
    data = f", {job.data} data" if job.data != "shuffled" else ""
    goal = f" ({job.objective})" if job.objective != "balanced" else ""
    lines = _wrapped(
        f"{what}{goal} for {place}: {size(hardware.model_bytes or 0)} model, {seconds(hardware.compute)} computing per "
        f"step{data}:"
    )
    lines += [f"  {line}" for line in wrap(describe(chosen.schedule), WIDTH - 2)]
    lines += _facts(compared, job, proved[:1].upper() + proved[1:], capped=planned.answer.capped)
    lines += _table(compared)
    lines += _bullets(three_reasons(compared, planned.options, job))
    if planned.over_quick:
        lines += _labeled("searched", planned.over_quick)
    if assumed:
        lines += _labeled("assumed", ", ".join(f"{option}={value}" for option, value in assumed.items()))
    if changes := sensitivity(compared, planned.options, job):
        lines += _labeled("would change", "; ".join(changes))
    return lines


def _facts(compared: Comparison, job: PlanRequest, proved: str, *, capped: bool) -> list[str]:
    chosen = compared.chosen
    waiting = f", {seconds(chosen.waiting)} waiting" if chosen.waiting > 1e-6 * chosen.step_seconds else ""
    return [
        *_labeled(
            "time per step", f"{seconds(chosen.step_seconds)}, {seconds(chosen.communication)} communicating{waiting}"
        ),
        *_labeled("speedup", _speedup(compared)),
        *_labeled("divergence", _divergence(chosen)),
        *_labeled("memory", _memory(chosen, job)),
        *_labeled("tuning", _tuning(chosen)),
        *(_labeled("risk", risk) if (risk := _risk(chosen, job, capped=capped)) else []),
        *_labeled("guarantee", proved),
    ]


def times(gain: Gain) -> str:
    """How many times as fast, with the range of 9 of 10 such predictions; a guess has its range alone."""
    span = f"{_factor(gain.low)} to {_factor(gain.high)}"
    return f"{span}x (a guess)" if gain.is_guess else f"{_factor(gain.ratio)}x ({span}x)"


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.3g}" if value < 1e4 else f"{value:.1e}"


def _speedup(compared: Comparison) -> str:
    chosen, every = compared.chosen, f"{times(compared.over_every_step)} over All-Reduce in every step"
    if chosen is compared.every_step:
        return "1x: this is All-Reduce in every step, and nothing simpler or safer is faster"
    if chosen is not compared.simple:
        return f"{times(compared.over_simple)} over the best simple schedule; {every}"
    if compared.other is None or not chosen.time > 0:
        return f"1x over the best simple schedule, which it is; {every}"
    other = _factor(compared.other.time / chosen.time)
    return (
        f"1x over the best simple schedule, which it is ({other}x over the next, {describe(compared.other.schedule)}); "
        f"{every}"
    )


def _divergence(chosen: CandidateSchedule) -> str:
    """How far workers part: the root of the consensus distance is in lengths of a step's gradient noise."""
    distance = chosen.consensus_distance.value
    if distance == 0:
        return "none: all workers hold equal models"
    if distance is None or not math.isfinite(distance):
        return "not known"
    return f"models of workers differ by about {math.sqrt(distance):.1f} steps of gradient noise"


def _memory(chosen: CandidateSchedule, job: PlanRequest) -> str:
    """Bytes beyond parameters, gradients and optimizer state."""
    model = job.hardware.model_bytes or 0
    if chosen.facts is not None:
        held = chosen.facts.memory_bytes
    else:
        try:
            held = float(ScheduleFacts(chosen.schedule).numbers("memory").get("arrays", math.nan)) * model
        except PartreduceError:
            held = math.nan
    if math.isnan(held):
        return "not known"
    return f"{size(held)} per worker besides model, gradients, optimizer state"


def _tuning(chosen: CandidateSchedule) -> str:
    strategy = chosen.schedule.strategy
    todo = []
    if not strategy.payload.outer.is_plain:
        todo.append("outer learning rate and momentum")
    if strategy.is_delayed:
        todo.append("a lower learning rate if the loss stalls")
    if not chosen.schedule.has_one_steps_per_round:
        todo.append("train with `for batch in optimizer.batches(loader)`")
    if not todo:
        return "none" if strategy.averages_gradients else "learning rate: start with All-Reduce's best"
    return "; ".join(todo)


def _risk(chosen: CandidateSchedule, job: PlanRequest, *, capped: bool) -> str:
    """What may make the prediction wrong, beyond its error; empty where nothing is known to."""
    said = []
    if chosen.extrapolated:
        said.append("nothing that averages as rarely was measured, so its steps are a guess")
    if chosen.may_fail:
        said.append(f"{lost(chosen, job)}")
    if not said and not chosen.schedule.strategy.averages_gradients and job.pilot is None:
        said.append("its steps are predicted from other networks")
    if said:
        said.append("`partreduce measure` tries it on your job")
    if capped:
        said.append("the time limit cut planning short, another run may differ")
    return "; ".join(said)


def _table(compared: Comparison) -> list[str]:
    """Five schedules; one that was shown already is named by its row."""
    room = WIDTH - LABEL - 2 * CELLS - 2
    lines = ["", " " * (LABEL + room) + f"{'step':>{CELLS}}{'speed':>{CELLS}}"]
    rows = {
        "recommended": compared.chosen,
        "best simple": compared.simple,
        "fastest": compared.fastest,
        "no delay": compared.without_delay,
        "All-Reduce": compared.every_step,
    }
    shown: dict[tuple[str, float], str] = {}
    base = compared.every_step.time
    for label, option in rows.items():
        said = describe(option.schedule)
        same = shown.setdefault((said, option.step_seconds), label)
        words = "as above" if label == "recommended" else f"as {same}" if same != label else said
        cells = f"{seconds(option.step_seconds):>{CELLS}}"
        cells += f"{_factor(base / option.time) + 'x' if option.time > 0 else '-':>{CELLS}}"
        first, *rest = wrap(words, room - 1, max_lines=MOST_LINES, placeholder=" …")
        lines.append(f"{label:{LABEL}}{first:{room}}{cells}")
        lines += [" " * LABEL + line for line in rest]
    return lines


def three_reasons(compared: Comparison, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """What its steps save, what that costs in steps, and why nothing faster is taken."""
    chosen, every, fastest = compared.chosen, compared.every_step, compared.fastest
    error = chosen.steps_ratio_error(job.data)
    if chosen is every:
        first = (
            f"Communication takes {seconds(chosen.communication)} of a step of {seconds(chosen.step_seconds)}: "
            "averaging less could save no more than that."
        )
    else:
        saved = [f"communicates for {seconds(chosen.communication)} (All-Reduce: {seconds(every.communication)})"]
        if every.waiting > 0.02 * every.step_seconds:
            saved.append(f"waits for {seconds(chosen.waiting)} ({seconds(every.waiting)})")
        if every.nic_bytes:
            saved.append(f"sends {size(chosen.nic_bytes)} out of a node ({size(every.nic_bytes)})")
        first = f"A step {', '.join(saved)}."
    if chosen.schedule.strategy.averages_gradients and not chosen.late:
        second = "It averages gradients in every step, so it needs no more steps than All-Reduce."
    else:
        second = (
            f"It needs {chosen.steps_ratio:.2f}x All-Reduce's steps; {chosen.basis} lay within {error:.0%} of their "
            "prediction."
        )
    if fastest.time * (1 + TIE) >= chosen.time:
        third = f"Nothing else within the job's limits is predicted to be faster by more than {TIE:.0%}."
    else:
        clause = why_not(fastest, chosen, options, job)
        third = f"The fastest ({_factor(chosen.time / fastest.time)}x over this) is not taken: {clause}."
    return [first, second, third]


def sensitivity(compared: Comparison, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """What a codec, another optimizer or other data would change, as priced; of the latter the largest change first."""
    said: list[tuple[float, str]] = []
    now = compared.over_every_step.ratio
    for variant in variants(compared.chosen, options, job):
        name = OPTIMIZERS.get(variant.value, f"{variant.value} data")
        other = f" ({_factor(variant.speedup)}x by another schedule)" if variant.speedup > NEAR * variant.ours else ""
        change = max(variant.speedup / now, now / variant.speedup, variant.speedup / variant.ours)
        said.append((change, f"{_factor(variant.ours)}x with {name}{other}"))
    words = [f"over All-Reduce {', '.join(one for _, one in sorted(said, key=lambda one: -one[0]))}"] if said else []
    if coded := best_with_codec(compared.chosen, options, job):
        words.insert(0, f"at least {_factor(coded[1])}x faster with --codec {coded[0].transport.codec}")
    return words


def _labeled(label: str, words: str) -> list[str]:
    first, *rest = wrap(words, WIDTH - LABEL - 2, break_on_hyphens=False) or [""]
    return [f"{label:{LABEL}}  {first}", *(" " * (LABEL + 2) + line for line in rest)]


def _bullets(sentences: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for sentence in sentences:
        first, *rest = wrap(sentence, WIDTH - 2, break_on_hyphens=False)
        lines += [f"• {first}", *(f"  {line}" for line in rest)]
    return lines


def _wrapped(words: str) -> list[str]:
    return wrap(words, WIDTH, break_on_hyphens=False)
