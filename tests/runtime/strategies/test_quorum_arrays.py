"""The arrays of a quorum alone: late gradients in the send buffer, and waiting sums."""

import pytest
import torch

from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy
from partreduce.runtime.strategies.quorum.driver import GradientSums

ROOM = 5


class Two(torch.nn.Module):
    """Two parameters, in one bucket if they have the same dtype."""

    def __init__(self, *dtypes):
        super().__init__()
        first, second = dtypes or (torch.float32, torch.float32)
        self.first = torch.nn.Parameter(torch.zeros(3, dtype=first))
        self.second = torch.nn.Parameter(torch.zeros(2, dtype=second))

    def has(self, first=None, second=None):
        """Set the gradients of the parameters."""
        for parameter, value in ((self.first, first), (self.second, second)):
            parameter.grad = None if value is None else torch.full_like(parameter, float(value))

    def gradients(self):
        found = []
        for parameter in (self.first, self.second):
            values = None if parameter.grad is None else set(parameter.grad.tolist())
            assert values is None or len(values) == 1
            found.append(None if values is None else values.pop())
        return tuple(found)


def sums_of(model, num_workers=4):
    flat = FlatModel(model, torch.optim.SGD(model.parameters(), lr=1.0), BufferPolicy.LOCAL, StatePolicy.LOCAL)
    return GradientSums(flat.buckets, ROOM, num_workers=num_workers)


def depart_with_arrays(sums):
    """The payload of a round, ready to be summed."""
    one = sums.depart()
    sums.arrays(one)
    return one


def deliver(model, sums, one):
    """The gradients in the model after the sum is applied."""
    model.has(-1, -1)
    sums.apply(one)
    return model.gradients()


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(1, 2), (4, None)], (5, 2)),  # the second parameter has only the late gradient
        ([(1, None), (4, 8)], (5, 8)),
        ([(1, None), (None, 8)], (1, 8)),
        ([(None, 2), (None, 8)], (None, 10)),
        ([(1, 2), (4, None), (16, None)], (21, 2)),
    ],
)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_late_gradient_stays_in_the_send_buffer(calls, expected, dtypes):
    model = Two(*dtypes)
    sums = sums_of(model)
    for number in range(3):  # the arrays are reused
        for gradients in calls:
            model.has(*gradients)
            sums.add(scaled=False)
        one = depart_with_arrays(sums)
        assert deliver(model, sums, one) == expected, f"round {number}"
        assert deliver(model, sums, depart_with_arrays(sums)) == (None, None), "no gradient was added since"
        sums.keep(number, one)
        sums.take([number])
        sums.retain(())
        sums.release([one])


def test_scaled_flag_covers_all_gradients_of_a_sum():
    model = Two()
    sums = sums_of(model)
    for order in ((True, False), (False, True)):
        for scaled in order:
            model.has(1, 1)
            sums.add(scaled=scaled)
        assert sums.depart().scaled, order
    for round_ in range(4):  # their arrays were used with a scaler before
        one = sums.depart()
        assert not one.scaled
        one.scaled = True
        sums.keep(round_, one)
        sums.retain(())


def test_round_sums_present_gradients_without_stale_values():
    models = Two(), Two()
    workers = [sums_of(model) for model in models]
    for number, gradients in enumerate([((1, 2), (4, 8)), ((1, None), (4, 8)), ((None, None), (None, 8))] * 3):
        brings = []
        for model, sums, own in zip(models, workers, gradients, strict=True):
            model.has(*own)
            sums.add(scaled=False)
            brings.append(depart_with_arrays(sums))
        total = [
            sum(values for values in column if values is not None) or None for column in zip(*gradients, strict=True)
        ]
        for array, other in zip(brings[0].arrays, brings[1].arrays, strict=True):
            array.add_(other)
        assert deliver(models[0], workers[0], brings[0]) == tuple(total)
        for sums, one in zip(workers, brings, strict=True):
            sums.keep(number, one)
            sums.retain(())


def test_sums_are_kept_by_round_and_reused_after_release():
    model = Two()
    sums = sums_of(model)
    kept = []
    for round_ in range(3):
        model.has(round_ + 1, None)
        sums.add(scaled=False)
        kept.append(depart_with_arrays(sums))
        sums.keep(round_, kept[-1])
    assert sums.take([2, 0]) == [kept[2], kept[0]]
    sums.retain([1])
    made = sums.made
    lent = [sums.depart(), sums.depart()]
    assert sums.made == made + 2, "neither applied nor waiting sums are reused"
    assert not any(one in kept for one in lent)
    sums.release([kept[2]])
    sums.depart()
    assert sums.depart() is kept[2]
    assert sums.made == made + 3
    sums.release([kept[0]])
    sums.clear()
    made = sums.made
    lent = [sums.depart() for _ in range(3)]
    assert {id(kept[0]), id(kept[1])} <= set(map(id, lent))
    assert sums.made == made + 1, "for the send buffer"


def test_retained_result_is_not_reused():
    """With `missed: latest` a call without a newer result takes the last one again."""
    model = Two()
    sums = sums_of(model)
    one = depart_with_arrays(sums)
    sums.keep(0, one)
    for _ in range(2):
        assert sums.take([0]) == [one]
        sums.retain([0])
        sums.release([one])
        for _ in range(2):
            assert sums.depart() is not one


def test_clear_discards_gradients_and_the_scaled_flag():
    model = Two()
    sums = sums_of(model)
    model.has(1, 2)
    sums.add(scaled=True)
    sums.clear()
    one = depart_with_arrays(sums)
    assert deliver(model, sums, one) == (None, None)
    assert not one.scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sum_is_divided_by_the_workers_for_any_number_of_gradients(dtype):
    """16-bit sums are divided before they are sent, so that they do not overflow."""
    model = Two(dtype, dtype)
    sums = sums_of(model, num_workers=8)
    for number in (1, 3, 8):
        model.has(number, number)
        sums.add(scaled=False)
    one = depart_with_arrays(sums)
    assert float(one.arrays[0][0]) == (12 if dtype is torch.float32 else 12 / 8)
    sums.arrived(one, scaled=False)
    assert deliver(model, sums, one) == (12 / 8, 12 / 8)
    assert not one.scaled
    empty = depart_with_arrays(sums)
    sums.arrived(empty, scaled=True)
    assert empty.scaled
    assert all(torch.isfinite(array).all() for array in empty.arrays)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)], ids=str)
def test_room_for_counts_is_separate_from_the_gradients(dtypes):
    model = Two(*dtypes)
    sums = sums_of(model, num_workers=1)
    model.has(1, 2)
    sums.add(scaled=False)
    one = depart_with_arrays(sums)
    room = sums.room(one)
    assert len(room) == ROOM
    assert room.dtype == torch.float32, "which represents counts exactly"
    room.fill_(7)
    assert deliver(model, sums, one) == (1, 2)
