"""Cases that once silently gave wrong numbers are now correct or raise, compared with numbers computed by hand."""

import copy
import io
import warnings

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import note_end_of_script, static_groups, wrap
from partreduce import PartreduceError
from partreduce import strategies as st
from partreduce.errors import InputError, PeerFailedError


class Scalar(torch.nn.Module):
    """One weight in double precision, whose gradient `backward` sets."""

    def __init__(self, value=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))

    def backward(self, gradient):
        (self.weight * gradient).sum().backward()


def make_optimizer(world, strategy, *, model=None, rate=1.0, timeout=60, **options):
    model = model or Scalar()
    return model, wrap(world, model, strategy, lr=rate, timeout=timeout, **options)


@pytest.mark.parametrize("strategy", [st.AllReduce(), st.Server(hosts=(1,))], ids=["allreduce", "server"])
@on_ranks(2, [(0.0, 0.25, 0.25, 1 - 0.125 * (0.5 + 0.25 + 64))] * 2)
def test_gradients_own_their_memory_across_the_mean_model(world, strategy):
    """Zeroed gradients stay 0 through a mean model (once −0.131), and averaged ones stay 0.25 (once 0.729)."""
    model, optimizer = make_optimizer(world, strategy, rate=0.125)
    model.backward(float(world.rank))
    optimizer.step()  # the mean gradient is 1/2
    optimizer.zero_grad(set_to_none=False)
    with optimizer.mean_model():
        pass
    model.backward(0.0)
    zero = model.weight.grad.item()
    optimizer.zero_grad()
    model.backward(0.5 * world.rank)
    optimizer.average_gradients()
    kept = model.weight.grad
    with optimizer.mean_model():
        pass
    averaged = model.weight.grad.item()
    optimizer.step()
    optimizer.zero_grad()
    model.backward(64.0)
    optimizer.step()
    values = zero, averaged, kept.item(), model.weight.item()
    optimizer.finish()
    return values


@on_ranks(2, [0.75] * 2)
def test_grad_scaler_checks_gradients_and_not_scratch_memory(world):
    model, optimizer = make_optimizer(world, st.AllReduce())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((model.weight * 0.25).sum()).backward()
    scaler.unscale_(optimizer)
    optimizer.average_gradients()
    for bucket in optimizer.run.flat.buckets:
        bucket.lend().fill_(float("inf"))
    scaler.step(optimizer)
    optimizer.finish()
    return model.weight.item()


@on_ranks(2, [0.5] * 2)
def test_step_that_raised_after_its_average_may_be_skipped(world):
    model, optimizer = make_optimizer(world, st.AllReduce())
    plain = optimizer.optimizer.step
    model.backward(1.0)
    optimizer.average_gradients()
    optimizer.optimizer.step = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    optimizer.optimizer.step = plain
    optimizer.skip()
    model.backward(0.5)
    optimizer.step()
    optimizer.finish()
    return model.weight.item()


@pytest.mark.parametrize("place", ["finish", "mean_model"])  # the idiom "unfreezing" covers step()
@on_ranks(2)
def test_parameter_unfrozen_after_wrapping_is_rejected(world, place):
    model = torch.nn.Sequential(Scalar(), Scalar())
    model[1].weight.requires_grad_(requires_grad=False)
    _, optimizer = make_optimizer(world, st.AllReduce(steps_per_round=2), model=model)
    model[1].weight.requires_grad_(requires_grad=True)
    action = optimizer.mean_model().__enter__ if place == "mean_model" else getattr(optimizer, place)
    message = rf"'1.weight' of worker {world.rank} was frozen .* wrap first and then freeze"
    with pytest.raises(InputError, match=message):
        action()
    model[1].weight.requires_grad_(requires_grad=False)
    optimizer.finish()


