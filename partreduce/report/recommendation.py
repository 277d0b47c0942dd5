"""Write the answer of `design` in at most 40 lines of 80 columns: the recommendation, its gain, its cost, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import NamedTuple

from partreduce.console import seconds, size
from partreduce.planner.candidates import Slowdown
from partreduce.planner.failure_plans import survivors_of
from partreduce.planner.job import EFFORTS, Delay, PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.options import competitors
from partreduce.planner.plan import Plan, decide
from partreduce.planner.recommend import (
    TIE,
    Gain,
    allowed_options,
    contenders,
    decisive_time,
    family,
    gain,
    least_time,
    recommend,
)
from partreduce.planner.steps_model import Optimizer
from partreduce.report.kinds import slow_workers
from partreduce.report.reasons import best_with_codec, failed_networks, why_not
from partreduce.report.table import switch_levels
from partreduce.schedulers.synthesis.problem import Limits
from partreduce.topo.describe import describe
from partreduce.topo.errors import PartreduceError
from partreduce.verify.facts import ScheduleFacts

WIDTH = 80
LABEL = 13
"""Columns of the labels on the left."""
CELLS = 10
"""Columns of a number in the table of schedules."""
MOST_LINES = 3
"""The most lines of a schedule's description in the table."""
NEARLY_AS_FAST = 0.9
"""Speedup of the cluster without its slow workers, over the recommendation, from which the answer states it."""
FEW_WORKERS = 64
"""Most workers for which the cluster without its slow workers is predicted: its nodes are unequal, and n³ work."""
OPTIMIZERS = {Optimizer.SGD: "SGD", Optimizer.MOMENTUM: "SGD with momentum", Optimizer.ADAM: "AdamW"}
SIMPLE = ("allreduce", "node-then-all")
"""Catalogue entries of simple schedules, for comparisons: if the limits exclude all, or without slow workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The recommendation and the schedules shown with it, each in the best of its settings that were predicted.

    `every_step` is All-Reduce in every step. `simple` is the strongest of All-Reduce every H steps (PyTorch's
    post-local SGD after its warm-up), averages inside each node with rare ones over all workers, and DiLoCo; if the
    recommendation is one of these, `simple` is the recommendation and `other` the strongest of the others. `fastest`
    has the least predicted time, `without_delay` is the best without late averages or a simulated protocol.
    `over_simple` and `over_every_step` are predicted speedups of the recommendation in time to a loss.
    """

    chosen: CandidateSchedule
    every_step: CandidateSchedule
    simple: CandidateSchedule
    other: CandidateSchedule | None
    fastest: CandidateSchedule
    without_delay: CandidateSchedule
    over_simple: Gain
    over_every_step: Gain


class Variant(NamedTuple):
    """The answer for another optimizer: the predicted speedup over All-Reduce, and whether its schedule is another."""

    optimizer: Optimizer
    speedup: float
    is_other: bool


