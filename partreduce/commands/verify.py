"""`partreduce verify`: prove or refute a schedule's claims, with figures and a certificate."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partreduce.commands.options import Json, quantity

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule
    from partreduce.verify.base import Claim, Proof

MARK = {
    "proved": "[green]proved[/]",
    "fact": "[green]fact[/]",
    "follows from the rules": "[green]follows from the protocol's rules[/]",
    "refuted": "[bold red]refuted[/]",
    "not proved": "[yellow]not proved[/]",
}
"""Proved by a witness; a fact of the file; holding of a program that obeys its protocol's rules; and the other two."""


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule file, or FILE.py:NAME, a group_of function.")],
    *,
    certificate: Annotated[Path | None, typer.Option(help="Write the certificate here.", metavar="FILE")] = None,
    as_json: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say in words why each claim holds or not.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the witness: tree, conflict or closed set.", metavar="FILE")
    ] = None,
    gap: Annotated[
        list[str] | None, typer.Option(help="Also judge that a spectral gap is at least this.", metavar="KIND:VALUE")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="For FILE.py:NAME: where it runs.")] = None,
    period: Annotated[int | None, typer.Option(help="For FILE.py:NAME: after how many steps it repeats.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="For FILE.py:NAME: write the proved expansion here.", metavar="FILE")
    ] = None,
    max_bytes: Annotated[str, typer.Option(help="Refuse larger files.", metavar="SIZE")] = "16MiB",
) -> int:
    """Prove that a schedule cannot conflict or deadlock and reaches consensus; exit 1 if a claim is refuted."""
    import json

    from partreduce.console import claim_stdout, console, emit_json, write_text
    from partreduce.report.picture import check
    from partreduce.topo.document.schedule import load_schedule
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.errors import InputError
    from partreduce.topo.units import parse_size
    from partreduce.verify.prove import prove

    check(plot)
    claim_stdout(certificate, export, as_json=as_json)
    if schedule.stem.endswith(".py") or ".py:" in schedule.name:
        loaded, proof = _of_function(str(schedule), cluster, period)
    elif cluster is not None or period is not None or export is not None:
        raise typer.BadParameter("is for FILE.py:NAME; a schedule file says it itself", param_hint="--cluster/--period")
    else:
        loaded = load_schedule(schedule, max_bytes=quantity("--max-bytes", parse_size, max_bytes))
        proof = prove(loaded)
    if gap and loaded is not None:
        proof = replace(proof, claims=(*proof.claims, *(_gap_claim(loaded, text) for text in gap)))
    figures = figures_of(loaded)
    if export is not None and loaded is not None:
        write_schedule(export, loaded.with_certificate(proof.certificate))
    if certificate is not None and not proof.certificate:
        raise InputError(
            f"{schedule}: there is no certificate to write, because nothing about fixed groups is proved; leave out "
            "--certificate"
        )
    if certificate is not None:
        write_text(certificate, json.dumps(dict(proof.certificate), sort_keys=True, separators=(",", ":")) + "\n")
    if plot is not None and loaded is not None:
        from partreduce.report.witness import draw_witness

        draw_witness(loaded, proof, plot)
    if as_json:
        claims = [claim.to_json() | ({"explanation": claim.explanation} if explain else {}) for claim in proof.claims]
        emit_json(
            {
                "verdict": proof.verdict.value,
                "claims": claims,
                "figures": figures,
                "budgets": dict(proof.budgets),
            }
        )
    else:
        _print(loaded, proof, figures, explain=explain)
        if certificate is not None:
            from partreduce.verify import checker

            console().print(f"certificate written to {certificate}; check it with", style="dim")
            console().print(f"  python -I {Path(checker.__file__).parent} {certificate} {schedule}", style="dim")
    return {"refuted": 1, "not proved": 3}.get(proof.verdict.value, 0)