# Each worker loads its own model again.
@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("model_first", [False, True])
def test_a_rollback_repeats_the_first_run(ranks, late, model_first):
    """With step-normalized averaging and 1 and 2 steps per round."""
    strategy = st.AllReduce(
        steps_per_round=(1, 2),
        averaging=st.Averaging.STEP_NORMALIZED,
        sync=st.DelayedAveraging() if late else st.AllReduce(steps_per_round=2).sync,
    )

    def rounds(model, optimizer, rank, first):
        for round_ in range(first, first + 2):
            for _ in range(rank + 1):
                optimizer.zero_grad()
                model.backward(0.5 * (rank + 1) * (round_ + 1))
                optimizer.step()

    def work(world):
        model, optimizer = make_optimizer(world, strategy)
        rounds(model, optimizer, world.rank, 0)
        saved, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        rounds(model, optimizer, world.rank, 2)
        gone_wrong = model.weight.item()
        loads = [lambda: model.load_state_dict(saved), lambda: optimizer.load_state_dict(state)]
        for load in loads if model_first else reversed(loads):
            load()
        start = model.weight.item()
        rounds(model, optimizer, world.rank, 2)
        again = model.weight.item()
        optimizer.finish()
        return start, gone_wrong, again

    results = ranks.run(2, work)
    # In round r worker i moves by −(r+1)(i+1)/2 a step; at the mean of 1.5 steps per round that is −0.75 (r+1)(i+1).
    moved = [sum(-0.75 * (r + 1) * (i + 1) for r in (2, 3)) for i in range(2)]
    if not late:
        for start, _, again in results:
            assert again == pytest.approx(start + sum(moved) / 2, abs=1e-12)
        return
    # x_{k+1} = mean of x_k + own progress, from the models that were loaded.
    models = [start for start, _, _ in results]
    for r in (2, 3):
        mean = sum(models) / 2
        models = [mean - 0.75 * (r + 1) * (i + 1) for i in range(2)]
    assert [again for _, _, again in results] == pytest.approx(models, abs=1e-12)


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
@on_ranks(2)
def test_state_saved_inside_a_step_normalized_round_is_rejected(world):
    model, optimizer = make_optimizer(world, st.AllReduce(steps_per_round=2, averaging=st.Averaging.STEP_NORMALIZED))
    model.backward(1.0)
    optimizer.step()
    with pytest.raises(InputError, match="step 1 lies inside a round of 2 steps"):
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    optimizer.finish()


@on_ranks(2, [(0.25, 2)] * 2)
def test_skip_after_average_gradients_raises_and_zero_grad_works(world):
    """Once the worker that skipped got 0.5 and the others 0.25."""
    model, optimizer = make_optimizer(world, st.AllReduce())
    model.backward(1.5 * world.rank)
    optimizer.average_gradients()
    if world.rank == 0:
        with pytest.raises(InputError, match=r"skip: average_gradients\(\) has put"):
            optimizer.skip()
    optimizer.step()
    model.backward(8.0)
    optimizer.average_gradients()
    optimizer.zero_grad()
    optimizer.step()
    optimizer.finish()
    return model.weight.item(), optimizer.steps


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)


@on_ranks(2, [0.25, 0.25])
def test_a_worker_without_data_clips_with_the_others(world):
    """It once took its third step with the unclipped mean, 0.5 instead of 0.25."""
    model, optimizer = make_optimizer(world, st.AllReduce())
    with optimizer.join(after_averaging=lambda: clip(model)):
        for _ in range(2 + world.rank):
            model.backward(1.0)
            optimizer.average_gradients()
            clip(model)
            optimizer.step()
            optimizer.zero_grad()
    optimizer.finish()
    return round(model.weight.item(), 4)


def test_clipping_on_one_worker_alone_raises_in_the_next_step(ranks):
    """Their models differ by then, which once raised no error."""

    def work(world):
        model, optimizer = make_optimizer(world, st.AllReduce())
        for _ in range(2):
            model.backward(1.0)
            optimizer.average_gradients()
            if world.rank == 0:
                clip(model)
            optimizer.step()
            optimizer.zero_grad()

    errors = ranks.run(2, work, catch=PeerFailedError)
    assert any("different operations" in str(error) for error in errors)


