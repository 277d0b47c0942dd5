"""`partreduce run`: start workers for a script, on this machine or as one of several nodes, like torchrun."""

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from partreduce.commands import options
from partreduce.console import console
from partreduce.runtime.environment import NODE_RANKS, SCHEDULE, TORCH_CPP_LOG_LEVEL
from partreduce.runtime.generator.process import generator_process
from partreduce.runtime.launcher.follower import Follower
from partreduce.runtime.launcher.launch import Restarts, check_failure_limits, launch, run_attempts
from partreduce.runtime.launcher.nodes import Endpoint, Nodes, same_on_all
from partreduce.runtime.launcher.signals import Terminated, raise_on_sigterm
from partreduce.topo.document.reader import descriptor_to_read
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
        "token_normalize_func": lambda token: token.replace("_", "-"),  # torchrun takes both spellings, too
    }
}
NODES_PAUSE = 2.0
"""Seconds before the first restart of a run on several nodes, so that all nodes can follow."""
MAX_PROVED_WORKERS = 64
"""The most workers of a schedule that is proved before it runs; up to here a proof takes well under a second."""

_in_workers, _in_faults, _in_nodes = map(options.panel, ("Workers", "Fault tolerance", "Multi-node"))


def command(
    script: Annotated[
        Path, typer.Argument(help="A Python script; what follows it are its own arguments.", metavar="SCRIPT")
    ],
    context: typer.Context,
    *,
    workers: Annotated[
        int | None, _in_workers("Processes of this node.", "--nproc-per-node", "--workers", "-n", min=1)
    ] = None,
    schedule: Annotated[
        Path | None, _in_workers("Take workers and nodes from this file and pass it on in PARTREDUCE_SCHEDULE.")
    ] = None,
    threads: Annotated[
        int | None, _in_workers("torch threads per worker (default: an equal share of the cores).", min=1)
    ] = None,
    simulate_nodes: Annotated[
        int, _in_workers("Run as if the workers were spread over this many machines.", min=1)
    ] = 1,
    tolerate_failures: Annotated[
        int | None,
        _in_faults(
            "Continue with the other workers after up to this many have failed (default: what --schedule plans for, "
            "all but one where groups are handed out on request, else 0).", min=0,
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        _in_faults(
            "How often, in all, workers are started again: a failed one joins the others; where they cannot continue, "
            "all restart from their last checkpoint.", min=0,
        ),
    ] = 0,
    nnodes: Annotated[int, _in_nodes("On so many machines this command is run.", min=1)] = 1,
    node_rank: Annotated[
        int | None, _in_nodes("Which of them this one is, from 0 (default: what SLURM or Kubernetes says).", min=0)
    ] = None,
    rdzv_endpoint: Annotated[str, _in_nodes("Where all nodes reach node 0.", metavar="HOST[:PORT]")] = "",
    rdzv_id: Annotated[str, _in_nodes("The run's name; nodes of another one are turned away.")] = "",
) -> int:  # fmt: skip
    """Run a script in several processes; exits with the code of the worker that failed first."""
    if str(script).startswith("-"):
        raise typer.BadParameter(f"{script} is no option of run", param_hint="SCRIPT")
    loaded = None
    if schedule is not None:
        loaded = load_schedule(schedule)
        if nnodes == 1 and workers is not None and workers != loaded.num_workers:
            raise InputError(
                f"--workers {workers}: the schedule {schedule} is for {loaded.num_workers} workers; leave --workers "
                "out, or --schedule where a worker is several ranks that share a sharded model"
            )
        if simulate_nodes == 1 == nnodes and loaded.cluster.is_regular:
            simulate_nodes = loaded.cluster.num_nodes
        _warn_if_refuted(schedule, loaded)
    if simulate_nodes > 1 and nnodes > 1:
        problem = "simulates machines, and --nnodes means real ones; leave one of them out"
        raise typer.BadParameter(problem, param_hint="--simulate-nodes")
    rank = _node_rank(node_rank, nnodes)
    if nnodes > 1 and not rdzv_endpoint:
        raise typer.BadParameter("is needed with --nnodes: where all nodes reach node 0", param_hint="--rdzv-endpoint")
    endpoint = Endpoint.parse(rdzv_endpoint) if nnodes > 1 else None
    workers = _num_workers_here(workers, loaded, nnodes, rank)
    if workers is None:
        misplaced = {"--workers", "--nproc-per-node", "-n", "--schedule"} & set(context.args)
        where = "; what follows the script is its own: write it before the script" if misplaced else ""
        raise typer.BadParameter(f"expected --workers N or --schedule FILE{where}", param_hint="--workers")
    options.check_nodes("--simulate-nodes", simulate_nodes, workers)
    plan = None if loaded is None else loaded.failure_plan
    planned = 0 if loaded is None or plan is None else plan.most_failures(loaded.cluster)
    if loaded is not None and loaded.strategy.needs_generator:
        planned = loaded.num_workers - 1
    max_failures = planned if tolerate_failures is None else tolerate_failures
    if nnodes == 1 or loaded is not None:  # otherwise the number of workers is known only after all nodes have joined
        check_failure_limits(workers if loaded is None else loaded.num_workers, max_failures, 0)
    require("torch", purpose="running workers")
    if max_restarts:
        require("safetensors", purpose="saving a worker's state for when it is started again")

    with contextlib.nullcontext() if schedule is None or loaded is None else _lasting(schedule, loaded) as path:
        run = _Run(
            script, context.args, workers, simulate_nodes, threads, loaded, path,
            max_failures=max_failures, max_restarts=max_restarts,
        )  # fmt: skip
        try:
            attempts = functools.partial(run_attempts, run.attempt, max_restarts)
            return attempts() if endpoint is None else run.as_node(rank, nnodes, endpoint, rdzv_id)
        except Terminated as ended:
            return ended.exit_code


@dataclass(frozen=True)
class _Run:
    """A run with the options of `partreduce run`; `path` is where workers of this machine read the schedule."""

    script: Path
    args: list[str]
    workers: int
    simulate_nodes: int
    threads: int | None
    schedule: Schedule | None
    path: Path | None
    max_failures: int
    max_restarts: int

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.path is None else {SCHEDULE: str(self.path)}

    def as_node(self, rank: int, nnodes: int, endpoint: Endpoint, run_id: str) -> int:
        """Run as node `rank` of run `run_id`: node 0 coordinates, the others follow it; return the run's exit code."""
        os.environ.setdefault(TORCH_CPP_LOG_LEVEL, "ERROR")  # torch reads it at import
        text = "" if self.path is None else self.path.read_text(encoding="utf-8")
        facts = same_on_all(text, nnodes=nnodes, tolerate_failures=self.max_failures, max_restarts=self.max_restarts)
        if rank:
            return Follower(
                endpoint, rank, self.workers, facts, run_id, self.script, self.args, self.threads, self.environment,
                may_restart=bool(self.max_restarts),
            ).run()  # fmt: skip
        cluster = None if self.schedule is None else self.schedule.cluster
        placement = cluster if cluster is not None and cluster.num_nodes == nnodes else None
        num_workers = None if cluster is None else cluster.num_workers
        with (
            raise_on_sigterm(),
            Nodes(endpoint, facts, run_id, num_nodes=nnodes, placement=placement, num_workers=num_workers) as nodes,
        ):
            code = run_attempts(functools.partial(self.attempt, nodes=nodes), self.max_restarts, pause=NODES_PAUSE)
            nodes.end(code)
            return code

    def attempt(self, variables: Mapping[str, str], restarts: Restarts, nodes: Nodes | None = None) -> int:
        """Run all workers once, those of other `nodes` as well; return the exit code of this attempt.

        The group service is started if the schedule needs it. `variables` are added to the workers' environment;
        `restarts` counts the restarts that are left.
        """
        on_request = self.schedule is not None and self.schedule.strategy.needs_generator
        return launch(
            self.script,
            self.args,
            num_workers=self.workers,
            num_nodes=self.simulate_nodes,
            threads=self.threads,
            environment={**variables, **self.environment},
            patient=self.schedule is not None and self.schedule.strategy.tolerates_absence,
            max_failures=self.max_failures,
            max_restarts=restarts.left if self.max_failures and not on_request else 0,
            restarted=restarts.spend,
            nodes=nodes,
            generator=functools.partial(generator_process, self.path) if on_request and self.path else None,
        )


def _node_rank(stated: int | None, nnodes: int) -> int:
    """Return the rank of this node: `stated`, or what SLURM or Kubernetes says; raise BadParameter if none does."""
    if nnodes == 1:
        if stated:
            raise typer.BadParameter(f"is {stated}, and --nnodes is 1; add --nnodes N", param_hint="--node-rank")
        return 0
    text = next((found for name in NODE_RANKS if (found := os.environ.get(name))), "")
    if stated is None and not text.isdecimal():
        raise typer.BadParameter("is needed with --nnodes: which of the nodes this one is", param_hint="--node-rank")
    rank = int(text) if stated is None else stated
    if rank >= nnodes:
        raise typer.BadParameter(f"is {rank}; {nnodes} nodes are 0 to {nnodes - 1}", param_hint="--node-rank")
    return rank


def _num_workers_here(workers: int | None, schedule: Schedule | None, nnodes: int, rank: int) -> int | None:
    """Return this node's number of workers: `workers`, else the schedule's, else None.

    Raises InputError if `workers` does not fit the schedule, or the schedule's nodes are not `nnodes`.
    """
    if schedule is None:
        return workers
    if nnodes == 1:
        return schedule.num_workers
    nodes = schedule.cluster.num_nodes
    if nodes not in (1, nnodes):
        raise InputError(f"--nnodes {nnodes}: the schedule is for {nodes} nodes")
    expected, rest = divmod(schedule.num_workers, nnodes)
    if nodes == nnodes:
        expected, rest = len(schedule.cluster.workers_of(rank)), 0
    if workers is None and rest:
        raise InputError(
            f"--nnodes {nnodes}: {schedule.num_workers} workers of the schedule do not spread evenly over the nodes; "
            "give each its --nproc-per-node"
        )
    if workers not in (None, expected) and nodes == nnodes:
        raise InputError(f"--nproc-per-node {workers}: node {rank} of the schedule has {expected} workers")
    return workers or expected


def _warn_if_refuted(path: Path, schedule: Schedule) -> None:
    """Print a warning if a schedule of up to 64 workers is refuted; the run continues, for scripts that show this."""
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
    """Context manager: yield a schedule file that every worker can read; for a pipe (`-`, `<(…)`) a temporary copy."""
    if descriptor_to_read(path) is None:
        yield path.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="partreduce-run-") as folder:
        copy = Path(folder) / "schedule.json"
        write_schedule(copy, schedule)
        yield copy
