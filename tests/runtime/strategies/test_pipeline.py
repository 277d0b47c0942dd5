"""Strategy `allreduce` with a pipeline: late gradients in training loops, in joins and in saved states."""

import threading
import time
import warnings

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import wrap
from partreduce import load_checkpoint, save_checkpoint
from partreduce.errors import InputError, PeerFailedError
from partreduce.strategies import AllReduce, Pipeline
from partreduce.topo.strategies.axes import WIDER


class Numbers(torch.nn.Module):
    """Single float64 weights; the loss gives each weight its gradient."""

    def __init__(self, count=1, *, norm=False):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(1, dtype=torch.float64) for _ in range(count))
        if norm:
            self.norm = torch.nn.BatchNorm1d(1, affine=False).double()

    def backward(self, *gradients, scaler=None):
        pairs = zip(self.weights, gradients, strict=True)
        loss = sum((weight * gradient).sum() for weight, gradient in pairs if gradient is not None)
        (loss if scaler is None else scaler.scale(loss)).backward()

    @property
    def values(self):
        return [weight.item() for weight in self.weights]


def make_optimizer(world, *, model=None, strategy=None, momentum=0.0, **sync):
    """A model and its optimizer, with a pipeline unless another strategy is given."""
    model = model or Numbers()
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    return model, wrap(world, model, strategy or AllReduce(sync=Pipeline(**sync)), inner)


def take_steps(model, optimizer, gradients, *, scaler=None, clip=None):
    """Take a step per gradient, with a scaler and clipping if given; return the first weight's decrease after each."""
    seen = []
    for gradient in gradients:
        optimizer.zero_grad()
        model.backward(gradient, scaler=scaler)
        if scaler and clip:
            scaler.unscale_(optimizer)
        if clip:
            optimizer.average_gradients()
            clip()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        seen.append(-model.values[0])
    return seen


def train(world, steps, **options):
    """Steps with a gradient of 2 · step on worker 1 and zero on worker 0: the mean is the number of the step."""
    model, optimizer = make_optimizer(world, **options)
    return model, optimizer, take_steps(model, optimizer, [2.0 * step * world.rank for step in range(1, steps + 1)])


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.filterwarnings("ignore:partreduce. schedule")
def test_at_most_k_minus_1_operations_are_in_flight_in_k_arrays(ranks, width):
    def work(world):
        model, optimizer = make_optimizer(world, width=width)
        reducer, running, most, arrays = optimizer.run.reducer, set(), [0], set()
        begin, wait = reducer.begin, reducer.wait

        def beginning(*given, **options):
            reduction = begin(*given, **options)
            running.add(reduction)
            arrays.add(reduction.arrays[0].data_ptr())
            most[0] = max(most[0], len(running))
            return reduction

        def waiting(reduction):
            wait(reduction)
            running.discard(reduction)

        reducer.begin, reducer.wait = beginning, waiting
        take_steps(model, optimizer, [1.0] * 9)
        del reducer.begin, reducer.wait
        optimizer.finish()
        return most[0], len(arrays)

    assert ranks.run(2, work) == [(width - 1, width)] * 2


def test_pipeline_wider_than_2_warns_once(ranks):
    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(2, lambda world: make_optimizer(world, width=3)[1].finish())
        ranks.run(2, lambda world: make_optimizer(world)[1].finish())
    message = [str(warning.message) for warning in caught if "partreduce" in str(warning.message)]
    assert message == [f"partreduce: schedule 'trained' has a pipeline of 3: {WIDER}"]


def test_scaler_skips_late_and_drained_steps_on_all_workers(ranks):
    """Worker 1 has an infinite gradient in its second and in its last step; no worker applies those means."""

    def work(world):
        model, optimizer = make_optimizer(world)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        gradients = [float("inf") if world.rank == 1 and step in (2, 5) else float(step) for step in range(1, 6)]
        seen = take_steps(model, optimizer, gradients, scaler=scaler)
        optimizer.finish()
        return [*seen, -model.values[0]], scaler.get_scale()

    first, second = ranks.run(2, work)
    assert first == ([0, 1, 1, 4, 8, 8], 4.0)
    assert second == ([0, 1, 1, 4, 8, 8], 1.0)