def _of_function(place: str, cluster: str | None, period: int | None) -> "tuple[Schedule | None, Proof]":
    """The expansion and proof of a user's `group_of(worker, step, cluster)`.

    Raises:
        InputError: the cluster or period is missing, or the function cannot be run.
    """
    from partreduce.topo.document.cluster import load_cluster
    from partreduce.topo.errors import InputError
    from partreduce.verify.functions import prove_function_file

    if cluster is None or period is None:
        raise InputError(f"{place}: a function needs --cluster and --period, the declared number of steps of a period")
    proved = prove_function_file(place, load_cluster(cluster), period)
    return proved.schedule, proved.proof


def _gap_claim(schedule: "Schedule", text: str) -> "Claim":
    """`hop:0.2681` → the claim that the gap is at least that, proved or refuted exactly.

    Raises:
        InputError: not KIND:VALUE.
    """
    from fractions import Fraction

    from partreduce.topo.errors import InputError
    from partreduce.verify.spectral_gap import prove_gap

    kind, _, value = text.partition(":")
    try:
        least = Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--gap {text!r}: write KIND:VALUE, such as hop:0.2681 or slem:1/3") from None
    return prove_gap(schedule, kind, least)


def figures_of(schedule: "Schedule | None") -> dict[str, Any]:
    """The figures as plain numbers (null where there is none), with the kind and method of each under `how`."""
    if schedule is None:
        return {"how": {}}
    from partreduce.topo.errors import ScheduleError
    from partreduce.topo.figures import figures

    try:
        return figures(schedule).to_json()
    except ScheduleError as error:
        # Overlapping groups have no mixing matrix; the refuted claim already says where they overlap.
        return {"num_workers": schedule.num_workers, "how": {"none": {"kind": "exact", "how": str(error)}}}


def _print(schedule: "Schedule | None", proof: "Proof", figures: dict[str, Any], *, explain: bool) -> None:
    from rich.markup import escape

    from partreduce.console import console, number
    from partreduce.report.table import Column, table
    from partreduce.topo.strategies.axes import WIDER

    out = console()
    if schedule is None:
        out.print(f"[bold]{escape(proof.name)}[/]: {MARK[proof.verdict.value]}")
    else:
        out.print(
            f"[bold]{escape(schedule.name)}[/] on {schedule.cluster}: {schedule.num_workers} workers, strategy "
            f"{schedule.strategy.kind}: {MARK[proof.verdict.value]}"
        )
    _print_claims(proof)
    if schedule is not None and schedule.strategy.when.word == "pipeline" and schedule.strategy.when.lag > 1:
        out.print(f"[bold]A pipeline of {schedule.strategy.when.lag + 1}[/] was asked for, although {WIDER}.")
    for claim in proof.claims:
        if explain or not claim.holds:
            out.print(f"[bold]{escape(claim.claim)}[/]: {escape(claim.explanation)}")
    if schedule is not None and not schedule.is_mixing:
        out.print(f"No figures: {schedule.undecided}; `partreduce simulate` runs it in virtual time.", style="dim")
        return
    how = figures["how"]
    shown = table("Figures", "figure", "value", Column("kind", drop=1))
    for name, value in figures.items():
        if name in {"how", "contraction_per_start"}:
            continue
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            label = how.get(f"{name}.{key}" if key else name, {"kind": "exact"})
            shown.add(f"{name} {key}".strip(), number(part, 6), label["kind"])
    out.print(shown)
    if explain:
        for name, label in how.items():
            out.print(f"[bold]{name}[/]: {escape(label['how'])}")


def _print_claims(proof: "Proof") -> None:
    from rich.markup import escape

    from partreduce.console import console
    from partreduce.report.table import table

    claims = table("Claims", "claim", "status")
    for claim in proof.claims:
        aside = " [dim](a property, not needed)[/]" if claim.is_property and claim.status.value == "refuted" else ""
        claims.add(escape(claim.claim), MARK[claim.status.value] + aside)
    console().print(claims)
    if proof.verdict.value == "proved" and proof.assumed:
        names = ", ".join(proof.assumed)
        console().print(f"Assumed: the program obeys its protocol's rules, which {names} follows from.")
