"""`preduce verify`: prove or refute a schedule's claims, with figures and a certificate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from preduce.commands.options import Json

if TYPE_CHECKING:
    from topo.schedule import Schedule
    from verify.base import Proof

MARK = {"proved": "[green]proved[/]", "refuted": "[bold red]refuted[/]", "not proved": "[yellow]not proved[/]"}


def command(
    schedule: Annotated[Path, typer.Argument(help="A schedule file.")],
    *,
    certificate: Annotated[Path | None, typer.Option(help="Write the certificate here.", metavar="FILE")] = None,
    as_json: Json = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say in words why each claim holds or not.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the witness: tree, conflict or closed set.", metavar="FILE")
    ] = None,
    max_bytes: Annotated[str, typer.Option(help="Refuse larger files.", metavar="SIZE")] = "16MiB",
) -> int:
    """Prove that a schedule cannot conflict or deadlock and reaches consensus; exit 1 if a claim is refuted."""
    import json

    from preduce.console import console, emit_json, write_text
    from topo.document import load_schedule
    from topo.errors import InputError
    from topo.units import parse_size
    from verify.prove import prove

    loaded = load_schedule(schedule, max_bytes=parse_size(max_bytes))
    proof = prove(loaded)
    figures = figures_of(loaded)
    if certificate is not None and not proof.certificate:
        raise InputError(
            f"{schedule}: strategy {loaded.strategy.kind!r} decides its groups while the job runs, so there is no "
            "certificate to write; leave out --certificate"
        )
    if certificate is not None:
        write_text(certificate, json.dumps(dict(proof.certificate), sort_keys=True, separators=(",", ":")) + "\n")
    if plot is not None:
        from preduce.report.witness import draw_witness

        draw_witness(loaded, proof, plot)
    if as_json:
        claims = [claim.to_json() | ({"explanation": claim.explanation} if explain else {}) for claim in proof.claims]
        emit_json({"verdict": proof.verdict.value, "claims": claims, "figures": figures})
    else:
        _print(loaded, proof, figures, explain=explain)
        if certificate is not None:
            console().print(f"certificate written to {certificate}; check it with", style="dim")
            console().print(f"  python -I verify/checker.py {certificate} {schedule}", style="dim")
    return {"refuted": 1, "not proved": 3}.get(proof.verdict.value, 0)


def figures_of(schedule: "Schedule") -> dict[str, Any]:
    """The figures as plain numbers (null where there is none), with the kind and method of each under `how`."""
    from topo.errors import ScheduleError
    from topo.figures import figures

    try:
        return figures(schedule).to_json()
    except ScheduleError as error:
        # Overlapping groups have no mixing matrix; the refuted claim already says where they overlap.
        return {"num_workers": schedule.num_workers, "how": {"none": {"kind": "exact", "how": str(error)}}}


def _print(schedule: "Schedule", proof: "Proof", figures: dict[str, Any], *, explain: bool) -> None:
    from rich.markup import escape

    from preduce.console import console, number, table

    out = console()
    out.print(
        f"[bold]{escape(schedule.name)}[/] on {schedule.cluster}: {schedule.num_workers} workers, strategy "
        f"{schedule.strategy.kind}: {MARK[proof.verdict.value]}"
    )
    claims = table("Claims", "claim", "status")
    for claim in proof.claims:
        claims.add_row(escape(claim.claim), MARK[claim.status.value])
    out.print(claims)
    for claim in proof.claims:
        if explain or claim.status.value != "proved":
            out.print(f"[bold]{escape(claim.claim)}[/]: {escape(claim.explanation)}")
    how = figures["how"]
    shown = table("Figures", "figure", "value", "kind")
    for name, value in figures.items():
        if name in {"how", "contraction_per_start"}:
            continue
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            label = how.get(f"{name}.{key}" if key else name, {"kind": "exact"})
            shown.add_row(f"{name} {key}".strip(), number(part, 6), label["kind"])
    out.print(shown)
    if explain:
        for name, label in how.items():
            out.print(f"[bold]{name}[/]: {escape(label['how'])}")
