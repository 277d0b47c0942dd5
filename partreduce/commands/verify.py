"""`partreduce verify`: prove or refute a schedule's claims, with metrics and a certificate."""

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from partreduce.commands import options
from partreduce.commands.options import quantity
from partreduce.console import claim_stdout, console, emit_json, number, size, write_text
from partreduce.report.table import Column, table
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.metrics import metrics
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import WIDER
from partreduce.topo.units import parse_size
from partreduce.user_function import function_of
from partreduce.verify import checker
from partreduce.verify.base import Claim, Proof, Status, upper
from partreduce.verify.certificate import certificate_bytes, confirm
from partreduce.verify.payload import in_bytes
from partreduce.verify.prove import prove, prove_function

own = options.panel()
VERDICTS = {
    Status.PROVED: "[bold green]PROVED[/]",
    Status.FOLLOWS: "[bold green]HOLDS IF THE PROGRAM FOLLOWS ITS PROTOCOL[/]",
    Status.REFUTED: "[bold red]REFUTED[/]",
    Status.NOT_PROVED: "[bold yellow]NOT PROVED[/]",
}
HEADINGS = {
    Status.REFUTED: "[bold red]Refuted[/]",
    Status.PROVED: "[bold]Proved[/]",
    Status.FACT: "[bold]Computed from the file[/]",
    Status.FOLLOWS: "[bold]Holds if the program follows its protocol[/]",
    Status.NOT_PROVED: "[bold yellow]Not proved[/]",
}


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule file, or FILE.py:NAME, a group_of function.")],
    *,
    certificate: Annotated[Path | None, own("Write the certificate here.", metavar="FILE")] = None,
    as_json: options.Json = False,
    explain: Annotated[bool, own("Say in words why each claim holds or not.", "--explain")] = False,
    show_metrics: Annotated[bool, own("Print the metrics, too; --json has them.", "--metrics")] = False,
    cluster: Annotated[str | None, own("For FILE.py:NAME: where it runs.")] = None,
    period: Annotated[int | None, own("For FILE.py:NAME: after how many steps it repeats.")] = None,
    export: Annotated[Path | None, own("Write the schedule here, canonical and certified.", metavar="FILE")] = None,
    max_bytes: Annotated[str, own("Refuse larger files.", metavar="SIZE")] = "16MiB",
    model_bytes: options.ModelBytes = None,
    allow_no_consensus: Annotated[
        bool, own("Exit with 0 also where only consensus is not guaranteed.", "--allow-no-consensus")
    ] = False,
) -> int:
    """Prove that a schedule has no conflicts, cannot deadlock and reaches consensus; exits with 1 if not."""
    claim_stdout(certificate, export, as_json=as_json)
    loaded, proof = _load_and_prove(schedule, cluster, period, quantity("--max-bytes", parse_size, max_bytes))
    sent = {} if model_bytes is None else _sent_bytes(proof, model_bytes)
    _write(schedule, loaded, proof, certificate=certificate, export=export)
    if as_json:
        claims = [claim.to_json() | ({"explanation": claim.words} if explain else {}) for claim in proof.claims]
        emit_json(proof.to_json() | {"claims": claims, "metrics": metrics_of(loaded) | sent})
    else:
        _print(loaded, proof, explain=explain)
        if show_metrics and loaded is not None:
            _print_metrics(loaded, explain=explain)
        if sent:
            print_sent(sent["sent_bytes"], loaded)
        if certificate is not None:
            _print_how_to_check(certificate, schedule)
    needed = proof.without_consensus() if allow_no_consensus else proof
    code = {"refuted": 1, "not proved": 3}.get(needed.verdict.value, 0)
    if code or loaded is None or not loaded.certificate:
        return code
    is_checked = certificate_bytes(loaded.certificate) == certificate_bytes(proof.certificate or {})
    if not is_checked:
        confirm(loaded)  # a run raises an error if the file's own certificate is wrong, even if the file is proved here
    return code


def _sent_bytes(proof: Proof, model_bytes: str) -> dict[str, dict[str, int]]:
    size = quantity("--model-bytes", parse_size, model_bytes)
    if "sent-bytes" not in proof or not proof["sent-bytes"].numbers:
        raise InputError("--model-bytes: what a step sends is a fact of fixed rounds only; leave it out")
    return {"sent_bytes": in_bytes(proof["sent-bytes"].numbers or {}, size)}


