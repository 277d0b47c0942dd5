"""The search of `partreduce design`: plan a job, and write the plan as tables, files and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import fill, indent

from rich.markup import escape
from rich.text import Text

from partreduce.commands.verify import verdict_line
from partreduce.console import claim_stdout, console, emit_json, number, seconds, size, suggest_verify
from partreduce.planner.job import PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.plan import Plan, plan
from partreduce.planner.tables import Hybrid, ModelFacts, plan_hybrid
from partreduce.report.front import draw_front
from partreduce.report.picture import check, save
from partreduce.report.reasons import add_reasons
from partreduce.report.recommendation import WIDTH, recommendation
from partreduce.report.table import Column, Table, switch_levels
from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.describe import describe
from partreduce.topo.document.writer import check_without_place, write_schedule
from partreduce.topo.errors import InfeasibleError, UndecidedError

MAX_ROWS = 20

MARK = "*"
"""The mark behind the name of a baseline."""


def search(
    job: PlanRequest,
    *,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    assumed: Mapping[str, str],
    model: ModelFacts | None = None,
    show_front: bool = False,
    explain: bool = False,
) -> None:
    """Plan a job, write the files that options name, and print the recommendation.

    `output` is for the schedule with its certificate, `plot` for a picture of the Pareto front. `show_front` prints the
    front as well, `explain` all reasons and cautions. `assumed` holds the defaults of options that were not given. If a
    `model` is given, the plan also places its embedding tables. Raises InfeasibleError or UndecidedError if no schedule
    is within the job's limits.
    """
    check(plot)
    claim_stdout(output, as_json=as_json)
    if plot is not None:
        check_without_place(plot)
    try:
        with _progress(_how_long(job), as_json=as_json) as say:
            hybrid = None if model is None else plan_hybrid(job, model, progress=say)
            job = job if hybrid is None else hybrid.job
            planned = plan(job, progress=say) if hybrid is None else hybrid.planned
            if as_json or explain:
                planned = add_reasons(planned, job)
            hybrid = None if hybrid is None else replace(hybrid, planned=planned)
    except (InfeasibleError, UndecidedError) as error:
        if as_json:
            status = Status.INFEASIBLE if isinstance(error, InfeasibleError) else Status.UNKNOWN
            emit_json({"answer": {"status": str(status), "because": str(error)}})
        raise
    document = (hybrid or planned).to_json() | ({"assumed": dict(assumed)} if assumed else {})
    proof = planned.proof if hybrid is None else hybrid.proof
    if output is not None:
        schedule = planned.recommendation.schedule if hybrid is None else hybrid.schedule
        write_schedule(output, schedule.with_certificate(proof.certificate))
    if plot is not None:
        save(draw_front(planned, job.data), plot)
    if as_json:
        emit_json(document | ({"output": str(output)} if output else {}))
        return
    if not proof.guarantees_consensus:
        console().print(f"consensus: {planned.consensus} ({planned.recommendation.name})", style="bold yellow")
    proved = Text.from_markup(f"{verdict_line(planned.recommendation.schedule, planned.proof)}.").plain
    for line in recommendation(planned, job, assumed, proved):
        console().print(line, markup=False)
    _print_more(planned, job, hybrid, show_front=show_front, explain=explain)
    for path in (output, plot):
        if path is not None:
            console().print(f"written to {path}")
    suggest_verify(output, guarantees_consensus=proof.guarantees_consensus)


def _print_more(planned: Plan, job: PlanRequest, hybrid: Hybrid | None, *, show_front: bool, explain: bool) -> None:
    if show_front:
        _print_front(planned, job)
    if explain:
        _print_reasons(planned)
    if hybrid is not None:
        _print_tables(hybrid, explain=explain)
    if not (show_front or explain):
        console().print("--all lists the alternatives, --explain gives all reasons.", style="dim")


def _how_long(job: PlanRequest) -> str:
    """Return a clause for the terminal: how long planning may take, and the options that change it."""
    if not job.searches:
        return "a quick answer; --effort thorough searches for better ones"
    return f"the search takes {seconds(job.clock().seconds)} at most; --time-limit and --effort change it"


@contextmanager
def _progress(words: str, *, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Context manager: yield a function that shows its text in one line of the terminal, in place of the last text.

    Without a terminal it does nothing, and one line with `words` is printed at the start, except with `as_json`.
    """
    terminal = console(errors=True)
    if as_json:
        yield lambda _: None
        return
    if not terminal.is_terminal:
        console().print(f"Planning; {words}.", style="dim")
        yield lambda _: None
        return
    with terminal.status("planning") as status:
        yield status.update


