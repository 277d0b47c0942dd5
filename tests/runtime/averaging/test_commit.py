"""Commit of a finished reduction: parameters, piggybacked tensors and gradients, value by value."""

import random
from fractions import Fraction

import pytest
import torch

from partreduce.runtime.averaging.bucket import (
    Bucket,
    Piggybacked,
    Slot,
    commit_delayed,
    commit_mean,
    commit_piggybacked,
    load_piggybacked,
    only_where,
    replace_where,
    rescale_progress,
    snapshot_piggybacked,
)
from partreduce.runtime.averaging.buffer_rules import BufferRule, BufferSpec
from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy
from partreduce.runtime.averaging.gradients import (
    OptimizerStepper,
    averaged_are_finite,
    commit_gradients,
    load_gradients,
)
from partreduce.runtime.transport.updates import Layout, add_updates
from partreduce.runtime.transport.weights import unit_weights

YES, NO = torch.tensor(True), torch.tensor(False)


def bucket_of(live, sums=(), *, parameters=(), piggybacked=()):
    """A float64 bucket of parameters and piggybacked tensors, and an array that holds the sums."""
    flat = torch.tensor(live, dtype=torch.float64)
    slots, start = [], 0
    for parameter in parameters:
        slots.append(Slot((f"p{start}",), parameter, (), start, parameter.stride()))
        start += parameter.numel()
    length = len(live) + sum(tensor.room for tensor in piggybacked)
    bucket = Bucket(torch.device("cpu"), torch.float64, len(live), flat, slots, list(piggybacked), length)
    array = bucket.lend()
    array[: len(sums)] = torch.tensor(sums, dtype=torch.float64)
    return bucket, array


def leaf(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def tensor(name, value, start, rule=BufferRule.MEAN):
    return Piggybacked(name, BufferSpec.of(value), start, rule, lambda: value)


def missing_state(start):
    spec = BufferSpec((1,), torch.float64, torch.strided)
    return Piggybacked("exp_avg:w", spec, start, BufferRule.MEAN, lambda: None)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("relaxation", "ok", "expected"),
    [
        (1, None, [3.0, 5.0]), (1, YES, [3.0, 5.0]), (1, NO, [1.0, 9.0]),
        (0.5, None, [2.0, 7.0]), (0.5, YES, [2.0, 7.0]), (0.5, NO, [1.0, 9.0]), (1.5, None, [4.0, 3.0]),
    ],
)  # fmt: skip
def test_commit_mean_applies_relaxation_only_if_the_check_passes(relaxation, ok, expected, swap):
    bucket, sums = bucket_of([1, 9], [3, 5, 7])
    before = bucket.flat
    commit_mean(bucket, sums, relaxation, ok, swap=swap)
    assert bucket.flat.tolist() == expected
    assert (bucket.flat is before) == (not swap or relaxation != 1 or ok is not None)


def test_commit_mean_copies_by_default():
    bucket, sums = bucket_of([1, 9], [3, 5])
    before = bucket.flat
    commit_mean(bucket, sums, 1, None)
    assert bucket.flat is before


@pytest.mark.parametrize(("ok", "expected"), [(None, [11.0, 26.0]), (YES, [11.0, 26.0]), (NO, [10.0, 30.0])])
def test_delayed_mean_keeps_progress_since_the_snapshot(ok, expected):
    bucket, sums = bucket_of([10, 30], [3, 5, 7])
    commit_delayed(bucket, sums, torch.tensor([1.0, 13.0, 99.0], dtype=torch.float64), 0.5, ok)
    assert bucket.flat.tolist() == expected


def test_progress_is_rescaled_relative_to_the_round_start():
    bucket, _ = bucket_of([10, 30])
    rescale_progress(bucket, torch.tensor([6.0, 40.0, 99.0], dtype=torch.float64), 0.5)
    assert bucket.flat.tolist() == [8.0, 35.0]