@on_ranks(2, [-2.0, -2.0])
def test_average_gradients_on_one_worker_alone_changes_nothing(world):
    model, optimizer = make_optimizer(world, st.AllReduce())
    for _ in range(3):
        model.backward(1.0)
        if world.rank == 0:
            optimizer.average_gradients()
            assert model.weight.grad.norm() == 1.0
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    return model.weight.item()


@on_ranks(2)
def test_asynchronous_server_rejects_different_initial_models(world):
    model, optimizer = make_optimizer(
        world, st.Server(hosts=(0,), synchronous=False), model=Scalar(float(world.rank)), initial="keep"
    )
    model.backward(0.0)
    if world.rank == 0:
        optimizer.step()
    else:
        with pytest.raises(InputError, match=f"worker {world.rank} starts from other parameters than worker 0"):
            optimizer.step()
    optimizer.runner.close()


@on_ranks(2, [4.0] * 2)
def test_model_loaded_between_rounds_is_trained(world):
    model, optimizer = make_optimizer(world, st.AllReduce(steps_per_round=2))
    for value in (3.0, 5.0):
        model.load_state_dict({"weight": torch.tensor([value])})
        for _ in range(2):
            optimizer.zero_grad()
            model.backward(float(world.rank))
            optimizer.step()
    optimizer.finish()
    return model.weight.item()


@on_ranks(2, [-0.5] * 2)
def test_parameter_of_size_zero_is_supported(world):
    model = Scalar()
    model.nothing = torch.nn.Parameter(torch.zeros(0, 3))
    _, optimizer = make_optimizer(world, static_groups(2, [range(2)]), model=model)
    for _ in range(3):
        optimizer.zero_grad()
        model.backward(float(world.rank))
        optimizer.step()
    optimizer.finish()
    return model.weight.item()


@on_ranks(2)
def test_two_optimizers_that_could_deadlock_are_rejected(world):
    """They once used one gloo group with arrays of unequal size, which ends the process by SIGABRT."""
    model, first = make_optimizer(world, st.AllReduce(steps_per_round=(1, 2)))
    other, second = make_optimizer(world, st.AllReduce(steps_per_round=(2, 4)))
    with pytest.raises(InputError, match=r"\[2, 1\] and those of 'trained', \[[12], [24]\]"):
        make_optimizer(world, st.AllReduce(steps_per_round=(2, 1)))
    for step in range(4):
        for net, optimizer, steps in ((model, first, world.rank + 1), (other, second, 2 * world.rank + 2)):
            for _ in range(steps):
                optimizer.zero_grad()
                net.backward(float(step))
                optimizer.step()
    first.finish()
    second.finish()
    make_optimizer(world, st.AllReduce(steps_per_round=(2, 1)))[1].finish()


def test_unscaling_is_not_mistaken_for_clipping(ranks):
    def work(world):
        model, optimizer = make_optimizer(world, st.AllReduce())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((model.weight * 0.25).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        return model.weight.item()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="partreduce")
        assert ranks.run(2, work) == [0.25] * 2


def size_of(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.tell()


@on_ranks(2)
def test_saved_layer_does_not_contain_the_rest_of_the_model(world):
    """A layer of 40 kB once took 4.0 MB."""
    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000, bias=False), torch.nn.Linear(100, 100, bias=False))
    _, optimizer = make_optimizer(world, static_groups(2, [range(2)]), model=model)
    sizes = []
    for _ in range(3):
        model[0](torch.ones(1000)).sum().backward()
        optimizer.step()  # which swaps the parameter arrays
        sizes.append(size_of(model[1].state_dict()))
    whole = size_of(model.state_dict())
    optimizer.finish()
    assert max(sizes) < 50_000
    assert whole < 4_100_000


