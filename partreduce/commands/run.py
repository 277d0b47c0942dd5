"""`partreduce run`: start workers for a script, here as torchrun would, or on several hosts as mpirun would."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from partreduce.console import console
from partreduce.runtime.environment import SCHEDULE
from partreduce.runtime.generator.process import generator_process
from partreduce.runtime.launcher.beginning_again import Restarts, attempts
from partreduce.runtime.launcher.hosts import placed, read_hosts
from partreduce.runtime.launcher.launch import LOOPBACK, check_failure_limits, launch
from partreduce.runtime.launcher.orphans import orphans_ended
from partreduce.runtime.launcher.over_ssh import reached
from partreduce.runtime.launcher.signals import Terminated, terminable
from partreduce.topo.document.descriptors import descriptor_to_read
from partreduce.topo.document.schedule import load_schedule
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.extras import require
from partreduce.topo.schedule import Schedule
from partreduce.verify.base import Status

SETTINGS = {
    "context_settings": {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    }
}


HOST_PAUSE = 2.0
"""Seconds that hosts get before all workers begin again there, at first."""
MAX_PROVED_WORKERS = 64
"""More than this run on no single machine for long; up to here a proof takes well under a second."""


def command(
    script: Annotated[Path, typer.Argument(help="A Python script; what follows it are its own arguments.")],
    context: typer.Context,
    *,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "--nproc-per-node", "-n", help="Processes in all, on this machine.", min=1),
    ] = None,
    simulate_nodes: Annotated[
        int, typer.Option(help="Run as if the workers were spread over this many machines.", min=1)
    ] = 1,
    schedule: Annotated[
        Path | None, typer.Option(help="Take workers and nodes from this file and pass it on in PARTREDUCE_SCHEDULE.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="torch threads per worker (default: an equal share of the cores).", min=1)
    ] = None,
    tolerate_failures: Annotated[
        int | None,
        typer.Option(
            help="Continue with the other workers after up to this many have failed (default: what --schedule plans "
            "for, all but one where groups are handed out on request, else 0).",
            min=0,
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            help="How often, in all, workers are started again: a failed one joins the others; where they cannot "
            "continue, all restart from their last checkpoint.",
            min=0,
        ),
    ] = 0,
    hosts: Annotated[
        Path | None,
        typer.Option(
            help="Start the workers on these machines over ssh: one a line in this file, as HOST or HOST slots=N."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="With --hosts: this machine's address that all hosts reach (default: where ssh comes from)."),
    ] = None,
    ssh: Annotated[str, typer.Option(help="With --hosts: the ssh program with options, such as 'ssh -i KEY'.")] = "ssh",
) -> int:
    """Run a script in several processes; exits with the code of the worker that failed first."""
    loaded = None
    if schedule is not None:
        loaded = load_schedule(schedule)
        if workers is not None and workers != loaded.num_workers:
            raise InputError(f"--workers {workers}: the schedule {schedule} is for {loaded.num_workers} workers")
        workers = loaded.num_workers
        if simulate_nodes == 1 and hosts is None and loaded.cluster.is_regular:
            simulate_nodes = loaded.cluster.num_nodes
        _warn_if_refuted(schedule, loaded)
    placed = None if hosts is None else _placed(hosts, workers, simulate_nodes, loaded)
    if workers is None and placed is None:
        misplaced = {"--workers", "--nproc-per-node", "-n", "--schedule", "--hosts"} & set(context.args)
        where = "; what follows the script is its own: write it before the script" if misplaced else ""
        raise typer.BadParameter(f"is needed, or --schedule or --hosts{where}", param_hint="--workers")
    plan = None if loaded is None else loaded.failure_plan
    planned = 0 if loaded is None or plan is None else plan.most_failures(loaded.cluster)
    if loaded is not None and loaded.strategy.needs_generator:
        planned = loaded.num_workers - 1
    max_failures = planned if tolerate_failures is None else tolerate_failures
    check_failure_limits(sum(map(len, placed.values())) if placed is not None else workers or 0, max_failures, 0)
    require("torch", purpose="running workers")
    if max_restarts:
        require("safetensors", purpose="saving a worker's state for when it is started again")

    with contextlib.nullcontext() if schedule is None or loaded is None else _lasting(schedule, loaded) as path:
        run = _Run(
            script, context.args, workers, simulate_nodes, threads, placed, ssh, address, loaded, path,
            max_failures=max_failures,
        )  # fmt: skip
        try:
            if max_restarts:
                return attempts(run.attempt, max_restarts, pause=HOST_PAUSE if placed else 0.0)
            return run.attempt({}, Restarts(0))
        except Terminated as ended:
            return ended.exit_code


@dataclass(frozen=True)
class _Run:
    """What is run, as `command` says; `path` is where workers of this machine read the schedule."""

    script: Path
    args: list[str]
    workers: int | None
    nodes: int
    threads: int | None
    placed: dict[str, tuple[int, ...]] | None
    ssh: str
    address: str | None
    schedule: Schedule | None
    path: Path | None
    max_failures: int

    def attempt(self, told: Mapping[str, str], restarts: Restarts) -> int:
        """Run it once, with a generator and hosts of its own; `told` are further variables of its workers."""
        on_request = self.schedule is not None and self.schedule.strategy.needs_generator
        joiners = restarts.left if self.max_failures and not on_request else 0
        with terminable(), orphans_ended(), contextlib.ExitStack() as stack:
            there = None
            if self.placed is not None:
                there = stack.enter_context(reached(self.placed, ssh=self.ssh, address=self.address))
            environment = dict(told)
            if self.path is not None:
                environment[SCHEDULE] = str(self.path)
            generator = None
            if on_request and self.path is not None:
                host = LOOPBACK if there is None else there.address
                generator = stack.enter_context(generator_process(self.path, host))
                environment |= generator.environment
            patient = self.schedule is not None and self.schedule.strategy.goes_on_without
            if there is not None:
                text = None if self.path is None else self.path.read_text(encoding="utf-8")
                return there.launch(
                    self.script, self.args, threads=self.threads, environment=environment, schedule=text,
                    patient=patient, generator=generator, max_failures=self.max_failures, max_restarts=joiners,
                    restarted=restarts.spend,
                )  # fmt: skip
            assert self.workers is not None, "else they are placed"
            return launch(
                self.script,
                self.args,
                num_workers=self.workers,
                num_nodes=self.nodes,
                threads=self.threads,
                environment=environment,
                patient=patient,
                generator=generator,
                max_failures=self.max_failures,
                max_restarts=joiners,
                restarted=restarts.spend,
            )


def _placed(hosts: Path, workers: int | None, nodes: int, schedule: Schedule | None) -> dict[str, tuple[int, ...]]:
    """The workers of each host."""
    if nodes > 1:
        raise typer.BadParameter(
            "simulates machines, and --hosts names real ones; leave one of them out", param_hint="--simulate-nodes"
        )
    return placed(read_hosts(hosts), workers, None if schedule is None else schedule.cluster, hosts)


def _warn_if_refuted(path: Path, schedule: Schedule) -> None:
    """One line where a proof refutes what is about to run: a script may want to see just that."""
    if schedule.num_workers > MAX_PROVED_WORKERS:
        return
    from partreduce.verify.prove import prove

    proof = prove(schedule)
    if proof.verdict == Status.REFUTED:
        claim = next(claim for claim in proof.claims if claim.status is Status.REFUTED)
        console(errors=True).print(
            f"partreduce: {path}: {claim.claim} is refuted: {claim.explanation} `partreduce verify {path}` says more.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


@contextlib.contextmanager
def _lasting(path: Path, schedule: Schedule) -> Iterator[Path]:
    """A file that every worker can read: the schedule's own, or for a pipe (`-`, `<(…)`) a copy for this run."""
    if descriptor_to_read(path) is None:
        yield path.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="partreduce-run-") as folder:
        copy = Path(folder) / "schedule.json"
        write_schedule(copy, schedule)
        yield copy
