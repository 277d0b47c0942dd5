"""Flat parameters, model checks, tags, recorder and handshake comparison, on one worker."""

import json
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from partreduce import Cluster, DistributedOptimizer, Schedule, merge_traces
from partreduce.errors import FileError, InputError, UnavailableError
from partreduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy, state_keys
from partreduce.runtime.guard.layout import Layout
from partreduce.runtime.guard.wrapping import check_model
from partreduce.runtime.liveness.handshake import compare
from partreduce.runtime.recorder import RING_LENGTH, Recorder
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.tags import sums_agree, tag_of
from partreduce.runtime.transport.worlds import check_budget, member_sets
from partreduce.strategies import AllReduce, GroupPhases, Phase, StaticGroups


def flat_of(model, optimizer=None, state="local"):
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    check_model(model, optimizer, {})
    return FlatModel(model, optimizer, BufferPolicy.AVERAGE, StatePolicy(state))


def layout_of(model, rank=0):
    """The layout check of a newly wrapped model."""
    flat = flat_of(model)
    return Layout(flat, rank, torch.optim.SGD([slot.parameter for slot in flat.slots()], lr=0.1))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_parameters_become_views_of_one_array_and_keep_their_values():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2).double())
    before = [p.detach().clone() for p in model.parameters()]
    flat = flat_of(model)
    assert [bucket.dtype for bucket in flat.buckets] == [torch.float32, torch.float64]
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert any(0 <= parameter.data_ptr() - bucket.flat.data_ptr() < bucket.flat.nbytes for bucket in flat.buckets)


def test_tied_weights_stay_tied_and_count_once():
    model = Tied()
    flat = flat_of(model)
    assert model.head.weight is model.embed.weight
    assert [slot.names for slot in flat.slots()] == [("embed.weight", "head.weight")]
    flat.buckets[0].flat.fill_(2.0)
    assert (model.head.weight == 2).all()


def test_channels_last_strides_survive():
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    stride = model.weight.stride()
    flat_of(model)
    assert model.weight.stride() == stride


def test_swap_exchanges_the_arrays_without_changing_shapes_or_ties():
    model = Tied()
    layout = layout_of(model)
    bucket = layout.flat.buckets[0]
    for value in (3.0, 4.0, 5.0):
        array = bucket.lend()
        array[: bucket.size].fill_(value)
        bucket.swap(array)
        assert (model.embed.weight == value).all()
        assert model.head.weight is model.embed.weight
        layout.check()


def test_layer_may_be_wrapped_in_a_container():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    layout = layout_of(model)
    model[1] = torch.nn.Sequential(torch.nn.Identity(), model[1])
    layout.check()
    model[1][1] = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"parameter '1\.weight' is not in the model"):
        layout.check()


def test_parameter_view_shares_memory_and_disjoint_columns_do_not():
    both = torch.arange(12.0).view(3, 4)
    model = torch.nn.ParameterList([both[:, :2], both[:, 2:]])
    flat_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(torch.cat(list(model), 1), both)
    model.register_buffer("view", model[1].data[1:])
    with pytest.raises(InputError, match="parameter '1' and buffer 'view' are two tensors in one memory"):
        flat_of(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), []),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), ["momentum_buffer"]),
        (lambda p: torch.optim.AdamW(p, lr=0.1), ["exp_avg", "exp_avg_sq"]),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5), ["momentum_buffer", "square_avg"]),
    ],
)
def test_state_keys_are_known_before_the_first_step(make, keys):
    model = torch.nn.Linear(2, 2)
    assert state_keys(make(model.parameters())) == keys


def test_tags_agree_only_with_equal_fields():
    tag = tag_of("average", 3, (0, 1))
    assert tag == tag_of("average", 3, (0, 1))
    assert all(1 <= number <= 256 for number in tag)
    for members in (2, 65_536):
        sums = torch.tensor(tag, dtype=torch.float32) * members
        assert bool(sums_agree(sums, tag, members))
    other = tag_of("average", 4, (0, 1))
    assert not bool(sums_agree(torch.tensor(tag) + torch.tensor(other), tag, 2))