@on_ranks(2, [1] * 2)
def test_optimizer_cannot_be_copied_and_hooks_run_once(world):
    model, optimizer = make_optimizer(world, st.AllReduce())
    for make in (copy.copy, copy.deepcopy, lambda one: torch.save(one, io.BytesIO())):
        with pytest.raises(InputError, match="belongs to a running job"):
            make(optimizer)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    model.backward(1.0)
    optimizer.step()
    optimizer.finish()
    return len(calls)


class Counting(torch.nn.Module):
    """A weight and a buffer whose size a forward pass may change."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize(
    "strategy",
    [st.AllReduce(), st.AllReduce(steps_per_round=2), st.Pairwise(active=(1,))],
    ids=lambda one: f"{one.kind} {one.steps_per_round}",
)
@pytest.mark.parametrize(
    ("where", "changed", "message"),
    [
        ("step", torch.zeros(6).double(), "has the shape [6] on worker 1 now, and had [4] on all workers"),
        ("mean_model", torch.zeros(4).cfloat(), "is torch.complex64 on worker 1 now, and was torch.float64 on all"),
        ("step", torch.zeros(4).double().to_sparse(), "is sparse on worker 1 now, and was dense on all workers"),
    ],
    ids=["size", "complex", "sparse"],
)
def test_buffer_changed_on_one_worker_is_named(ranks, strategy, where, changed, message):
    """The error was once "The size of tensor a (6) must match the size of tensor b (4)"."""

    def train(world, model, optimizer):
        if world.rank == 1:
            model.seen = changed.clone()
        if where == "mean_model":
            with optimizer.mean_model():
                pass
        for _ in range(2):
            model.weight.sum().backward()
            optimizer.step()
        with optimizer.mean_model():
            pass

    def train_until_error(world):
        model, optimizer = make_optimizer(world, strategy, model=Counting())
        try:
            train(world, model, optimizer)
        except InputError:  # as the end of the script does, so that the other need not wait
            note_end_of_script(optimizer)
            world.abandon()
            raise

    errors = ranks.run(2, train_until_error, catch=PartreduceError)
    assert isinstance(errors[1], InputError)
    assert "\n" not in str(errors[1])
    assert str(errors[1]).startswith(f"buffer 'seen': {message}")
    assert isinstance(errors[0], PartreduceError)


@pytest.mark.parametrize(
    "strategy",
    [st.AllReduce(), st.AllReduce(steps_per_round=2)],
    ids=lambda one: f"steps_per_round {one.steps_per_round}",
)
def test_layer_replaced_on_one_worker_is_named_before_training_continues(ranks, strategy):
    """Training once continued, with a layer on that worker that was neither trained nor averaged."""

    def work(world):
        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        model, optimizer = make_optimizer(world, strategy, model=layers, timeout=60)
        if world.rank == 1:
            model[1] = torch.nn.Linear(2, 1)
        try:
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            optimizer.finish()
        except InputError:
            world.abandon()  # as the end of the script does, so that the other need not wait
            raise

    errors = ranks.run(2, work, catch=PartreduceError)
    assert str(errors[1]).startswith("model: parameter '1.weight' is not in the model of worker 1 any more")
    assert "\n" not in str(errors[1])
    assert isinstance(errors[0], PartreduceError)


@on_ranks(2, [(1.5, 3.5)] * 2)
def test_gradient_shared_by_two_parameters_is_averaged_for_each(world):
    """The second parameter's mean once overwrote the first's, since both used the same memory."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)).double()
    _, optimizer = make_optimizer(world, st.AllReduce(), model=model)
    first, second = model.parameters()
    first.grad = torch.full((1, 1), 1.0 + world.rank, dtype=torch.float64)
    second.grad = first.grad if world.rank else torch.full((1, 1), 5.0, dtype=torch.float64)
    optimizer.average_gradients()
    means = first.grad.item(), second.grad.item()
    optimizer.step()
    optimizer.finish()
    return means


