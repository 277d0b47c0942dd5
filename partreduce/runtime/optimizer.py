"""Wrap a torch optimizer in a DistributedOptimizer, whose `step()` also averages by a schedule."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from weakref import ref

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.weak import WeakTensorKeyDictionary

from partreduce.runtime.arguments import (
    checked_directory,
    checked_mesh,
    checked_number,
    checked_steps,
    checked_timeout,
    checked_world,
    read_schedule,
    warn_of_workers_apart,
)
from partreduce.runtime.averaging.dtensor_shards import replica_of
from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy, digest_of
from partreduce.runtime.averaging.gradients import OptimizerStepper
from partreduce.runtime.averaging.in_flight import FixedMembership
from partreduce.runtime.averaging.mean_model import ADVICE, restore_local_values, squared_distance
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.data.sampler import RoundSampler, by_steps_per_round, sampler_of
from partreduce.runtime.elastic.member import Member, joins
from partreduce.runtime.elastic.support import (
    schedule_for_present_nodes,
    supports_elastic,
    warn_nodes_missing,
    way_to_continue,
)
from partreduce.runtime.guard.table import Moment, run_checks
from partreduce.runtime.guard.wrapping import check_model, check_module, check_optimizer, check_run
from partreduce.runtime.launcher.processes import install_excepthook
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.recorder import Recorder, Stats, Writer, write_stats
from partreduce.runtime.sharding.placement import check_other_shapes, find_tables, layout_of, spread
from partreduce.runtime.sharding.table_state import full_optimizer_states, local_optimizer_states
from partreduce.runtime.sharding.tables import Tables
from partreduce.runtime.state.saved_state import Handover, Stateful
from partreduce.runtime.strategies import build
from partreduce.runtime.strategies.base import Run, Runner
from partreduce.runtime.torch_defaults import default_modes, in_default_modes, keep_user_modes
from partreduce.runtime.transport.communicators import first_line
from partreduce.runtime.transport.rendezvous import SingleProcessWorld, forget, is_alone, log_single_process
from partreduce.runtime.transport.store import publish_stage
from partreduce.runtime.transport.torch_api import torch_compile_disable
from partreduce.runtime.transport.worlds import World, chosen_algorithm, world_for_algorithm
from partreduce.runtime.user_warning import warn_user
from partreduce.runtime.worker.config_handshake import (
    Policies,
    agree,
    fact_of,
    facts_of,
    warn_of_rounded_signs,
    with_codec,
)
from partreduce.runtime.worker.engine import Engine
from partreduce.runtime.worker.shutdown import RUNNING, Ending, Meeting
from partreduce.topo.describe import describe
from partreduce.topo.errors import InputError, PartreduceError, of_type
from partreduce.topo.schedule import Schedule

DEFAULT_TIMEOUT = 300.0
Batch = TypeVar("Batch")


_optimizers = WeakTensorKeyDictionary()  # parameter -> weak reference to its DistributedOptimizer


class DistributedOptimizer(torch.optim.Optimizer):
    """Wrap a torch optimizer, so that `step()` also averages with the other workers as the schedule defines.

    Works wherever an optimizer does: learning-rate schedulers, `GradScaler`, `state_dict`. Every worker must construct
    it with the same schedule and model. The constructor checks that both are equal on all workers, creates the process
    groups, and broadcasts rank 0's parameters and buffers.

    Its attributes do the work: `run` (what is averaged), `runner` (how the strategy averages), `engine` (steps and
    rounds), `meeting` (operations of all workers) and `ending` (the end of the run).

    Args:
        optimizer: the optimizer that takes the local steps.
        model: the module it trains; its trainable parameters become views of flat arrays.
        schedule: a Schedule or the path of a schedule file.
        buffers: what an average does to running statistics (BatchNorm): `average` (default), `local`, or `broadcast`
            from the group's lowest rank. Masks are copied from that rank, integer buffers stay local.
        optimizer_state: `local` (default), or `average` to average momentum and second moments too.
        timeout: seconds that an average may wait for the members of its group.
        trace: a directory for one Perfetto trace per worker and for reports of failures.
        initial: `broadcast` (default) starts all workers with rank 0's model, `keep` each with its own; if gradients
            are averaged, these must be equal, which the first step checks.
        algorithm: all-reduce algorithm, `ring` or `hierarchical` (for groups with equally many members on each node);
            the schedule's by default.
        codec: compression of all-reduces: `none`, `float16`, `bfloat16`, `int8` or `int4`; the schedule's by default.
        outer_state: where outer parameters and outer momentum are between outer steps: `device` (default), or `host`
            for pinned memory; results are bitwise equal. Workers may choose differently. Without effect on CPU.
        world: connection to the other workers; by default from the process group or the launcher's environment.
        mesh: for sharded models, the mesh dimension of the replicas, `mesh["dp_replicate"]`. The schedule's workers are
            then replicas, and each rank averages its local shards with the ranks of that dimension.

    Raises:
        HandshakeError: workers differ in a setting; the message, equal on all workers, names it and a rank.
        UnavailableError: a worker did not arrive within the timeout; the message names it.
        InputError: a model, optimizer or option that this schedule cannot run.
        FileError, DocumentError, RefutedError: an unreadable or wrong schedule file; a certificate that does not hold.
    """

    @in_default_modes
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        schedule: Schedule | str | Path,
        *,
        buffers: BufferPolicy | str = "average",
        optimizer_state: StatePolicy | str = "local",
        timeout: float = DEFAULT_TIMEOUT,
        trace: str | Path | None = None,
        initial: str = "broadcast",
        algorithm: str | None = None,
        codec: str | None = None,
        outer_state: str = "device",
        world: World | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        self.reasons: tuple[str, ...] = ()
        """Reasons for the placement of each table, if `partreduce.parallelize_embeddings` chose it."""
        install_excepthook(own_process=world is None)
        # The base class is not initialized: everything it would hold is the wrapped optimizer's (see __getattr__).
        self.optimizer = check_optimizer(optimizer)
        model, timeout = check_module(model), checked_timeout(timeout)
        self.planned, world, trace = read_schedule(schedule), checked_world(world), checked_directory("trace", trace)
        self.schedule = schedule_for_present_nodes(self.planned) if world is None else self.planned
        policies = Policies.chosen(buffers, optimizer_state, initial, outer_state)
        policies.check_combinations(self.optimizer, self.schedule)
        replica = replica_of(model, checked_mesh(mesh, world), self.schedule)
        alone, strategy = is_alone(world, mesh), self.schedule.strategy
        tables = Tables() if alone else find_tables(model, self.optimizer, self.schedule)
        check_model(model, self.optimizer, apart := layout_of(tables))
        kept, fragments = policies.optimizer_state, strategy.payload.fragments
        flat = FlatModel(model, self.optimizer, policies.buffers, kept, apart, fragments=fragments)
        device = flat.buckets[0].device
        chosen = chosen_algorithm(strategy.transport.algorithm if algorithm is None else algorithm, device)
        plan = with_codec(self.schedule, chosen, codec, device)
        policies.check_apart(plan)
        facts = facts_of(self.schedule, flat, self.optimizer, policies)
        facts |= {"algorithm": chosen.value, "codec": fact_of(plan.strategy.transport)}
        agreed = agree(facts, flat.details(), world, device, timeout, mesh=mesh, replica=replica)
        reached, own_process = agreed.world, world is None and not alone
        if alone:
            log_single_process(self.schedule)
        else:
            with contextlib.ExitStack() as refused:
                if agreed.lifelines is not None:
                    refused.callback(agreed.lifelines.close)
                check_run(reached, self)
                check_other_shapes(tables, self.schedule)
                reached = world_for_algorithm(reached, chosen, self.schedule.cluster)
                refused.pop_all()
        lives_on = own_process and supports_elastic(plan, reached, agreed.key, replica)
        heartbeat = Heartbeat(
            reached.store,
            reached.rank,
            agreed.key,
            beats=own_process,
            lifelines=agreed.lifelines,
            worker_steps=self.schedule.worker_steps(),
            way_to_continue=partial(way_to_continue, plan, reached, agreed.key, replica) if own_process else str,
        )
        with _connecting(reached, heartbeat):
            if not alone:
                _prepare(reached, plan, heartbeat, own_process=own_process, connects=not (lives_on and joins()))
            recorder, key = Recorder(reached.rank, trace), agreed.key
            reducer = Reducer(reached, flat.buckets, recorder, heartbeat, key=key, timeout=timeout)
            membership = FixedMembership((reached.rank,) if alone else tuple(range(plan.num_workers)))
            if lives_on:
                membership = Member(reached, heartbeat, plan, key=key, timeout=timeout)
            self.run = _run(plan, reducer, flat, self.optimizer, policies, tables=tables, membership=membership)
            self.runner = Runner(self.run) if alone else build(self.run)
        self._connect_parts(policies, own_process=own_process)
        self._start(model, broadcast=policies.broadcast)

    def _connect_parts(self, policies: Policies, *, own_process: bool) -> None:
        """Create the attributes `engine`, `meeting` and `ending` (see the class).

        With `own_process` (the script passed no `world`, so this process is one worker) the run also ends when the
        interpreter exits, and first gradients and data sets are compared between workers.
        """
        reducer = self.run.reducer
        reached, key = reducer.world, reducer.key
        uneven_inputs = UnevenInputs(
            reached.store, reached.rank, reached.size, reducer.heartbeat, key=key, timeout=reducer.timeout
        )
        if reached.rank == 0 and not self.run.alone:
            warn_of_rounded_signs(self.run.schedule, self.optimizer)
            warn_of_workers_apart(self.schedule)
            warn_nodes_missing(self.planned, self.schedule)
        self.engine = Engine(self.run, self.runner, self.optimizer, uneven_inputs)
        if own_process and policies.broadcast:
            self.engine.guard.compares_data(reached.store, key, reached.size)
        self.ending = Ending(self.engine, own_process=own_process)
        self._one_step = threading.Lock()
        self.meeting = Meeting(self.ending)
        self._handover = Handover(self, self.engine, self.meeting)

    def _start(self, model: torch.nn.Module, *, broadcast: bool) -> None:
        """Run the operations of all workers before the first step: broadcast the model, distribute embedding rows."""
        run, tables = self.run, self.run.tables
        has_joined = run.membership.may_change and joins()
        if broadcast and not has_joined:
            self.meeting.broadcast()
        if not run.alone and not has_joined:  # a joining worker copies the others' rules
            self._copy_masks(are_equal=broadcast)
        if not broadcast and run.traits.averages_gradients:
            self.engine.guard.starts = self._starts
        if tables:
            with _connecting(run.reducer.world, run.reducer.heartbeat):
                tables.connect(run.reducer, self.schedule.cluster, self.ending.guard, self.engine)
            spread(tables, self.optimizer, broadcast=broadcast)
        for parameter in model.parameters():
            _optimizers[parameter] = ref(self)
        self.engine.guard.attach()
        if isinstance(member := run.membership, Member):
            reducers = (*run.mean_reducers, *self.runner.reducers)
            self.ending.guard(lambda: member.connect_all(reducers, self._handover))

    def _copy_masks(self, *, are_equal: bool) -> None:
        """Find the buffers that are masks on all workers; later averages copy them from a group's lowest rank.

        If models `are_equal` on all workers, this needs no communication.
        """
        flat = self.run.flat
        seen = [flat.undecided_values()]
        if seen[0] and not are_equal:
            with self.run.reducer.heartbeat.gathering("the first step", self.round):
                seen = self.meeting.exchange("buffers", seen[0])
        flat.copy_masks(flat.masks_among(seen))

    def _starts(self) -> list[dict[str, str]]:
        """Return all workers' hashes of their initial models, by rank, each as `{"model": hash}`."""
        with self.run.reducer.heartbeat.gathering("the first step", self.round):
            return self.meeting.exchange("start", {"model": digest_of(self.run.flat.arrays())})

    @property
    def round(self) -> int:
        """Index of this worker's current round, from 0: steps // `steps_per_round`."""
        return self.engine.round

    @property
    def steps(self) -> int:
        """Number of optimizer steps so far, including skipped ones."""
        return self.engine.steps

    @property
    def skipped(self) -> int:
        """Number of steps that this worker has skipped because it was behind, without calls of `skip()`."""
        return self.engine.skipped

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield this worker's batches of a loader, such that all workers end at the same round.

        Loaders must have equally many batches on all workers, such as loaders of `shard_dataset`'s parts. If workers
        take different numbers of steps per round, a worker with p steps gets p of every P batches, where P is the
        largest number; the batches of a RoundSampler are divided this way already. If workers skip steps, one batch is
        dropped per skipped step, from the next loader if this one has ended. A restarted worker gets no batches for
        steps that the others have already taken. In all other cases every batch is yielded.

        Args:
            loader: a DataLoader or any iterable of batches.

        Yields:
            Batches of the loader, unchanged and in its order.
        """
        of_type(loader, Iterable, "batches", "give a DataLoader or a list of batches")
        sampler = sampler_of(loader)
        if isinstance(member := self.run.membership, Member) and sampler is not None:
            yield from self._dealt(loader, sampler, member)
            return
        for batch in by_steps_per_round(loader, self.schedule, self.rank):
            if not self.engine.drops_batch():
                yield batch

    def _dealt(self, loader: Iterable[Batch], sampler: RoundSampler, member: Member) -> Iterator[Batch]:
        """Yield batches like `batches`; after a change of members, divide the rest of the epoch among the new ones."""
        engine = self.engine
        if engine.is_behind and sampler.epoch != engine.data_epoch[0]:
            return
        if not engine.is_behind:
            engine.data_epoch = sampler.epoch, engine.round
        is_over = False
        while not is_over:
            views = list(member.views)
            sampler.follow(views, engine.data_epoch[1], engine.steps, turns=member.turns)
            for batch in loader:
                yield batch
                if len(member.views) > len(views) and engine.round > member.views[-1][0] // member.turns:
                    break
            is_over = len(member.views) == len(views)

    @property
    def rank(self) -> int:
        """Rank of this worker."""
        return self.run.rank

    @property
    def num_workers(self) -> int:
        """Number of workers of the run; 1 in a script without a launcher."""
        return len(self.run.everyone)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - torch's signature
        """Take one local step and, at the end of a round, average as the schedule defines.

        Args:
            closure: recomputes the loss and the gradients, as for the wrapped optimizer.

        Returns:
            The closure's result; None without a closure.

        Raises:
            PeerFailedError: a member of the group is gone or late; the failed average changed no parameter.
            InputError: the model was moved or changed, or the run has finished.
        """
        return self._step(closure and keep_user_modes(closure), skip=False)

    def skip(self) -> None:
        """Count a step without applying this worker's gradient, for example a NaN; the worker still averages.

        If the schedule averages gradients, this worker sends zeros and applies the mean.
        """
        self._step(None, skip=True)

    follows_a_schedule = True
    """Marks the class, so that an instance is not wrapped again."""
    _step_supports_amp_scaling = True
    """Makes GradScaler always call `step()` and set `found_inf` and `grad_scale` on this object."""

    @torch_compile_disable
    @in_default_modes
    def _step(self, closure: Callable[[], Any] | None, *, skip: bool) -> Any:  # noqa: ANN401 - what the closure returns
        found_inf: torch.Tensor | None = self.__dict__.get("found_inf")
        scale: torch.Tensor | None = self.__dict__.get("grad_scale")
        if not self._one_step.acquire(blocking=False):
            raise InputError(
                "step: another step of this optimizer has not ended, in another thread or around this one; all workers "
                "take their steps one after the other, so step from one thread"
            )
        try:  # as in `Ending.guarded`, with nothing between in each step
            if self.ending.state is not RUNNING:
                self.ending.check_unless_running("step")
            heartbeat = self.run.reducer.heartbeat
            if heartbeat.line is not None and heartbeat.line.problem is not None:
                heartbeat.check_without_store()
            return self.engine.step(closure, skip=skip, found_inf=found_inf, scale=scale)
        except PartreduceError as error:
            self.ending.after(error)
            raise
        finally:
            self._one_step.release()

    @torch_compile_disable
    @in_default_modes
    def average_gradients(self) -> None:
        """Average the gradients now instead of in `step()`, so that the script can clip or inspect the averages.

        Parameters do not change. With a schedule that averages parameters the call does nothing. With a GradScaler,
        call `scaler.unscale_(optimizer)` first.

        Raises:
            PeerFailedError: a worker is gone or too late.
        """
        if self.engine.has_local_gradients:
            with self.ending.guarded():
                self.ending.check_unless_running("average gradients")
                self.engine.average_gradients()

    @contextlib.contextmanager
    def join(self, after_averaging: Callable[[], object] | None = None) -> Iterator[None]:
        """Context manager around the training loop for workers with unequal amounts of data: all end at the same round.

        A worker whose data has ended keeps averaging with unchanged parameters until all loops have ended. If the
        schedule averages gradients, it sends zeros and steps with the others.

        Args:
            after_averaging: function with what the loop does between `average_gradients()` and `step()`, such as
                clipping; a worker without data calls it in the steps that it takes with the others.

        Yields:
            Nothing; the loop runs inside.

        Raises:
            UnavailableError: a worker is gone or silent.
            InputError: the loop changes the averaged gradients, and `after_averaging` is missing.
        """
        with self.engine.joining(after_averaging):
            yield
            with default_modes():
                self.ending.guard(lambda: self.engine.serve(after_averaging))

    @contextlib.contextmanager
    def mean_model(self) -> Iterator[torch.nn.Module]:
        """Context in which the model holds the mean over all workers, to evaluate or save it; all enter together.

        At its end each worker's own parameters are restored bit for bit. A restarted worker that has not reached its
        first step gets its own model, since the others have passed this point.

        Yields:
            The model that was wrapped, with the means of parameters and averaged buffers.

        Raises:
            PeerFailedError: a worker is gone, or not at the same round.
        """
        self.ending.check_unless_running("mean_model")
        run = self.run
        if self.engine.is_behind:
            yield run.flat.model
            return
        self.engine.guard.meeting()
        with self.ending.guarded():
            with default_modes():
                self.engine.pause("mean_model")
            with run.reducer.recorder.span("evaluation"), contextlib.ExitStack() as until_after:
                with default_modes(), run.reducer.heartbeat.gathering("mean_model()", self.round):
                    self.runner.settle()
                    own = until_after.enter_context(restore_local_values(run.flat, run.rank))
                    membership = self.runner.membership
                    members = membership.gathered("mean_model()")
                    with self.engine.guard.comparing_models():
                        if not membership.may_change:
                            self.meeting.exchange("mean_model()", {}, members)  # all workers are here now
                        membership.average_model(run.mean_reducers, members, self.steps, self.round)
                if run.reducer.recorder.directory is not None:
                    distance = squared_distance(run.flat, own)
                    run.reducer.recorder.stats["distance"] = distance
                    run.reducer.recorder.note(distance=distance)
                with self.ending.evaluating():
                    yield run.flat.model

    def register_stateful(self, *objects: Stateful) -> None:
        """Register schedulers, gradient scalers and other objects whose state a restarted worker must copy.

        A worker that joins the run (`--max-restarts`) gets their states from the worker whose model it copies. All
        workers register the same objects in the same order, before their first step.

        Args:
            *objects: objects with the methods `state_dict` and `load_state_dict`.

        Raises:
            InputError: an object lacks these methods, or its state has types that a joining worker cannot load; or this
                worker registers more objects than the others.
        """
        self._handover.add(objects)

    def log(self, **numbers: float | torch.Tensor) -> None:
        """Record values of this step in the trace, such as `loss=loss`; without `trace` the call does nothing.

        `partreduce report` compares runs by their `loss`, and Perfetto draws each as a line.

        Args:
            **numbers: numbers by name, or tensors with one element, for which the call waits; InputError for others.
        """
        if self.run.reducer.recorder.directory is not None:
            self.run.reducer.recorder.note(**{name: checked_number(f"log: {name}", n) for name, n in numbers.items()})

    def stats(self, writer: Writer | None = None) -> Stats:
        """Return this worker's statistics since the start of the script; with `writer` also write them there.

        Keys: `steps`, `round`, `skipped`; `operations`, the number of averages and other collectives, and `failed`, how
        many of them failed; `operation_seconds`, their total duration, including waits for the last member and
        overlapped parts; `bytes`, their total payload before encoding; `age`, the delay of the last average in rounds;
        `distance`, the squared distance of this worker's parameters to the mean model at the last `mean_model()`, NaN
        without `trace`.

        Args:
            writer: TensorBoard's `SummaryWriter`, or another object with `add_scalar(tag, number, step)`; a function
                that takes the statistics; or the path of a CSV file per worker, to which a row is appended.

        Returns:
            The statistics by name.

        Raises:
            InputError: `writer` is of another type.
            FileError: the file cannot be written.
        """
        numbers: Stats = {"steps": self.steps, "round": self.round, "skipped": self.skipped}
        numbers |= self.run.reducer.recorder.stats
        if writer is not None:
            write_stats(numbers, writer)
        return numbers

    @in_default_modes
    def finish(self) -> None:
        """End the run on all workers: set every model to the mean over all workers, and write traces.

        Raises:
            PeerFailedError: a worker ended after another number of rounds, or is gone.
            UnavailableError: a worker did not finish within the timeout.
        """
        if not self.ending.is_finished:
            self.ending.guard(self.ending.finish)

    @in_default_modes
    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state dict, with step count and strategy state under the key `partreduce`.

        If gradients are averaged, the strategy state includes gradients that a pipeline has not applied yet and the
        rounding errors of error feedback, so a run continues bit for bit. If parameters are averaged, momentum differs
        between workers, as the models do, so each worker's state must be saved. With outer steps the strategy state has
        the outer parameters and the outer momentum (except for NoLoCo, equal on all workers). With sharded tables all
        workers must call it, and only worker 0's dict has the states of whole tables.

        Returns:
            The wrapped optimizer's dictionary with one more key, `partreduce`.

        Raises:
            PeerFailedError: a worker is gone while gradients are in flight or tables are gathered.
        """
        state = full_optimizer_states(self.run.tables, self.optimizer, dict(self.optimizer.state_dict()))
        own: dict[str, Any] = {"steps": self.steps, "schedule": self.schedule.name}
        if self.ending.is_running:
            kept = self.ending.guard(self.runner.state) if self.run.traits.carries_state else {}
            own |= {"strategy": {name: tensor.detach().clone() for name, tensor in kept.items()}} if kept else {}
        state["partreduce"] = own
        return state

    @in_default_modes
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimizer and, if saved, the step count; all workers call it at the same round.

        Averages in flight are dropped. The next step continues from the loaded state and the current parameters, so
        load the model too. Warns if a pipeline's state has no gradients.

        Args:
            state_dict: result of `state_dict()` of this optimizer, or of the wrapped one.

        Raises:
            InputError: the state was saved inside a round, and the schedule can resume only at the start of a round;
                or the dict is no state dict, or its key `partreduce` has no step count.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise InputError("load_state_dict: holds no 'state' and 'param_groups'; give what state_dict() returned")
        steps = None if (own := state_dict.get("partreduce")) is None else checked_steps(own)
        if steps is not None:
            self.engine.check_load(steps)
            self.ending.guard(lambda: self.engine.pause("load_state_dict", apply=False))
            if self.run.traits.agrees_on_end:
                with self.run.reducer.heartbeat.gathering("load_state_dict()", self.round, ADVICE):
                    self._check_other_steps(steps)
        theirs = {key: value for key, value in state_dict.items() if key != "partreduce"}
        self.optimizer.load_state_dict(local_optimizer_states(self.run.tables, self.optimizer, theirs))
        if steps is not None:
            if self.run.traits.drains_together:
                with self.run.reducer.heartbeat.gathering("load_state_dict()", self.round, ADVICE):
                    self.meeting.exchange("load_state_dict", {})
            lost = self.ending.guard(self.runner.drain)
            self.engine.continue_from(steps)
            self._load_strategy((own or {}).get("strategy"), steps, lost)

    def _load_strategy(self, state: dict[str, torch.Tensor] | None, steps: int, lost: str) -> None:
        """Load the strategy's saved state, such as outer parameters, to continue with step `steps`.

        Warns if it cannot be loaded; without saved state, warns with the text `lost` unless that is empty.
        """
        if state:
            lost = ""
            try:
                self.ending.guard(lambda: self.runner.load(state, steps))
            except InputError as error:
                lost = f"load_state_dict: what the state holds besides the optimizer's is dropped: {error}"
        if lost:
            warn_user(lost)

    def _check_other_steps(self, steps: int) -> None:
        """Raise InputError if workers load states of different steps, as is possible under a partial all-reduce."""
        gathered = self.meeting.exchange("state to load", {"steps": steps})
        if len(found := sorted({int(one["steps"]) for one in gathered})) > 1:
            raise InputError(
                f"load_state_dict: the workers' states are of steps {', '.join(map(str, found))}, and with a quorum "
                "only those of one place where all meet belong together; take them inside mean_model(), or use "
                "partreduce.save_checkpoint()"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, as the wrapped optimizer does.

        Args:
            set_to_none: release the gradients rather than fill them with zeros.
        """
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; its parameters must have been trainable when the model was wrapped.

        Args:
            param_group: dict with `params` and settings of the group, as for torch's optimizers.

        Raises:
            InputError: a parameter would not be averaged, and so would differ between workers; or `params` is a set.
        """
        parameters = param_group["params"]
        if isinstance(parameters, (set, frozenset)):
            raise InputError(
                f"add_param_group: params is a {type(parameters).__name__}, whose order differs between workers; "
                "give a list"
            )
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)  # a generator is read once
        group = {**param_group, "params": listed}
        run_checks(Moment.ADD_GROUP, self.engine.guard, group)
        self.optimizer.add_param_group(group)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - anything
        """Return any other attribute (param_groups, state, defaults, hooks) from the wrapped optimizer."""
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; `param_groups`, `state` and `defaults` are set on the wrapped optimizer."""
        if name in ("param_groups", "state", "defaults"):
            setattr(self.optimizer, name, value)
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise InputError for `copy.copy`, `copy.deepcopy` and pickle: in a copy all hooks would run twice."""
        raise InputError(
            "optimizer: a DistributedOptimizer belongs to a running job and cannot be copied or pickled; "
            "copy optimizer.state_dict(), or optimizer.optimizer, which is the plain one"
        )

    def __repr__(self) -> str:
        place = f"worker {self.rank} of {self.num_workers}"
        return f"DistributedOptimizer({self.schedule.name!r}, {place}, {self.optimizer!r})"