def test_failed_check_keeps_values_and_zeroes_non_finite_changes():
    live, new = torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), float("inf")])
    replace_where(live, new, NO)
    assert live.tolist() == [1.0, 2.0]
    replace_where(live, torch.tensor([3.0, 4.0]), YES)
    assert live.tolist() == [3.0, 4.0]
    replace_where(live, torch.tensor([5.0, 6.0]), None)
    assert live.tolist() == [5.0, 6.0]
    kept = torch.tensor([7.0])
    only_where(kept, YES)
    only_where(new, NO)
    assert (kept.tolist(), new.tolist()) == ([7.0], [0.0, 0.0])


def test_piggybacked_tensors_load_as_shares_or_from_the_first_member():
    value, count = torch.tensor([[2.0], [4.0]]), torch.tensor(6.0)
    piggybacked = [
        tensor("bn.running_mean", value.double(), 1),
        tensor("layer.weight_mask", count.double(), 3, BufferRule.FIRST),
        missing_state(4),
    ]
    for is_first, expected in ((True, [9.0, 1.0, 2.0, 6.0, 0.0]), (False, [9.0, 1.0, 2.0, 0.0, 0.0])):
        bucket, array = bucket_of([0], [9, 9, 9, 9, 9], piggybacked=piggybacked)
        load_piggybacked(bucket, array, 2, is_first=is_first, rank=0)
        assert array.tolist()[:5] == expected
    saved = snapshot_piggybacked(bucket)
    assert [None if one is None else one.tolist() for one in saved] == [[[2.0], [4.0]], 6.0, None]
    assert saved[0] is not piggybacked[0].fetch()


def test_committed_piggybacked_tensors_keep_changes_since_the_snapshot():
    mean, var, batches = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([8.0])

    def load():
        piggybacked = [
            tensor("bn.running_mean", mean.double(), 0), tensor("bn.running_var", var.double(), 2),
            missing_state(4), tensor("batches", batches.double(), 5),
        ]  # fmt: skip
        bucket, sums = bucket_of([], [10, 20, 0.5, 0.25, 77, 5], piggybacked=piggybacked)
        return bucket, sums, [one.fetch() for one in piggybacked]

    bucket, sums, values = load()
    commit_piggybacked(bucket, sums, None)
    assert [v.tolist() for v in values if v is not None] == [[10.0, 20.0], [0.5, 0.25], [5.0]]
    bucket, sums, values = load()
    commit_piggybacked(bucket, sums, NO)
    assert [v.tolist() for v in values if v is not None] == [[1.0, 2.0], [3.0, 4.0], [8.0]]
    bucket, sums, values = load()
    before = [torch.tensor([4.0, 4.0]).double(), torch.tensor([4.0, 4.0]).double(), None, None]
    commit_piggybacked(bucket, sums, YES, before)
    assert values[0].tolist() == [7.0, 18.0], "a mean may be negative"
    assert values[1].tolist() == [0.0, 0.25], "a variance is none below 0"
    assert values[3].tolist() == [5.0]
    bucket, sums, values = load()
    commit_piggybacked(bucket, sums, YES, [torch.tensor([40.0, 4.0]).double(), None, None, None])
    assert values[0].tolist() == [-29.0, 18.0]


def test_gradients_load_as_shares_with_presence_flags():
    one, two = leaf(0, 0), leaf(0)
    one.grad = torch.tensor([6.0, 9.0], dtype=torch.float64)
    bucket, array = bucket_of([0, 0, 0, 0], [5, 5, 5, 5, 5, 5], parameters=(one, two))
    assert load_gradients(bucket, array, 3) == {1}
    assert array.tolist()[:6] == [2.0, 3.0, 0.0, 5.0, 1.0, 0.0]
    assert one.grad.tolist() == [6.0, 9.0]
    two.grad = torch.tensor([3.0], dtype=torch.float64)
    assert load_gradients(bucket, array, 3) == set()
    assert array.tolist()[:6] == [2.0, 3.0, 1.0, 5.0, 1.0, 1.0]