@pytest.mark.parametrize("way", ["skip", "join", "GradScaler"])
def test_manually_set_gradients_may_be_skipped_joined_and_unscaled(ranks, way):
    def work(world):
        model = torch.nn.Linear(2, 2, bias=False).double()
        _, optimizer = make_optimizer(world, st.AllReduce(), model=model)
        before = model.weight.detach().clone()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with optimizer.join():
            for _ in range(1 + (way == "join" and world.rank)):
                if way == "GradScaler":
                    scaler.scale(model.weight.sum()).backward()
                eight = torch.tensor(8.0, dtype=torch.float64)
                # Torch's own scaler refuses expanded gradients.
                model.weight.grad = (
                    torch.full((4,), 8.0).double().view(2, 2) if way == "GradScaler" else eight.expand(2, 2)
                )
                if way == "GradScaler":
                    scaler.step(optimizer)
                elif way == "skip" and world.rank == 0:
                    optimizer.skip()
                else:
                    optimizer.step()
        optimizer.finish()
        return sorted(set((before - model.weight.detach()).reshape(-1).tolist()))

    moved = {"skip": 4.0, "join": 8.0 + 4.0, "GradScaler": 2.0}[way]
    for distances in ranks.run(2, work):
        assert distances == pytest.approx([moved])


@pytest.mark.parametrize(
    ("make", "codec", "steps_per_round", "warns"),
    [
        (torch.optim.AdamW, "int8", 1, True),
        (torch.optim.RMSprop, "int8", 1, True),
        (torch.optim.SGD, "int8", 1, False),
        (torch.optim.AdamW, "bfloat16", 1, False),
        (torch.optim.AdamW, "int8", 2, False),
    ],
)
def test_int8_gradients_with_an_adaptive_optimizer_warn_once(ranks, make, codec, steps_per_round, warns):
    def work(world):
        model = Scalar()
        inner = make(model.parameters(), lr=0.1)
        wrap(world, model, st.AllReduce(steps_per_round=steps_per_round), inner, codec=codec).finish()

    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(2, work)
    messages = [str(one.message) for one in caught if "partreduce" in str(one.message)]
    assert len(messages) == warns
    assert all(f"codec int8 with {make.__name__}" in text and "docs/codecs.md" in text for text in messages)


@pytest.mark.parametrize(("steps", "warned"), [(0, False), (3, True), (5, True), (6, False)])
def test_run_that_ends_before_all_workers_averaged_warns_once(ranks, steps, warned):
    """Its workers trained independently, which the training loss does not show."""
    schedule = static_groups(4, [[0, 1], [2, 3]], [range(4)], steps_per_round=3)

    def work(world):
        model, optimizer = make_optimizer(world, schedule)
        for _ in range(steps):
            model.backward(1.0)
            optimizer.step()
        optimizer.finish()

    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(4, work)
    messages = [str(warning.message) for warning in caught if "the run ended after" in str(warning.message)]
    wanted = f"the run ended after {steps} steps, before all workers had averaged with one another: this schedule"
    assert messages == [f"{wanted} connects them in 2 rounds, 6 steps; finish() has averaged once"] * warned


EDGES_OF_TWO = st.Round.from_edges(3, [(1, 2, "1/2"), (2, 1, "1/2")])
DISCONNECTED = {
    "groups": (static_groups(3, [[1, 2]]), r"workers \{0\} share no group"),
    "edges": (st.NeighborAveraging(rounds=(EDGES_OF_TWO,)), r"workers \{0\} receive only from"),
}


@pytest.mark.parametrize("kind", DISCONNECTED)
def test_workers_that_never_average_with_others_are_named_once(ranks, kind):
    strategy, message = DISCONNECTED[kind]
    with pytest.warns(UserWarning, match=f"schedule 'trained': .*{message}") as caught:
        ranks.run(3, lambda world: make_optimizer(world, strategy))
    assert len(caught) == 1


def test_connected_workers_cause_no_warning(ranks):
    pairs = static_groups(3, [[1, 2]], [[0, 1]])
    with warnings.catch_warnings(record=True, action="always") as caught:
        ranks.run(3, lambda world: make_optimizer(world, pairs))
    assert not caught
