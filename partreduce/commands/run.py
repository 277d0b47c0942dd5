"""`partreduce run`: start local workers for a training script, as torchrun would."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partreduce.topo.schedule import Schedule

SETTINGS = {
    "context_settings": {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    }
}


MAX_PROVED_WORKERS = 64
"""More than this run on no single machine for long; up to here a proof takes well under a second."""


def command(
    script: Annotated[Path, typer.Argument(help="A Python script; what follows it are its own arguments.")],
    context: typer.Context,
    *,
    workers: Annotated[int | None, typer.Option("--workers", "-n", help="Processes in all.", min=1)] = None,
    nodes: Annotated[int, typer.Option(help="Pretend that the workers stand on this many machines.", min=1)] = 1,
    schedule: Annotated[
        Path | None, typer.Option(help="Take workers and nodes from this file and pass it on in PARTREDUCE_SCHEDULE.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="torch threads per worker (default: cores shared out).", min=1)
    ] = None,
) -> int:
    """Run a script in several local processes; exits with the code of the worker that failed first."""
    from partreduce.topo.extras import require

    environment: dict[str, str] = {}
    generated, loaded = False, None
    if schedule is not None:
        from partreduce.topo.document.schedule import load_schedule
        from partreduce.topo.errors import InputError

        loaded = load_schedule(schedule)
        if workers is not None and workers != loaded.num_workers:
            raise InputError(f"--workers {workers}: the schedule {schedule} is for {loaded.num_workers} workers")
        workers = loaded.num_workers
        if nodes == 1 and loaded.cluster.is_regular:
            nodes = loaded.cluster.num_nodes
        generated = loaded.strategy.needs_generator
        _say_if_refuted(schedule, loaded)
    if workers is None:
        misplaced = {"--workers", "-n", "--schedule"} & set(context.args)
        where = "; what follows the script is its own: write it before the script" if misplaced else ""
        raise typer.BadParameter(f"is needed, or --schedule{where}", param_hint="--workers")
    require("torch", purpose="running workers")
    from partreduce.runtime.launcher.launch import launch
    from partreduce.runtime.launcher.orphans import orphans_ended
    from partreduce.runtime.launcher.signals import Terminated, terminable

    try:
        with terminable(), orphans_ended(), contextlib.ExitStack() as stack:
            if loaded is not None and schedule is not None:
                path = stack.enter_context(_lasting(schedule, loaded))
                environment["PARTREDUCE_SCHEDULE"] = str(path)
                if generated:
                    from partreduce.runtime.generator.beside import generator_beside

                    environment |= stack.enter_context(generator_beside(path))
            return launch(
                script,
                context.args,
                num_workers=workers,
                num_nodes=nodes,
                threads=threads,
                environment=environment,
                survive=generated,
                patient=loaded is not None and loaded.strategy.goes_on_without,
            )
    except Terminated as ended:
        return ended.exit_code


def _say_if_refuted(path: Path, schedule: "Schedule") -> None:
    """One line where a proof refutes what is about to run: a script may want to see just that."""
    from partreduce.console import console
    from partreduce.verify.base import Status
    from partreduce.verify.prove import prove

    if schedule.num_workers > MAX_PROVED_WORKERS:
        return
    proof = prove(schedule)
    if proof.verdict == Status.REFUTED:
        claim = next(claim for claim in proof.claims if claim.status is Status.REFUTED)
        console(errors=True).print(
            f"partreduce: {path}: {claim.claim} is refuted: {claim.explanation} `partreduce verify {path}` says more.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


@contextlib.contextmanager
def _lasting(path: Path, schedule: "Schedule") -> Iterator[Path]:
    """A file that every worker can read: the schedule's own, or for a pipe (`-`, `<(…)`) a copy for this run."""
    from partreduce.topo.document.descriptors import descriptor_to_read
    from partreduce.topo.document.writer import write_schedule

    if descriptor_to_read(path) is None:
        yield path.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="partreduce-run-") as folder:
        copy = Path(folder) / "schedule.json"
        write_schedule(copy, schedule)
        yield copy