@on_ranks(2)
def test_step_with_scaled_gradients_raises(world):
    model, optimizer = make_optimizer(world)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model.backward(1.0, scaler=scaler)
    optimizer.average_gradients()
    with pytest.raises(InputError, match=r"still bore the GradScaler's scale.*call scaler.unscale_\(optimizer\)"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    model.backward(1.0, scaler=scaler)


@on_ranks(2, [[0, 1, 2.5, 4]] * 2)
def test_late_mean_is_clipped_after_unscale_and_average_gradients(world):
    model, optimizer = make_optimizer(world)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    clip = lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.5)  # noqa: E731
    seen = take_steps(model, optimizer, [1.0, 2.0, 3.0, 4.0], scaler=scaler, clip=clip)
    optimizer.finish()
    return seen


@on_ranks(2, [1 + 1.5 + 1.5] * 2)
def test_end_of_join_clips_late_means_with_the_given_function(world):
    model, optimizer = make_optimizer(world)
    clip = lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.5)  # noqa: E731
    with optimizer.join(after_averaging=clip):
        take_steps(model, optimizer, [1.0, 2.0, 3.0], clip=clip)
    value = -model.values[0]
    optimizer.finish()
    return value


def test_end_of_join_drains_the_pipeline(ranks):
    def work(world):
        model, optimizer = make_optimizer(world)
        seen = []
        for _ in range(2):
            with optimizer.join():
                take_steps(model, optimizer, [2.0] * (2 + world.rank))
            seen.append((-model.values[0], optimizer.steps))
        optimizer.finish()
        return [*seen, -model.values[0]]

    epoch = 2.0 + 2.0 + 1.0  # worker 0 has no third batch
    assert ranks.run(2, work) == [[(epoch, 3), (2 * epoch, 6), 2 * epoch]] * 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("own", [0, 1])
def test_worker_without_data_skips_the_steps_that_a_scaler_skips(ranks, late, own):
    """Worker 1's second gradient is infinite; worker 0 has no second batch, or none at all."""

    def work(world):
        model, optimizer = make_optimizer(world, strategy=None if late else AllReduce())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with optimizer.join():
            take_steps(model, optimizer, [2.0, float("inf"), 2.0][: 3 if world.rank else own], scaler=scaler)
        optimizer.finish()
        return -model.values[0]

    assert ranks.run(2, work) == [2.0 + own] * 2


def test_unchanged_piggybacked_buffers_converge_to_their_mean(ranks):
    """Late means of running statistics must not oscillate around their mean."""

    def work(world, width):
        model = Numbers(norm=True)
        _, optimizer = make_optimizer(world, model=model, width=width)
        with torch.no_grad():
            model.norm.running_mean.fill_(float(world.rank))
        seen = []
        for _ in range(4 * width):
            optimizer.zero_grad()
            model.backward(1.0)
            optimizer.step()
            seen.append(model.norm.running_mean.item())
        optimizer.finish()
        return seen

    with warnings.catch_warnings(action="ignore"):
        for width in (2, 3, 4):
            for rank, seen in enumerate(ranks.run(2, lambda world, width=width: work(world, width))):
                assert seen[: width - 1] == [rank] * (width - 1)
                assert seen[width - 1 :] == [0.5] * (3 * width + 1)


def test_buffer_changes_during_a_late_mean_are_kept(ranks):
    def work(world):
        model = Numbers(norm=True)
        _, optimizer = make_optimizer(world, model=model)
        for step in range(1, 5):
            model.norm.running_mean += 2.0 * step * world.rank
            optimizer.zero_grad()
            model.backward(1.0)
            optimizer.step()
        own = model.norm.running_mean.item()
        optimizer.finish()
        return own, model.norm.running_mean.item()

    # b = W b + u: the last addition has not been averaged, earlier ones have.
    assert ranks.run(2, work) == [(1.0 + 2 + 3, 10.0), (1.0 + 2 + 3 + 8, 10.0)]


def test_load_state_dict_drops_gradients_in_flight_with_a_warning(ranks):
    def work(world):
        model, optimizer, _ = train(world, 3)
        start = [weight.detach().clone() for weight in model.parameters()]
        state = optimizer.state_dict()
        del state["partreduce"]["strategy"]  # as a state of another schedule
        optimizer.load_state_dict(state)
        for _ in range(2):
            optimizer.zero_grad()
            model.backward(1.0)
            optimizer.step()
        moved = [(before - weight).item() for before, weight in zip(start, model.parameters(), strict=True)]
        optimizer.finish()
        return moved

    with warnings.catch_warnings(record=True, action="always") as caught:
        assert ranks.run(2, work) == [[1.0]] * 2
    message = [str(warning.message) for warning in caught]
    assert any("the gradients of step 2, which were in flight, are dropped" in text for text in message)