def print_sent(sent: dict[str, int], schedule: Schedule | None) -> None:
    """Print as a sentence the most bytes that a worker and a node send (`sent`, from the fact `sent-bytes`)."""
    is_same = schedule is None or schedule.has_one_steps_per_round
    worker, node, way = (size(float(upper(Fraction(sent[name]), 4))) for name in ("of_worker", "of_node", "in_flight"))
    console().print(
        f"sent-bytes, a fact: in one {'step' if is_same else 'round'} no more than {worker} leave a worker and {node} "
        f"a node, and operations on no more than {way} are in flight at a worker."
    )


def _load_and_prove(
    place: Path, cluster: str | None, period: int | None, max_bytes: int
) -> tuple[Schedule | None, Proof]:
    """Return the schedule and its proof.

    `place` is a schedule file, or `FILE.py:NAME`, a user's function of the group of a rank in a step (`group_of`). The
    schedule is None if the function's groups make none; the proof then says why.
    """
    if place.stem.endswith(".py") or ".py:" in place.name:
        if cluster is None or period is None:
            needs = "a function needs --cluster and --period, the declared number of steps of a period"
            raise InputError(f"{place}: {needs}")
        function = function_of(str(place), "FILE.py:NAME")
        proved = prove_function(function, load_cluster(cluster), period, str(place).rpartition(":")[2])
        return proved.schedule, proved.proof
    if cluster is not None or period is not None:
        raise typer.BadParameter("is for FILE.py:NAME; a schedule file says it itself", param_hint="--cluster/--period")
    loaded = load_schedule(place, max_bytes=max_bytes)
    return loaded, prove(loaded)


def _write(
    place: Path, loaded: Schedule | None, proof: Proof, *, certificate: Path | None, export: Path | None
) -> None:
    if export is not None and loaded is not None:
        write_schedule(export, loaded.with_certificate(proof.certificate))
    if certificate is not None and not proof.certificate:
        raise InputError(
            f"{place}: there is no certificate to write, because nothing about fixed groups is proved; leave out "
            "--certificate"
        )
    if certificate is not None:
        write_text(certificate, certificate_bytes(proof.certificate).decode())


def _print_how_to_check(certificate: Path, schedule: Path) -> None:
    console().print(f"certificate written to {certificate}; check it with", style="dim")
    # The checker reads files only, so a pipe's content has to be saved to a file first.
    files = " ".join(
        word if str(path) == "-" else str(path) for path, word in ((certificate, "CERTIFICATE"), (schedule, "SCHEDULE"))
    )
    console().print(f"  python -I {Path(checker.__file__).parent} {files}", style="dim")


def metrics_of(schedule: Schedule | None) -> dict[str, Any]:
    """Return the schedule's metrics by name, None if unknown; the key `how` has the kind and method of each metric."""
    if schedule is None:
        return {"how": {}}

    try:
        return metrics(schedule).to_json()
    except ScheduleError as error:
        # Overlapping groups have no mixing matrix; the refuted claim already says where they overlap.
        return {"num_workers": schedule.num_workers, "how": {"none": {"kind": "exact", "how": str(error)}}}


def _print(schedule: Schedule | None, proof: Proof, *, explain: bool) -> None:
    """Print the verdict, then the claims under one heading per status, refuted ones first."""
    out = console()
    out.print(f"{verdict_line(schedule, proof)}.")
    if schedule is None:
        out.print(escape(proof.name))
    else:
        about = f"{schedule.cluster}: {schedule.num_workers} workers, strategy {schedule.strategy.kind}"
        out.print(f"{escape(schedule.name)} on {about}")
        if schedule.strategy.sync.word == "pipeline" and schedule.strategy.sync.lag > 1:
            width = schedule.strategy.sync.lag + 1
            out.print(f"[bold]A pipeline of {width}[/] was asked for, although {WIDER}.")
    for status, heading in HEADINGS.items():
        claims = [claim for claim in proof.claims if claim.status is status]
        if claims:
            out.print(f"\n{heading}")
        for claim in claims:
            aside = " (a property, not needed)" if claim.is_property and status is Status.REFUTED else ""
            aside += " (before a failure)" * claim.before_failure
            bound = f" {_bound_of(claim)}" if _bound_of(claim) else ""
            words = f": {escape(claim.words)}" if explain or not claim.holds else ""
            out.print(f"  {escape(claim.claim)}{bound}[dim]{aside}[/]{words}")
    if proof.verdict in (Status.PROVED, Status.FOLLOWS):
        out.print()
        for claim in proof.claims:
            if claim.assumes and not explain:
                out.print(f"Assumed for {claim.claim}: {escape(claim.assumes)}.")
        out.print("Not claimed: how fast a step is, that the loss falls, or where SGD converges to.")


