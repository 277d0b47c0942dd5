"""`partreduce simulate` with several files: schedules side by side on one cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from partreduce.commands.cluster_options import touched_of
from partreduce.commands.design import phases_of
from partreduce.commands.verify import metrics_of
from partreduce.console import claim_stdout, console, emit_json, number, seconds, size
from partreduce.planner.job import PlanRequest
from partreduce.planner.predict import predict
from partreduce.planner.steps_model import step_progress
from partreduce.report.picture import check, save
from partreduce.report.table import Column, switch_levels, table
from partreduce.report.timeline import draw_side_by_side
from partreduce.topo.cluster import Cluster
from partreduce.topo.describe import describe
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.hardware import Hardware
from partreduce.topo.metrics import consensus_distance, late_distance
from partreduce.topo.schedule import Schedule
from partreduce.topo.timing.coding import Algorithm
from partreduce.topo.timing.tables import ELEMENT_BYTES, RowAccess


def simulate_several(
    schedules: list[Path],
    place: Cluster,
    hardware: Hardware,
    *,
    algorithm: Algorithm,
    touched: list[str] | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare schedules on one cluster: print step time, steps and time to a loss, and mixing metrics side by side.

    `algorithm` replaces the all-reduce algorithm of the files; `touched` are values of `--set touched`; a picture goes
    to `output`. Raises InputError for a schedule of another shape than `place`.
    """
    claim_stdout(output, as_json=as_json)
    check(output)
    loaded = [load_schedule(path) for path in schedules]
    for path, schedule in zip(schedules, loaded, strict=True):
        if not schedule.cluster.same_shape(place):
            rule = "compare schedules of one shape, or simulate each alone"
            raise InputError(f"{path}: is for {schedule.cluster}, the others are compared on {place}; {rule}")
    shares = None if touched is None else touched_of(touched, place)
    job = PlanRequest(cluster=replace(place, hardware=hardware))
    rows = [
        row_of(schedule, whole_for(schedule, loaded, hardware), algorithm, shares) | _to_a_loss(schedule, job)
        for schedule in loaded
    ]
    for row in rows:
        row["seconds_to_a_loss"] = None if row["steps_ratio"] is None else row["steps_ratio"] * row["seconds_per_step"]
    if output is not None:
        save(draw_side_by_side(rows, f"{place}: what a step takes, and what a loss takes"), output)
    if as_json:
        document = {"cluster": str(place), "model_bytes": hardware.model_bytes, "schedules": rows}
        emit_json(document | ({"output": str(output)} if output else {}))
        return
    _print(rows, place, hardware)
    if output is not None:
        console().print(f"written to {output}")


def _to_a_loss(schedule: Schedule, job: PlanRequest) -> dict[str, Any]:
    """Return {"steps_ratio": predicted steps to a loss divided by All-Reduce's, on shuffled data, for any optimizer}.

    The value is None for schedules whose steps the steps model cannot predict: with outer steps, fragments of the
    model, or no mixing matrices.
    """
    strategy = schedule.strategy
    if not schedule.is_mixing or not strategy.payload.outer.is_plain or strategy.payload.num_fragments > 1:
        return {"steps_ratio": None}
    ratio = job.steps_model.steps_ratio(
        consensus_distance(schedule).value or 0.0,
        0.0,
        late=late_distance(schedule),
        delayed=job.delayed(strategy.sync),
        gradients=strategy.averages_gradients,
        progress=step_progress(schedule),
    )
    return {"steps_ratio": ratio}


