"""`partreduce demo`: design, prove, train with and compare schedules on this machine in a few minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from partreduce.commands.options import Json, panel
from partreduce.commands.verify import verdict_line
from partreduce.console import console, emit_json, write_text
from partreduce.demo import stages
from partreduce.demo.report import HEADER, next_commands, table_rows, write_report
from partreduce.demo.stages import TARGET, THIN_WORDS, Candidate, Result, conclusion
from partreduce.report.table import Column, table
from partreduce.runtime.recorder import merge_traces
from partreduce.topo.extras import require

if TYPE_CHECKING:
    from partreduce.demo.train import Plan


own = panel()


def command(
    output: Annotated[Path, own("Folder for all files.", "--output", "-o")] = Path("partreduce-demo"),
    *,
    steps: Annotated[int, own("Steps of every run.", min=10)] = 160,
    turns: Annotated[int, own("Runs of every schedule, for the range of seconds.", min=1)] = 3,
    seed: Annotated[int, own("Seed of model and batches.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Design three schedules for 2 nodes of 4 workers, prove them, train real workers under each, and report."""
    require("torch", "sklearn", "matplotlib", purpose="the demonstration")
    from partreduce.demo.train import Plan

    stages.make_folder(output)
    candidates = stages.prepare(output, "2x4")
    verdicts = [verdict_line(candidate.schedule, candidate.proof) for candidate in candidates]
    if not as_json:
        _print_verdicts(candidates, verdicts)
    schedules = {c.key: str(c.path) for c in candidates}
    plan = Plan(schedules=schedules, folder=str(output / "runs"), num_nodes=2, steps=steps, turns=turns, seed=seed)
    _train(plan, output, candidates, quiet=as_json)
    measured = stages.results(plan, candidates)
    for candidate in candidates:
        for turn in range(plan.turns):
            merge_traces(plan.place(candidate.key, turn))

    page = output / "report.html"
    write_text(page, write_report(plan, candidates, measured, [Text.from_markup(v).plain for v in verdicts]))
    if as_json:
        emit_json({"report": str(page), "target_loss": stages.TARGET, "runs": _documents(candidates, measured)})
    else:
        _log_end(candidates, measured, page)


def _print_verdicts(candidates: list[Candidate], verdicts: list[str]) -> None:
    out = console()
    out.print("[bold]1 Design, prove, export[/]: 8 workers as 2 nodes of 4")
    for candidate, verdict in zip(candidates, verdicts, strict=True):
        out.print(f"  {candidate.label}: {verdict}.")
        out.print(f"    {candidate.path} with its certificate", style="dim")
    out.print("[bold]2 Train[/]: real processes over gloo, digits, the same hyper-parameters for all, in turns")


def _train(plan: "Plan", output: Path, candidates: list[Candidate], *, quiet: bool) -> None:
    if quiet:
        stages.train(plan, output, lambda *_: None)
        return
    columns = (TextColumn("  {task.description:<14}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    with Progress(*columns, TimeElapsedColumn(), console=console()) as progress:
        tasks = {c.key: progress.add_task(c.label, total=plan.steps * plan.turns, start=False) for c in candidates}

        def watch(name: str, step: int) -> None:
            progress.start_task(tasks[name])
            progress.update(tasks[name], completed=step)

        stages.train(plan, output, watch)


def _log_end(candidates: list[Candidate], measured: list[Result], page: Path) -> None:
    out = console()
    # On a narrow terminal "last loss" is dropped first; bytes, steps and seconds to the target are never dropped.
    leave = {"last loss": 3, "test accuracy": 2, "step on a thin link": 1}
    results = table("3 Result", HEADER[0], *(Column(word, drop=leave.get(word, 0)) for word in HEADER[1:]))
    for row in table_rows(candidates, measured):
        results.add(*row)
    out.print(results)
    out.print(f"Seconds: all turns on this machine, with its other work; the last column is {THIN_WORDS}.", style="dim")
    for line in conclusion(measured, TARGET):
        out.print(line)
    out.print(f"\n[bold]Report[/]: {page}   [bold]traces[/]: {page.parent / 'runs'}")
    out.print("[bold]Next[/]:")
    for line in next_commands(candidates):
        out.print(f"  {line}")


def _documents(candidates: list[Candidate], measured: list[Result]) -> list[dict[str, object]]:
    documents: list[dict[str, object]] = []
    for candidate, result in zip(candidates, measured, strict=True):
        reached = result.reached(TARGET)
        documents.append(
            {
                "name": candidate.label,
                "schedule": str(candidate.path),
                "verdict": candidate.proof.verdict.value,
                "steps_to_target": None if reached is None else reached[0],
                "seconds_to_target": None if reached is None else reached[1].tolist(),
                "seconds": result.seconds[:, -1].tolist(),
                "loss": float(result.loss[-1]),
                "test_accuracy": float(result.accuracy[-1]),
                "bytes_across_nodes": result.bytes_across,
                "predicted_seconds_per_step_on_a_thin_link": candidate.predicted(),
            }
        )
    return documents