def test_unsupported_late_gradients_are_dropped_with_a_warning(ranks):
    """A state of a wider pipeline, and of a pipeline for a schedule that is synchronous or averages parameters."""

    def work(world):
        model, optimizer = make_optimizer(world, width=3)
        for _ in range(3):
            model.backward(1.0)
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.finish()
        moved = []
        for strategy in (AllReduce(sync=Pipeline()), AllReduce(), AllReduce(steps_per_round=2)):
            model, optimizer = make_optimizer(world, strategy=strategy)
            optimizer.load_state_dict(state)
            assert optimizer.steps == 3
            moved += take_steps(model, optimizer, [1.0])
            optimizer.finish()
        return moved

    with warnings.catch_warnings(record=True, action="always") as caught:
        assert ranks.run(2, work) == [[0.0, 1.0, 1.0]] * 2
    message = [
        str(warning.message) for warning in caught if "besides the optimizer's is dropped" in str(warning.message)
    ]
    assert len(message) == 6
    assert sum("the late gradients of 2 steps, and a pipeline of 2 has 1" in text for text in message) == 2


def test_warning_of_dropped_gradients_points_to_the_caller(ranks, tmp_path):
    def work(world):
        _, optimizer, _ = train(world, 3)
        save_checkpoint(optimizer, tmp_path)
        load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        optimizer.finish()

    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(2, work)
    files = [warning.filename for warning in caught if "were in flight, are dropped" in str(warning.message)]
    assert files == [__file__] * 2


def test_failure_in_flight_is_named_in_time_and_changes_nothing(ranks):
    """Worker 1 stops after its third step: worker 0 can still apply that step's gradients, and no later ones."""

    def work(world):
        model, optimizer = make_optimizer(world, momentum=0.5)
        for step in range(3 if world.rank else 5):
            optimizer.zero_grad()
            model.backward(2.0)
            before = model.values, model.weights[0].grad.clone()
            if step == 4:
                start, optimizer.run.reducer.timeout = time.monotonic(), 1
                with pytest.raises(PeerFailedError, match=r"step 3, round 3: group \{0,1\}") as caught:
                    optimizer.step()
                assert time.monotonic() - start < 30
                assert before == (model.values, model.weights[0].grad)
                return str(caught.value)
            optimizer.step()
        ended.wait(60)
        return ""

    ended = threading.Event()

    def whole(world):
        try:
            return work(world)
        finally:
            if world.rank == 0:
                ended.set()

    text, _ = ranks.run(2, whole)
    assert "worker 1" in text
    ranks.fresh()


@pytest.mark.filterwarnings("ignore:partreduce. schedule .* has a pipeline of 3")
@pytest.mark.parametrize("width", [2, 3])
def test_run_continues_after_a_step_that_raises_on_all_workers(ranks, width):
    def work(world):
        model, optimizer = make_optimizer(world, width=width)
        plain, seen = optimizer.optimizer.step, []
        for step in range(1, 13):
            optimizer.zero_grad()
            model.backward(1.0)
            if step == 5:
                optimizer.optimizer.step = lambda *_: 1 / 0
                with pytest.raises(ZeroDivisionError):
                    optimizer.step()
                optimizer.optimizer.step = plain
                continue
            optimizer.step()
            seen.append((-model.values[0], len(optimizer.run.membership.flights)))
        return seen

    first, second = ranks.run(2, work)
    assert first == second
    assert first[-1] == (12 - width, width - 1), "one mean is lost with its step, and each later step applies one"


@on_ranks(2, [(9.0, 1)] * 2)
def test_state_with_late_gradients_loads_into_a_longer_warm_up(world):
    model, optimizer = make_optimizer(world)
    for _ in range(3):
        model.backward(1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state_dict()
    optimizer.finish()
    model, optimizer = make_optimizer(world, warm_up=6)
    optimizer.load_state_dict(state)
    take_steps(model, optimizer, [1.0] * 9)
    return -model.values[0], len(optimizer.run.membership.flights)
