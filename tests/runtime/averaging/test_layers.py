"""Gradients sent per layer during backward: same values, one order on all workers, and no change after sending."""

import contextlib
from unittest import mock

import pytest
import torch

from helpers.thread_ranks import on_ranks
from partreduce import Cluster, DistributedOptimizer, Schedule, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import InputError, PeerFailedError
from partreduce.runtime.averaging import bucketed_gradients
from partreduce.runtime.averaging.bucketed_gradients import SEGMENT_BYTES, Segment, segments_of
from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy

LAYERS = st.Transport(gradient_buckets=st.GradientBuckets.PER_LAYER)
SYNCS = pytest.mark.parametrize("sync", [st.Synchronous(), st.Pipeline()], ids=["synchronous", "pipeline"])


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """Small segments, so that small models have many."""
    monkeypatch.setattr(bucketed_gradients, "SEGMENT_BYTES", 512)


class Ladder(torch.nn.Module):
    """Weights of several sizes with given gradients; backward reaches the last weight first."""

    def __init__(self, sizes, dtype=torch.float64):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(size, dtype=dtype) for size in sizes)

    def backward(self, gradients):
        """Run backward through a chain, so that the last weight's gradient is ready first; None omits a gradient."""
        chain = torch.zeros((), dtype=self.weights[0].dtype, requires_grad=True)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            if gradient is not None:
                chain = chain * 1.0 + (weight * gradient).sum()
        chain.backward()

    def numbers(self):
        return torch.cat([weight.detach() for weight in self.weights])