@contextlib.contextmanager
def _connecting(world: World, heartbeat: Heartbeat) -> Iterator[None]:
    """Context for connecting to other workers: an error inside is noted and ends this worker's heartbeat.

    Unless it is an InputError, it also destroys this worker's groups.
    """
    try:
        yield
    except InputError as error:
        heartbeat.note("left", f"stopped while it connected its groups with InputError: {first_line(error)}")
        heartbeat.stop()
        raise
    except PartreduceError as error:
        world.abandon()
        forget(world)
        heartbeat.note("failed", "gave up while it connected its groups")
        heartbeat.record_failure(str(error)[:300])
        heartbeat.stop()
        raise


def _prepare(world: World, schedule: Schedule, heartbeat: Heartbeat, *, own_process: bool, connects: bool) -> None:
    """Create this worker's groups; one that joins a running job (`connects` is False) does so later (see `Member`)."""
    world.signs = heartbeat
    if own_process:
        publish_stage(world.store, world.rank, "connected its groups")
    if connects:
        world.prepare(schedule)
    if own_process:
        publish_stage(world.store, world.rank, "trained", heartbeat.place)


def _run(
    plan: Schedule, reducer: Reducer, flat: FlatModel, optimizer: torch.optim.Optimizer, policies: Policies, *,
    tables: Tables, membership: FixedMembership,
) -> Run:  # fmt: skip
    """Create the `Run` for the strategy's runner: schedule, model, reducers and options."""
    nodes, transport = plan.cluster.node_of().tolist(), asdict(plan.strategy.transport)
    reducer.recorder.attach(
        "run", lambda: {"schedule": plan.name, "words": describe(plan), "node_of": nodes, "transport": transport}
    )
    mean_reducers = [reducer, *([reducer.of(flat.buffer_buckets, "buffers")] if flat.buffer_buckets else [])]
    applier = OptimizerStepper(optimizer, flat, [table.parameter for table in tables])
    alone = isinstance(reducer.world, SingleProcessWorld)
    return Run(
        plan, reducer.world.rank, flat, reducer, tuple(mean_reducers), applier, tables, policies.keeps_on_host, alone,
        membership=membership,
    )  # fmt: skip


def optimizer_of(parameter: torch.Tensor) -> DistributedOptimizer | None:
    """Return the DistributedOptimizer that averages a parameter or its gradient; None if there is none."""
    owner: DistributedOptimizer | None = _optimizers[parameter]() if parameter in _optimizers else None
    return owner