@pytest.mark.parametrize(("ok", "expected"), [(None, [2.0, 3.0]), (YES, [2.0, 3.0]), (NO, [0.0, 0.0])])
def test_committed_means_leave_globally_missing_gradients_none(ok, expected):
    here, elsewhere, nowhere = leaf(0, 0), leaf(0), leaf(0)
    here.grad = torch.zeros(2, dtype=torch.float64)
    own = here.grad
    bucket, sums = bucket_of([0, 0, 0, 0], [2, 3, 4, 5, 1, 0.5, 0], parameters=(here, elsewhere, nowhere))
    commit_gradients(bucket, sums, ok, frozenset({1, 2}))
    assert here.grad is own
    assert here.grad.tolist() == expected
    assert elsewhere.grad.tolist() == ([4.0] if ok is not NO else [0.0])
    assert nowhere.grad is None
    sums.fill_(99)
    assert elsewhere.grad.tolist() != [99.0], "the gradient does not alias the sums"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradient_is_found_in_any_bucket(bad):
    one, two, three = leaf(0, 0), leaf(0), leaf(0)
    one.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
    two.grad = torch.tensor([1.0], dtype=torch.float64)
    buckets = [bucket_of([0, 0], parameters=(one, three))[0], bucket_of([0], parameters=(two,))[0]]
    assert averaged_are_finite(buckets)
    two.grad = torch.tensor([bad], dtype=torch.float64)
    assert not averaged_are_finite(buckets)
    two.grad, one.grad = None, torch.tensor([1.0, bad], dtype=torch.float64)
    assert not averaged_are_finite(buckets)


@pytest.mark.parametrize(
    ("gradient", "ok", "check", "moves"),
    [
        (3.0, None, False, True), (3.0, YES, True, True), (3.0, NO, False, False),
        (float("inf"), None, True, False), (float("nan"), YES, True, False), (float("inf"), None, False, True),
    ],
)  # fmt: skip
def test_optimizer_stepper_skips_failed_and_non_finite_means(gradient, ok, check, moves):
    """Momentum and decay would move a weight even with a gradient of zero, so the whole step is undone."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.5)
    flat = FlatModel(model, inner, BufferPolicy.LOCAL, StatePolicy.LOCAL)
    model.weight.grad = torch.ones_like(model.weight)
    inner.step()
    before = model.weight.detach().clone()

    def put():
        model.weight.grad.fill_(0.0 if ok is NO else gradient)
        return ok

    applier = OptimizerStepper(inner, flat)
    assert applier.apply(put, check_finite=check) == (moves or ok is NO)
    assert torch.equal(model.weight.detach(), before) == (not moves)


# Rounded weights sum to exactly 1, so that repeated averaging does not make parameters grow.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unit_weights_sum_to_one_and_match_the_request(dtype):
    numbers = random.Random(1)
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    for _ in range(300):
        parts = [numbers.randint(1, 50) for _ in range(numbers.randint(2, 9))]
        wanted = [Fraction(part, sum(parts)) for part in parts]
        own, others = unit_weights(wanted[1:], dtype)
        used = torch.tensor([own, *others], dtype=precision).double().tolist()  # as torch multiplies
        assert sum(map(Fraction, used)) == 1
        # The own weight absorbs the error of the eight others.
        error = 8 * 2.0 ** (-54 if precision == torch.float64 else -25)
        assert used == pytest.approx([float(weight) for weight in wanted], rel=0, abs=error)


def test_ones_stay_ones_over_many_averages():
    """If each weight were rounded separately, the result would be 1.0006 after 20,000 averages of three."""
    others = [torch.ones(1), torch.ones(1)]
    own = torch.ones(1)
    layout = Layout([own])
    for _ in range(20_000):
        before = own.clone()
        add_updates([own], [[other] for other in others], [Fraction(1, 3)] * 2, layout)
        others = [before, own.clone()]
    assert own.item() == pytest.approx(1.0, abs=1e-6)


def test_add_updates_can_write_the_change_to_another_tensor():
    """An interrupted average then leaves the parameters either unchanged or averaged."""
    own, others = torch.tensor([4.0, 8.0]), [torch.tensor([8.0, 0.0]), torch.tensor([0.0, 4.0])]
    change, layout = torch.full((2,), float("nan")), Layout([own])
    add_updates([own], [[other] for other in others], [0.5, 0.25], layout, into=[change])
    assert own.tolist() == [4.0, 8.0]
    assert (own + change).tolist() == [5.0, 3.0]
    add_updates([own], [[other] for other in others], [0.5, 0.25], layout, into=[own])
    assert own.tolist() == change.tolist()
