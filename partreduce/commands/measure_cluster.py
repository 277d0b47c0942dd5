"""`partreduce measure` of a cluster: what its links, its nodes and a step take, written as a cluster file."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from partreduce.commands.options import quantity
from partreduce.console import console, emit_json, seconds
from partreduce.report.table import Column, Table
from partreduce.runtime.environment import LOCAL_RANK
from partreduce.topo.document.cluster import dump_cluster, write_cluster
from partreduce.topo.errors import InputError, PartreduceError
from partreduce.topo.hardware import Hardware
from partreduce.topo.units import parse_size
from partreduce.user_function import function_of, one_line

if TYPE_CHECKING:
    from partreduce.runtime.profile import Profile


DEFAULT_SIZE = "8MB"
"""What is moved where the size of the model is not given."""


def cluster_measurement(
    output: Path, *, model_bytes: str | None, step: str | None, repetitions: int, as_json: bool
) -> Callable[[], None]:
    """What every worker calls to measure links, contention and step time; rank 0 writes the cluster file."""
    size = quantity("--model-bytes", parse_size, model_bytes or DEFAULT_SIZE)
    if not size:
        raise InputError(
            f"--model-bytes {model_bytes}: nothing would be moved; write the size of your model, such as 8MB"
        )
    function = None if step is None else _step_of(step)

    def measure() -> None:
        measured = _measure(size, function, repetitions=repetitions, quiet=as_json)
        if measured is not None and model_bytes is None:  # neither option nor file gives the size of the model
            hardware = replace(measured.cluster.hardware or Hardware(), model_bytes=None)
            measured = replace(measured, cluster=replace(measured.cluster, hardware=hardware))
        if measured is not None:
            _report(measured, output, as_json=as_json)

    return measure


def _step_of(text: str) -> Callable[[], None]:
    function = function_of(text, "--step")

    def step() -> None:
        try:
            function()
        except PartreduceError:
            raise
        except Exception as error:
            raise InputError(f"--step {text}: called without arguments, it raised {one_line(error)}") from error

    return step


def _measure(size: int, step: Callable[[], object] | None, *, repetitions: int, quiet: bool) -> "Profile | None":
    """Runs on every worker; the profile on rank 0, None elsewhere."""
    import torch

    from partreduce.runtime.profile import cluster_of, gpu_topology, num_rails, profile, slurm_switches
    from partreduce.runtime.transport.rendezvous import default_world

    device = torch.device("cuda", int(os.environ.get(LOCAL_RANK, "0")) if torch.cuda.is_available() else 0)
    if not torch.cuda.is_available():
        device = torch.device("cpu")
    world = default_world(device, timedelta(seconds=120), lambda _store, _rank, _size: None)
    first = world.rank == 0
    if first and not quiet:
        say: Callable[[str], None] | None = console(errors=True).print
    else:
        say = None
    measured = profile(
        cluster_of(world), model_bytes=size, step=step, repetitions=repetitions,
        device=device, world=world, progress=say,
    )  # fmt: skip
    hardware, table = measured.cluster.hardware, gpu_topology()
    assert hardware is not None, "a profile has the hardware that it fitted"
    hardware = replace(hardware, switches=slurm_switches(world, measured.cluster))
    if table is not None:
        hardware = replace(hardware, num_nics=num_rails(table))
    return replace(measured, cluster=replace(measured.cluster, hardware=hardware)) if first else None


def _report(profile: "Profile", output: Path, *, as_json: bool) -> None:
    from partreduce.runtime.profile import slurm_words

    write_cluster(output, profile.cluster)
    notes = _notes(profile)
    within = sum(abs(error) <= 0.3 for error in profile.check_errors)
    if as_json:
        emit_json(
            {
                "cluster": dump_cluster(profile.cluster),
                "output": str(output),
                "slurm": slurm_words(os.environ),
                "notes": notes,
                "checks": [
                    {
                        "groups": [list(group.members) for group in timed.phase],
                        "measured_seconds": timed.median,
                        "predicted_seconds": predicted,
                    }
                    for timed, predicted in profile.checks
                ],
            }
        )
        return
    columns = [Column("groups", justify="left", wraps=True), *map(Column, ("measured", "predicted", "error"))]
    rows = Table("Checked on random phases that were not fitted", columns)
    for (timed, predicted), error in zip(profile.checks, profile.check_errors, strict=True):
        groups = " ".join(str(group) for group in timed.phase)
        rows.add(groups, seconds(timed.median), seconds(predicted), f"{error:+.0%}")
    console().print(rows)
    console().print(f"{within} of {len(profile.checks)} predictions lie within 30% of the measured time.")
    if 2 * within < len(profile.checks):
        console().print("Measure again on an idle machine, with your own --model-bytes and more --repetitions.")
    for note in notes:
        console().print(note, style="yellow")
    console().print(f"written to {output}; next: partreduce design {output}")


def _notes(profile: "Profile") -> list[str]:
    hardware = profile.cluster.hardware
    if hardware is None or not hardware.switches:
        return []
    switches = f"{len(hardware.switches)} switch{'' if len(hardware.switches) == 1 else 'es'}"
    free = "they count as free until hardware.switches in the file states their bandwidth"
    return [f"SLURM names {switches} above the nodes; what the uplinks carry was not measured, so {free}"]