def _print_metrics(schedule: Schedule, *, explain: bool) -> None:
    if not schedule.is_mixing:
        text = f"No metrics: {schedule.undecided}; `partreduce simulate` runs it in virtual time."
        console().print(text, style="dim")
        return
    found = metrics_of(schedule)
    how = found["how"]
    shown = table("Metrics, rounded; exact: by a formula, not by sampling", "metric", "value", Column("kind", drop=1))
    for name, value in found.items():
        if name in {"how", "contraction_per_start"}:
            continue
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            label = how.get(f"{name}.{key}" if key else name, {"kind": "exact"})
            shown.add(f"{name} {key}".strip(), number(part, 6), label["kind"])
    console().print(shown)
    if explain:
        for name, label in how.items():
            console().print(f"[bold]{name}[/]: {escape(label['how'])}")


def verdict_line(schedule: Schedule | None, proof: Proof) -> str:
    """Return the verdict as one sentence: the refuted or unknown claims, or the guarantees for training."""
    against = [claim.summary or claim.explanation.rstrip(".") for claim in proof.claims if claim.is_refuted_requirement]
    if not against and proof.open:
        is_known = "are not known" if len(proof.open) > 1 else "is not known"
        against = [f"{' and '.join(sorted(proof.open))} {is_known} to hold"]
    alone, followed = ("", "") if against or schedule is None else in_plain_words(schedule, proof)
    words = against or [alone]
    if proof.parting_words and "consensus" not in proof.open and not any(claim.summary for claim in proof.claims):
        words.append(proof.parting_words)
    if followed:
        followed = f". If the program follows its protocol: {escape(followed)}"
    return f"{VERDICTS[proof.verdict]}: {escape('; '.join(filter(None, words)))}{followed}"


def in_plain_words(schedule: Schedule, proof: Proof) -> tuple[str, str]:
    """Return what is proved for training as two clauses, which may be empty.

    The first holds by the schedule file alone, the second if the program follows its protocol. If the verdict already
    says that everything depends on the protocol, the first clause has both.
    """
    held = {claim.claim: claim for claim in proof.claims if claim.holds}
    phrases = {"conflict-free": "no conflict", "deadlock-free": "no deadlock"}
    bound = _bound_of(held["contraction"]) if "contraction" in held else ""
    had = f"of the differences that {'a fragment' if schedule.strategy.payload.num_fragments > 1 else 'the models'} had"
    if (replicas := held.get("equal-replicas")) and replicas.numbers and "rounds" in replicas.numbers:
        besides = ", but for rows of sharded tables" if "one-owner" in held else ""
        phrases["consensus"] = "consensus"
        phrases["equal-replicas"] = f"all workers hold the same model every {_steps(schedule)}{besides}"
    elif replicas and replicas.numbers and "every" in replicas.numbers:  # a number of rounds under a quorum
        every = replicas.numbers["every"]
        after = "as many" if every == 1 else f"every {every}"
        phrases["equal-replicas"] = f"all workers hold the same model after {after} rounds"
    elif bound == "≤ 0":
        phrases["contraction"] = f"every {_steps(schedule)} nothing but rounding is left {had}"
    elif bound and bound != "≤ 1":
        phrases["contraction"] = f"every {_steps(schedule)} at most {bound[2:]} is left {had}"
    elif "outer-consensus" in held:
        agree = f"by a factor of at most {_bound_of(held['outer-consensus'])[2:]} every {_steps(schedule)}"
        phrases["outer-consensus"] = f"without gradients the outer parameters come to agree, {agree}"
    else:
        phrases["consensus"] = "the models are drawn together"
    phrases = {name: words for name, words in phrases.items() if name in held}
    follows = (
        set[str]() if proof.verdict is Status.FOLLOWS else {n for n in phrases if held[n].status is Status.FOLLOWS}
    )
    alone, added = ([phrases[n] for n in phrases if (n in follows) is is_added] for is_added in (False, True))
    return ", ".join(alone), ", ".join(added)


def _steps(schedule: Schedule) -> str:
    rounds = schedule.meetings.period if schedule.meetings.is_mixing else 1
    least, most = int(schedule.worker_steps().min()) * rounds, schedule.largest_steps_per_round * rounds
    if most == 1:
        return "step"
    steps = f"{most} steps" if least == most else f"{least} to {most} steps"
    return steps if most == rounds else f"{steps} ({rounds} round{'s' * (rounds > 1)})"


def _bound_of(claim: Claim) -> str:
    """Return the bound that a claim proves, rounded up, such as `≤ 0.5`; empty if it proves no number."""
    entry = claim.entry or {}
    if "squared" in entry and claim.claim in {"contraction", "outer-consensus"}:
        return f"≤ {upper(Fraction(entry['squared']), 4, power=2)}"
    return f"≤ {upper(Fraction(entry['at_most']), 4)}" if "at_most" in entry else ""