def test_tags_of_many_operations_differ():
    tags = {tag_of("average", round_, (a, b)) for round_ in range(200) for a in range(6) for b in range(a + 1, 6)}
    assert len(tags) == 200 * 15


def test_recorder_keeps_the_last_operations_and_writes_a_trace(tmp_path):
    recorder = Recorder(3, tmp_path)
    for index in range(RING_LENGTH + 5):
        recorder.end(recorder.begin("average", index, index, (1, 3), 8))
    assert len(recorder.last()) == RING_LENGTH
    assert str(recorder.last()[-1]) == f"the average of round {RING_LENGTH + 4} in group {{1,3}}"
    dumped = json.loads(recorder.dump("why").read_text())
    assert dumped["reason"] == "why"
    assert len(dumped["operations"]) == RING_LENGTH
    recorder.write_trace()
    merged = json.loads(merge_traces(tmp_path).read_text())
    events = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert len(events) == RING_LENGTH + 5
    assert min(event["ts"] for event in events) == 0
    assert all(event["dur"] >= 0 and event["pid"] == 3 for event in events)


def test_merging_missing_or_malformed_traces_raises(tmp_path):
    with pytest.raises(FileError, match="holds no trace"):
        merge_traces(tmp_path)
    (tmp_path / "trace-00000.json").write_text("{")
    with pytest.raises(FileError, match="is not a trace"):
        merge_traces(tmp_path)


def test_compare_names_the_minority_rank_or_the_higher_on_a_tie():
    same = {"model": "a", "schedule": "s"}
    assert compare({0: same, 1: same}) is None
    field, odd, usual, text = compare({0: same | {"model": "b"}, 1: same, 2: same})
    assert (field, odd, usual) == ("model", 0, 1)
    assert text == "handshake: model differs: rank 0 has b; the others have a"
    assert compare({0: same, 1: same | {"schedule": "t"}})[1] == 1


def test_group_and_file_limits_raise():
    with pytest.raises(InputError, match="70 distinct groups"):
        check_budget("big", [(0, i) for i in range(1, 71)], 64)
    with pytest.raises(InputError, match="ulimit -n"):
        check_budget("huge", [tuple(range(10**7))], 64)


def test_groups_of_a_worker_cover_prologue_and_period():
    phases = (
        Phase.from_groups(4, [[0, 1], [2, 3]]),
        Phase.from_groups(4, [[1, 2]]),
        Phase.from_groups(4, [[0, 1], [2, 3]]),
    )
    schedule = Schedule("s", Cluster.regular(1, 4), StaticGroups(phases=GroupPhases(phases), prologue=2))
    assert member_sets(schedule, 0) == {(0, 1, 2, 3), (0, 1)}
    assert member_sets(schedule, 1) == {(0, 1, 2, 3), (0, 1), (1, 2)}


def test_missing_worker_is_named_after_the_timeout():
    model = torch.nn.Linear(2, 2)
    schedule = Schedule("s", Cluster.regular(1, 2), AllReduce(steps_per_round=2))
    store, limit = dist.HashStore(), timedelta(seconds=2)
    store.set_timeout(limit)
    world = GlooWorld(store, 0, 2, limit)
    with pytest.raises(UnavailableError, match=r"rank 1 of 2 did not arrive within 0\.3 s"):
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, timeout=0.3, world=world)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffers": "mean"}, "buffers: 'mean' is not one of average, local, broadcast"),
        ({"optimizer_state": "all"}, "optimizer_state: 'all' is not one of local, average"),
        ({"initial": "no"}, "initial: 'no' is not one of broadcast, keep"),
    ],
)
def test_bad_options_raise_before_any_communication(options, message):
    model = torch.nn.Linear(2, 2)
    schedule = Schedule("s", Cluster.regular(1, 2), AllReduce())
    with pytest.raises(InputError, match=message):
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule, **options)


@pytest.mark.parametrize("started", [{"RANK": "1"}, {"SLURM_NTASKS": "2"}])
def test_incomplete_launcher_environment_suggests_partreduce_run(monkeypatch, started):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    model = torch.nn.Linear(2, 2)
    schedule = Schedule("s", Cluster.regular(1, 2), AllReduce())
    with pytest.raises(InputError, match="partreduce run --workers N"):
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, schedule)