def _select_rows(planned: Plan) -> list[CandidateSchedule]:
    """Return the schedules that the printed table of a plan lists, those with the least communication first.

    They are the recommendation, the baselines, the fastest schedule of each kind that runs under a protocol or takes
    outer steps, and the plan's Pareto front, or evenly spaced entries of it if all would exceed `MAX_ROWS`.
    """
    kinds: dict[str, CandidateSchedule] = {}
    for option in sorted(planned.options, key=lambda one: one.time, reverse=True):
        if option.facts is not None:
            kinds[option.facts.kind] = option  # the last one is the best of its kind
    always = {id(option): option for option in [planned.recommendation, *planned.baselines, *kinds.values()]}
    others = [option for option in planned.front if id(option) not in always]
    room = max(2, MAX_ROWS - len(always))
    if len(others) > room:
        others = [others[round(i * (len(others) - 1) / (room - 1))] for i in range(room)]
    return sorted([*always.values(), *others], key=lambda option: (option.communication, option.name))


def _print_front(planned: Plan, job: PlanRequest) -> None:
    hardware, shown = job.hardware, _select_rows(planned)
    queues = [Column("queues", drop=5)] if any(option.facts for option in shown) else []
    columns = [Column("schedule / NAME", justify="left", wraps=True), Column("period", drop=6)]
    columns += [*map(Column, ("comm.", "step", "distance")), Column("drift", drop=2), Column("steps"), Column("time")]
    rows = Table(
        f"{job.cluster}{switch_levels(hardware, job.cluster.num_nodes)}: {size(hardware.model_bytes or 0)} model, "
        f"{seconds(hardware.compute)} computing per step, {job.data} data",
        [*columns, *queues, Column("status", drop=4)],
    )
    baselines = {id(option) for option in planned.baselines}
    for option in shown:
        facts = option.facts
        held = [size(facts.memory_bytes) if facts else "-"] if queues else []
        rows.add(
            f"{describe(option.schedule)}{f' {MARK}' * (id(option) in baselines)}\n  [dim]{escape(option.name)}[/]",
            str(option.period), seconds(option.communication), seconds(option.step_seconds),
            number(option.consensus_distance.value), number(option.drift.value), f"{option.steps_ratio:.3f}",
            seconds(option.time), *held, option.status, style="bold green" if option is planned.recommendation else
            None,
        )  # fmt: skip
    screen = console()
    screen.print(rows)
    screen.print(
        "Per step: communication, whole step with waiting. distance: consensus distance; steps: predicted steps to a "
        f"loss over All-Reduce's; time: step × steps. {MARK}: baselines; no other is worse than another in everything."
        + (
            " queues: memory of the busiest worker without its parameters, where a protocol or an outer step needs it."
            * bool(queues)
        ),
        style="dim",
    )
    if len(planned.front) > MAX_ROWS:
        count = len(planned.front)
        screen.print(f"{count} schedules are on the front: --json lists all, --select NAME writes any.", style="dim")


def _print_reasons(planned: Plan) -> None:
    screen = console()
    screen.print(f"\n{planned.recommendation.name}", style="bold")
    if planned.answer.status is Status.OPTIMAL:
        screen.print(f"It is optimal: {planned.answer.because}.")
    guesses = int(planned.recommendation.extrapolated)  # its caution is the first, and is printed before the reasons
    for sentence in planned.cautions[:guesses]:
        screen.print(f"  ! {sentence}", style="yellow")
    for sentence in planned.reasons:
        screen.print(f"  • {sentence}")
    for sentence in planned.cautions[guesses:]:
        screen.print(f"  ! {sentence}", style="yellow")


def _print_tables(hybrid: Hybrid, *, explain: bool) -> None:
    screen, routes = console(), hybrid.chosen.routes
    if not routes:
        summary = "Tables: the model has none that embeddings look up; all of it is averaged."
    else:
        measured = f" (touched rows from {hybrid.num_steps} steps)" if hybrid.num_steps else ""
        summary = (
            f"Tables, in addition to {size(hybrid.chosen.dense_bytes)} that the strategy averages{measured}: "
            f"{seconds(hybrid.step_seconds)} and {size(hybrid.nic_bytes)} out of a node per step in all, "
            f"{hybrid.proof.verdict}"
        )
    screen.print(fill(summary, WIDTH), style="bold", markup=False)
    for sentence in hybrid.chosen.reasons if routes and explain else ():
        screen.print(f"  • {escape(sentence)}")
    for sentence in hybrid.cautions if routes else ():
        screen.print(indent(fill(f"! {sentence}", WIDTH - 4), "  "), style="yellow", markup=False)