def wrap(world, model, transport=LAYERS, sync=None, *, nodes=1, make=torch.optim.SGD, timeout=60, **options):
    cluster = Cluster.regular(nodes, world.size // nodes)
    schedule = Schedule("layers", cluster, st.AllReduce(transport=transport, sync=sync or st.Synchronous()))
    inner = make(model.parameters(), **({"lr": 0.5, "momentum": 0.5} | options))
    return DistributedOptimizer(inner, model, schedule, timeout=timeout, world=world)


class Ones:
    """One worker's run with learning rate 1, no momentum and constant gradients."""

    def __init__(self, world, sizes=(64, 100), *, number=1.0, **options):
        self.model = Ladder(sizes)
        self.optimizer = wrap(world, self.model, lr=1.0, momentum=0.0, **options)
        self.gradients = [torch.full((size,), number, dtype=torch.float64) for size in sizes]

    def backward(self, *, zero=True):
        if zero:
            self.optimizer.zero_grad()
        self.model.backward(self.gradients)

    def steps(self, count):
        for _ in range(count):
            self.backward()
            self.optimizer.step()

    def end(self):
        """Finish, and return the distinct parameter values."""
        self.optimizer.finish()
        return set(self.model.numbers().tolist())


@SYNCS
def test_int8_codes_each_segment_separately_and_replicas_stay_equal(ranks, sync):
    """Layers of scales 1, 100 and 10,000: each error is relative to its own layer, with error feedback."""
    sizes = (200, 200, 200)
    transport = st.Transport(codec=st.Codec.INT8, gradient_buckets=st.GradientBuckets.PER_LAYER, error_feedback=True)

    def work(world):
        model = Ladder(sizes, torch.float32)
        optimizer = wrap(world, model, transport, sync, lr=1.0, momentum=0.0)
        total = torch.zeros(sum(sizes))
        for step in range(6):
            optimizer.zero_grad()
            factor = 1.0 + world.rank + step
            gradients = [factor * 100.0**place * torch.linspace(0.1, 1, size) for place, size in enumerate(sizes)]
            model.backward(gradients)
            total -= torch.cat(gradients)
            optimizer.step()
        optimizer.finish()
        return model.numbers(), total

    (first, total), (second, other) = ranks.run(2, work)
    assert torch.equal(first, second)
    for place, (mine, should) in enumerate(zip(first.split(sizes), ((total + other) / 2).split(sizes), strict=True)):
        largest = 7 * 100.0**place
        assert 0 < float((mine - should).abs().max()) < 2 * largest / 127


def test_segments_follow_reverse_order_and_merge_tiny_layers():
    model = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 32)])
    model.append(torch.nn.Linear(8, 40).to(torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flat = FlatModel(model, optimizer, BufferPolicy.AVERAGE, StatePolicy.LOCAL)
    first, second = flat.buckets
    starts = [slot.start for slot in first.slots]  # weight, bias, weight, bias, weight, bias
    found = segments_of(flat.buckets, model.parameters())
    assert found == [
        Segment(1, 0, second.size, (1, 0)),
        Segment(0, starts[4], first.size, (5, 4)),
        Segment(0, 0, starts[4], (3, 2, 1, 0)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucketed_gradients, "SEGMENT_BYTES", SEGMENT_BYTES)
        assert [segment.slots for segment in segments_of(flat.buckets, model.parameters())] == [
            (1, 0),
            (5, 4, 3, 2, 1, 0),
        ]


def launches(optimizer):
    """Record the first element of each tensor whose all-reduce starts; return the list and a function that restores."""
    communicator = optimizer.run.reducer.world.everyone()
    started, start = [], communicator.all_reduce

    def all_reduce(tensor, *rest):
        started.append(tensor[0].item())
        return start(tensor, *rest)

    communicator.all_reduce = all_reduce
    return started, lambda: delattr(communicator, "all_reduce")


def test_backward_sends_segments_in_reverse_despite_missing_gradients(ranks):
    """Each segment has its own constant gradient, of which each of the two workers sends half."""
    sizes = (64, 64, 64, 64)

    def work(world):
        model = Ladder(sizes)
        optimizer = wrap(world, model, lr=1.0, momentum=0.0)
        seen = []
        for left_out in (None, 2, 3, 0):
            started, restore = launches(optimizer)
            optimizer.zero_grad()
            gradients = [torch.full((size,), 2.0 * place, dtype=torch.float64) for place, size in enumerate(sizes, 1)]
            if world.rank and left_out is not None:
                gradients[left_out] = None
            model.backward(gradients)
            early = len(started)
            optimizer.step()
            restore()
            assert [place for place in started[:4] if place] == [
                place + 1.0 for place in (3, 2, 1, 0) if gradients[place] is not None
            ]
            seen.append((early, len(started)))
        optimizer.finish()
        return seen, [weight.unique().tolist() for weight in model.numbers().split(64)]

    (first, numbers), (second, same) = ranks.run(2, work)
    assert numbers == same == [[-2.0 * 3.5], [-4.0 * 4], [-6.0 * 3.5], [-8.0 * 3.5]]
    assert first == [(4, 5)] * 4
    assert second == [(4, 5), (1, 5), (0, 5), (3, 5)]


def works(optimizer):
    """The work handles of the sums in flight."""
    reductions = [reduction for flight in optimizer.runner.membership.flights for _, reduction in flight.sums]
    return [work for reduction in reductions for work in reduction.works]


@pytest.mark.filterwarnings("ignore:partreduce. schedule .* has a pipeline of 3")
@pytest.mark.parametrize(("width", "wanted"), [(2, [2, 0, 0, 2]), (3, [2, 2, 0, 2])])
def test_pipeline_sends_segments_while_it_has_room(ranks, width, wanted):
    """No sum completes before the last step; a full pipeline sends everything in step()."""
    sizes = (64, 64)

    def work(world):
        model = Ladder(sizes)
        optimizer = wrap(world, model, sync=st.Pipeline(width=width))
        early = []
        for step in range(4):
            started, restore = launches(optimizer)
            optimizer.zero_grad()
            with contextlib.ExitStack() as hidden:
                if step == 3:
                    optimizer.runner.settle()
                else:
                    for work in works(optimizer):
                        hidden.enter_context(mock.patch.object(work, "is_completed", return_value=False))
                model.backward([torch.ones(size, dtype=torch.float64) for size in sizes])
            early.append(len(started))
            optimizer.step()
            restore()
        optimizer.finish()
        return early

    assert ranks.run(2, work) == [wanted] * 2


def check_misuse(world, misuse, *, message, sync=None, again=True):
    """Misuse a step on all workers; the run then continues without that step."""
    run = Ones(world, sync=sync)
    run.backward()
    with pytest.raises(InputError, match=message) as caught:
        misuse(run.optimizer, run.model, run.gradients)
    assert "\n" not in str(caught.value)
    if not again:
        return None
    run.steps(2)
    return run.end()


def twice(optimizer, model, gradients):
    model.backward(gradients)
    optimizer.step()


def clip(optimizer, model, _gradients):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def zero_gradients(optimizer, _model, _gradients):
    optimizer.zero_grad()
    optimizer.step()


def replace_gradient(optimizer, model, _gradients):
    model.weights[1].grad = model.weights[1].grad.clone()
    optimizer.step()


def one_of_them(optimizer, model, _gradients):
    if optimizer.rank == 0:
        model.weights[1].grad.mul_(2)
    optimizer.step()


@SYNCS
@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (twice, r"sending layers: parameter 'weights.1' got a gradient a second time before step\(\)"),
        (
            clip,
            r"the gradient of 'weights.1' was changed after backward\(\), when it had left; call average_gradients",
        ),
        (zero_gradients, "was changed after backward"),
        (replace_gradient, "was changed after backward"),
    ],
)
def test_changing_a_sent_gradient_raises_and_the_run_continues(ranks, misuse, message, sync):
    assert ranks.run(2, lambda world: check_misuse(world, misuse, message=message, sync=sync)) == [{-2.0}] * 2


@on_ranks(2, fresh=True)
def test_peers_reject_the_sum_if_one_worker_changes_sent_gradients(world):
    if world.rank == 0:
        return check_misuse(world, one_of_them, message="was changed after backward", again=False)
    run = Ones(world)
    run.backward()
    with pytest.raises(PeerFailedError, match="their tags differ"):
        run.optimizer.step()
    assert not run.model.numbers().any()
    return None


@on_ranks(2, [{-2.5}] * 2)
def test_skip_raises_after_backward_and_works_before(world):
    run = Ones(world)
    run.steps(1)
    run.optimizer.zero_grad()
    if world.rank == 1:
        run.optimizer.skip()
    else:
        run.steps(1)
    run.backward()
    with pytest.raises(InputError, match=r"skip: this step's gradients have left during backward\(\)"):
        run.optimizer.skip()
    run.optimizer.step()
    return run.end()


@pytest.mark.parametrize("what", ["mean_model", "checkpoint", "finish"])
@on_ranks(2, [{-1.0}] * 2)
def test_collective_calls_between_backward_and_step_raise(world, what, tmp_path):
    run = Ones(world)
    run.backward()
    action = {
        "mean_model": lambda: run.optimizer.mean_model().__enter__(),
        "checkpoint": lambda: save_checkpoint(run.optimizer, tmp_path),
        "finish": run.optimizer.finish,
    }[what]
    with pytest.raises(InputError, match=r"gradients have left during backward\(\).*call step\(\) first") as caught:
        action()
    assert "this step's gradients" in str(caught.value)
    run.optimizer.step()
    with run.optimizer.mean_model():
        pass
    return run.end()


@pytest.mark.filterwarnings("ignore:partreduce. the gradients of step")
@SYNCS
@on_ranks(2, [{-2.0}] * 2)
def test_load_state_dict_discards_gradients_sent_by_backward(world, sync):
    run = Ones(world, sync=sync)
    run.backward()
    run.optimizer.load_state_dict(run.optimizer.state_dict())
    run.steps(2)
    return run.end()


@on_ranks(2, [{-1.5 - 1.0 - 1.5}] * 2)
def test_layers_support_closures_average_gradients_and_retained_graphs(world):
    run = Ones(world, number=1.0 + world.rank)
    model, optimizer = run.model, run.optimizer
    assert optimizer.step(lambda: run.backward() or 5.0) == 5.0
    run.backward()
    optimizer.average_gradients()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss = sum((weight * one).sum() for weight, one in zip(model.weights, run.gradients, strict=True))
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    optimizer.average_gradients()
    run.backward(zero=False)
    with pytest.raises(InputError, match=r"got a gradient between average_gradients\(\) and step\(\)"):
        optimizer.step()
    return set(model.numbers().tolist())


@SYNCS
@on_ranks(2, [{-2.0}] * 2)
def test_workers_without_data_send_zeros_in_the_same_order(world, sync):
    run = Ones(world, sync=sync)
    with run.optimizer.join():
        run.steps(1 + 2 * world.rank)
    return run.end()


@on_ranks(2, [(3, [-1.0, -1.0, 0.0])] * 2)
def test_frozen_layers_do_not_delay_sending(world):
    run = Ones(world, (64, 64, 64))
    run.model.weights[2].requires_grad_(requires_grad=False)
    started, restore = launches(run.optimizer)
    run.backward()
    early = len(started)
    run.optimizer.step()
    restore()
    run.optimizer.finish()
    return early, [weight[0].item() for weight in run.model.weights]