def _print(rows: list[dict[str, Any]], place: Cluster, hardware: Hardware) -> None:
    comparison = table(
        f"On {place}{switch_levels(hardware, place.num_nodes)}: {size(hardware.model_bytes or 0)} model, "
        f"{seconds(hardware.compute)} computing per step",
        "schedule", "step", "steps", "time", Column("comm.", drop=1),
        Column("period", drop=5), Column("NIC bytes", drop=6), Column("age", drop=8), Column("memory", drop=9),
        Column("contr.", drop=4), Column("distance", drop=1), Column("drift", drop=2), Column("node drift", drop=3),
    )  # fmt: skip
    for row in rows:
        comparison.add(
            row["name"], seconds(row["seconds_per_step"]), number(row["steps_ratio"]),
            "-" if row["seconds_to_a_loss"] is None else seconds(row["seconds_to_a_loss"]),
            seconds(row["communication_seconds_per_step"]), str(row["period"] or "-"),
            size(row["nic_bytes_per_step"]), number(row["largest_age_steps"]), size(row["memory_bytes"]),
            number(row["contraction"]), number(row["consensus_distance"]), number(row["drift"]["worker"]),
            number(row["drift"]["node"]),
        )  # fmt: skip
    console().print(comparison)
    for name, words in {row["name"]: row["runs"] for row in rows}.items():
        console().print(f"{name}: {words}", markup=False)
    console().print(
        "Step: whole, with waiting. Steps to a loss: predicted on shuffled data, as by `partreduce design --optimizer "
        "any`, over All-Reduce's; time: step × steps; `-` where only `partreduce design` can tell. Per step: "
        "communication with its codec, bytes out of the busiest node. Age: steps of another worker by which what is "
        "averaged may be behind; it grows with the run where one never contributes. Memory: of the busiest worker, "
        "without its parameters. Per period: contraction. In steady state: consensus distance under gradient noise, "
        "drift when workers (or nodes) see different data. Kinds without fixed rounds are simulated, and have no "
        "metrics of mixing.",
        style="dim",
    )


def whole_for(schedule: Schedule, compared: list[Schedule], hardware: Hardware) -> Hardware:
    """Return the hardware with the model's size for one of several schedules that are compared.

    Embedding tables that this schedule averages with the model, while another one exchanges their rows, are added to
    the model's bytes.
    """
    apart = {route.parameter: route for other in compared for route in other.routes.apart}
    own = {route.parameter for route in schedule.routes.apart}
    more = sum(route.rows * route.columns * ELEMENT_BYTES for name, route in apart.items() if name not in own)
    return replace(hardware, model_bytes=(hardware.model_bytes or 0) + more) if more else hardware


def row_of(
    schedule: Schedule, hardware: Hardware, algorithm: Algorithm, touched: dict[str, RowAccess] | None = None
) -> dict[str, Any]:
    """Return one schedule's row of the comparison, as `simulate --json` lists it; `touched` as in `touched_of`."""
    shares = {name: one for name, one in (touched or {}).items() if schedule.route_of(name) is not None}
    costs = predict(schedule, hardware, algorithm=algorithm, touched=shares)
    metrics, strategy = metrics_of(schedule), schedule.strategy
    return {
        "name": schedule.name,
        "kind": strategy.kind,
        "algorithm": str(algorithm or strategy.transport.algorithm),
        "sync": strategy.sync.word,
        "lag": strategy.sync.lag,
        "codec": str(strategy.transport.codec),
        "where": str(strategy.transport.where),
        "gradient_buckets": str(strategy.transport.gradient_buckets),
        "runs": describe(schedule),
        "steps_per_round": strategy.steps_per_round,
        "period": phases_of(schedule)[0],
        "communication_seconds_per_step": costs.communication_seconds,
        "seconds_per_step": costs.step_seconds,
        "nic_bytes_per_step": costs.nic_bytes,
        "peak_nic_bytes": costs.peak_nic_bytes,
        "largest_age_steps": costs.largest_age,
        "mean_age_steps": costs.mean_age,
        "memory_bytes": costs.memory_bytes,
        "predicted": costs.how,
        "contraction": metrics.get("contraction"),
        "consensus_distance": metrics.get("consensus_distance"),
        "drift": metrics.get("drift") or {"worker": None, "node": None},
    }