def compare(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> Comparison:
    """Choose the schedules to show next to the recommendation, and predict its speedup over two of them.

    If no simple schedule is among the options within the limits, a simple one that breaks them is shown.
    """
    able = [option for option in allowed_options(options, job) if option.time < math.inf] or [chosen]
    families = {id(one): family(one.schedule) for one in [*options, chosen]}
    is_simple, known = bool(families[id(chosen)]), [one for one in able if families[id(one)]]
    usual: list[CandidateSchedule] = []
    has_simple = is_simple or not all(one.is_every_step for one in known)
    if not has_simple or not any(one.is_every_step for one in options):
        free = replace(job, sync=None, gap=False, quorum=False, limits=Limits(), take=None, tolerate_failures=0)
        usual = competitors(free, names=SIMPLE)
    every_step = min((one for one in [*options, *usual] if one.is_every_step), key=lambda option: option.time)
    known += [one for one in usual if family(one.schedule)]
    simple = chosen if is_simple else _strongest(known, job) or every_step
    others = [one for one in able if families[id(one)] not in {"", families[id(chosen)]}]
    prompt = [one for one in able if not one.late and (one.facts is None or one.facts.kind == "outer")]
    without_delay = chosen
    if chosen not in prompt:
        without_delay = least_time(prompt, job) if prompt else every_step
    return Comparison(
        chosen=chosen,
        every_step=every_step,
        simple=simple,
        other=_strongest(others, job) if is_simple else None,
        fastest=min([chosen, *able], key=lambda option: float(f"{option.time:.9e}")),  # of equals the recommendation
        without_delay=without_delay,
        over_simple=gain(chosen, simple, job.data),
        over_every_step=gain(chosen, every_step, job.data),
    )


def _strongest(options: Sequence[CandidateSchedule], job: PlanRequest) -> CandidateSchedule | None:
    """Return the fastest of the candidates that may be recommended, by `recommend.decisive_time`; None without one.

    A recommendation is chosen by its worst case over tasks, too; a baseline is not, or it would look weaker than it is.
    """
    return min(contenders(options, job), key=lambda option: decisive_time(option, job), default=None)


def variants(chosen: CandidateSchedule, job: PlanRequest) -> Iterator[Variant]:
    """Plan the job with the quick effort for each other optimizer; yield nothing with a pilot, which fixes it."""
    for optimizer in Optimizer:
        if optimizer is job.optimizer or job.pilot is not None:
            continue
        other = replace(job, optimizer=optimizer, take=None, effort=EFFORTS["quick"], time_limit=None)
        with suppress(PartreduceError):  # no option keeps the limits
            found = decide(other)
            compared = compare(found.chosen, found.options, other)
            is_other = describe(found.chosen.schedule) != describe(chosen.schedule)
            yield Variant(optimizer, compared.over_every_step.ratio, is_other)


def recommendation(planned: Plan, job: PlanRequest, assumed: Mapping[str, str], proved: str) -> list[str]:
    """Return the lines of the answer, none longer than `WIDTH`.

    Args:
        planned: the plan, with all its candidates.
        job: the request.
        assumed: defaults for values that were not stated, by command-line option.
        proved: the result of the recommendation's proof, as a sentence.
    """
    compared, hardware = compare(planned.recommendation, planned.options, job), job.hardware
    chosen = compared.chosen
    what = "Recommendation" if job.take is None else f"Taken: {chosen.name},"
    place = f"{job.cluster}{switch_levels(hardware, job.cluster.num_nodes)}"
    data = f", {job.data} data" if job.data != "shuffled" else ""
    goal = f" ({job.objective})" if job.objective != "balanced" else ""
    guess = " (assumed: give --model-bytes)" if "--model-bytes" in assumed else ""
    model = f"{size(hardware.model_bytes or 0)} model{guess}, {seconds(hardware.compute)} computing per step"
    lines = wrap(f"{what}{goal} for {place}: {model}{data}:", WIDTH, break_on_hyphens=False)
    lines += [f"  {line}" for line in wrap(describe(chosen.schedule), WIDTH - 2)]
    lines += _facts(compared, job, proved[:1].upper() + proved[1:], capped=planned.answer.capped)
    lines += _table(compared)
    for sentence in three_reasons(compared, planned.options, job):
        first, *rest = wrap(sentence, WIDTH - 2, break_on_hyphens=False)
        lines += [f"• {first}", *(f"  {line}" for line in rest)]
    stated = ", ".join(f"{option}={value}" for option, value in assumed.items())
    changes = "; ".join(sensitivity(compared, planned.options, job))
    return [*lines, *_label_lines({"searched": planned.over_quick, "assumed": stated, "would change": changes})]


def _facts(compared: Comparison, job: PlanRequest, proved: str, *, capped: bool) -> list[str]:
    chosen = compared.chosen
    waiting = f", {seconds(chosen.waiting)} waiting" if chosen.waiting > 1e-6 * chosen.step_seconds else ""
    facts = {
        "time per step": f"{seconds(chosen.step_seconds)}, {seconds(chosen.communication)} communicating{waiting}",
        "speedup": _speedup(compared),
        "slow workers": _without_slow_workers(chosen, job),
        "divergence": _divergence(chosen),
        "memory": _memory(chosen, job),
        "tuning": _tuning(chosen),
        "risk": _risk(chosen, job, capped=capped),
        "guarantee": proved,
    }
    return _label_lines(facts)


def times(gain: Gain) -> str:
    """Format a speedup with the interval that holds it in 9 of 10 cases; only the interval if it is a guess."""
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
        return f"this is the best simple schedule; {every}"
    other, ratio = describe(compared.other.schedule), compared.other.time / chosen.time
    if ratio < 1:
        return f"a simple schedule; {other} is predicted {_factor(1 / ratio)}x as fast, but not surely; {every}"
    return f"this is the best simple schedule ({_factor(ratio)}x over the next, {other}); {every}"


def _without_slow_workers(chosen: CandidateSchedule, job: PlanRequest) -> str:
    """Return, as a text, the predicted speedup of a simple schedule without the slow workers.

    The text is empty below `NEARLY_AS_FAST`, and for so many workers that the prediction would take long. Both clusters
    are taken to need equally many samples for a loss. What unequal steps leave out is in their price.
    """
    slowdown, most = Slowdown.of(job), job.limits.max_group
    if not job.is_open or not slowdown.slow or job.cluster.num_workers > FEW_WORKERS:
        return ""
    left = survivors_of(job.cluster, tuple(worker for worker, _ in slowdown.slow))
    limits = replace(job.limits, max_group=None if most is None else min(most, left.num_workers))
    try:
        other = replace(
            job, cluster=left, sync=Delay.SYNCHRONOUS, limits=limits, take=None, tolerate_failures=0, time_limit=None
        )
        best = recommend(competitors(other, names=SIMPLE), other)
    except PartreduceError:  # one worker is left, or no option keeps the limits
        return ""
    fewer = left.num_workers / job.cluster.num_workers / (chosen.gap.gradients if chosen.gap else 1.0)
    ratio = chosen.time / best.time * fewer if best.time > 0 else 0.0
    if ratio < NEARLY_AS_FAST:
        return ""
    return f"{_factor(ratio)}x as fast without {slow_workers(slowdown)} (lost samples counted)"


def _divergence(chosen: CandidateSchedule) -> str:
    """Return how far models of workers differ, as text.

    The unit is the length of a step's gradient noise; the number is the root of the consensus distance.
    """
    distance = chosen.consensus_distance.value
    if distance == 0:
        return "none: all workers hold equal models"
    if distance is None or not math.isfinite(distance):
        return "not known"
    return f"models of workers differ by about {math.sqrt(distance):.1f} steps of gradient noise"


def _memory(chosen: CandidateSchedule, job: PlanRequest) -> str:
    """Return the bytes per worker in addition to parameters, gradients and optimizer state, as text."""
    held = math.nan if chosen.facts is None else chosen.facts.memory_bytes
    if chosen.facts is None:
        with suppress(PartreduceError):
            arrays = ScheduleFacts(chosen.schedule).numbers("memory").get("arrays", math.nan)
            held = float(arrays) * (job.hardware.model_bytes or 0)
    return "not known" if math.isnan(held) else f"{size(held)} per worker besides model, gradients, optimizer state"


def _tuning(chosen: CandidateSchedule) -> str:
    strategy = chosen.schedule.strategy
    todo = {
        "outer learning rate and momentum": not strategy.payload.outer.is_plain,
        "a lower learning rate if the loss stalls": strategy.is_delayed,
        "train with `for batch in optimizer.batches(loader)`": not chosen.schedule.has_one_steps_per_round,
    }
    usual = "none" if strategy.averages_gradients else "learning rate: start with All-Reduce's best"
    return "; ".join(words for words, holds in todo.items() if holds) or usual


def _risk(chosen: CandidateSchedule, job: PlanRequest, *, capped: bool) -> str:
    """Return, as a text, what may make the prediction wrong beyond its stated error; empty if nothing is known.

    `capped`: a time limit ended the planning.
    """
    clauses = []
    if chosen.extrapolated:
        clauses.append("nothing that averages as rarely was measured, so its steps are a guess")
    if chosen.may_fail:
        clauses.append(failed_networks(chosen, job))
    if not clauses and not chosen.schedule.strategy.averages_gradients and job.pilot is None:
        clauses.append("its steps are predicted from other networks")
    if clauses:
        clauses.append("`partreduce measure` tries it on your job")
    if capped:
        clauses.append("the time limit cut planning short, another run may differ")
    return "; ".join(clauses)


def _table(compared: Comparison) -> list[str]:
    """Return the lines of the table of five schedules; a repeated schedule is shown as the name of its first row."""
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
        description = describe(option.schedule)
        same = shown.setdefault((description, option.step_seconds), label)
        words = "as above" if label == "recommended" else f"as {same}" if same != label else description
        cells = f"{seconds(option.step_seconds):>{CELLS}}"
        cells += f"{_factor(base / option.time) + 'x' if option.time > 0 else '-':>{CELLS}}"
        first, *rest = wrap(words, room - 1, max_lines=MOST_LINES, placeholder=" …")
        lines.append(f"{label:{LABEL}}{first:{room}}{cells}")
        lines += [" " * LABEL + line for line in rest]
    return lines


def three_reasons(compared: Comparison, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """Return three sentences: the time that a step saves, the cost in steps, and why no faster candidate is chosen."""
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
        fewer = (
            f" ({1 / chosen.progress:.2f}x because slow workers take fewer)"
            if chosen.progress < 0.99 and chosen.facts is None
            else ""
        )
        second = (
            f"It needs {chosen.steps_ratio:.2f}x All-Reduce's steps{fewer}; {chosen.basis} lay within {error:.0%} of "
            "their prediction."
        )
    if fastest.time * (1 + TIE) >= chosen.time:
        third = f"Nothing else that was compared is predicted to be faster by more than {TIE:.0%}."
    else:
        clause = why_not(fastest, chosen, options, job) if job.take is None else "another one was asked for"
        third = f"The fastest ({_factor(chosen.time / fastest.time)}x over this) is not taken: {clause}."
    return [first, second, third]


def sensitivity(compared: Comparison, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """Return clauses on the predicted effects of a codec, and of other optimizers, the largest change first."""
    clauses: list[tuple[float, str]] = []
    now = compared.over_every_step.ratio
    for optimizer, speedup, is_other in variants(compared.chosen, job):
        change = max(speedup / now, now / speedup) if speedup > 0 else math.inf
        clauses.append((change, f"{_factor(speedup)}x with {OPTIMIZERS[optimizer]}{' (another schedule)' * is_other}"))
    words = (
        [f"over All-Reduce {', '.join(one for _, one in sorted(clauses, key=lambda one: -one[0]))}"] if clauses else []
    )
    if coded := best_with_codec(compared.chosen, options, job):
        words.insert(0, f"at least {_factor(coded[1])}x faster with --codec {coded[0].transport.codec}")
    return words


def _label_lines(facts: Mapping[str, str]) -> list[str]:
    """Return the lines of texts, wrapped, each with its label on the left; `facts` maps labels to texts."""
    lines: list[str] = []
    for label, words in facts.items():
        for i, line in enumerate(wrap(words, WIDTH - LABEL - 2, break_on_hyphens=False)):
            lines.append(f"{'' if i else label:{LABEL}}  {line}")
    return lines
