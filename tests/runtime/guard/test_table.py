"""Every check of the table detects its misuse, in the first step and in the eleventh."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from docs.make_errors import TARGET, page
from helpers.training import one_at_a_time, wrap
from partreduce import Cluster, PartreduceError, Schedule
from partreduce import strategies as st
from partreduce.errors import InputError
from partreduce.runtime.data.sampler import pop_fingerprint, record_fingerprint
from partreduce.runtime.environment import CHECK, RESTART_COUNT
from partreduce.runtime.guard.layout import Layout
from partreduce.runtime.guard.table import FIRST_STEPS, TABLE, When

N = 2
EVERY_2, LATE = st.AllReduce(steps_per_round=2), st.AllReduce(steps_per_round=2, sync=st.DelayedAveraging())
TABLE_OF_ROWS = st.TablePlacement(parameter="0.weight", rows=20, columns=3, way=st.Placement.GATHER)
TABLES = st.AllReduce(payload=st.Payload(tables=(TABLE_OF_ROWS,)))
ROWS = {row.name: row for row in TABLE}
IN_STEPS = [name for name, row in ROWS.items() if any(moment.is_in_step for moment in row.moments)]
PERMANENT = [name for name in IN_STEPS if ROWS[name].when is When.ALWAYS]
ELSEWHERE = {"rank of a sharded model alone": "processes/test_sharded_models.py"}
"""Checks that need several processes for each worker, and the file that tests them."""
BY_SUGGESTED_FIXES = {
    "uninitialized parameter", "parameter on the meta device", "sparse parameter", "parameter of another dtype",
    "two tensors in one memory", "optimizer of another model", "state of a new group", "loaded in mean model",
    "added parameter not wrapped", "live model used", "models begin apart", "skip where means are changed",
    "backward after average gradients", "plain optimizer stepped",
}  # fmt: skip
"""Each check has a script in `test_suggested_fixes.py` that raises its error and then follows the suggested fix."""
CASES = {}


def case(script):
    CASES[script.__name__.replace("_", " ")] = script
    return script


class Script:
    """One worker's script: `begin` wraps a model and takes `ordinary` steps before the misuse."""

    def __init__(self, world, ordinary):
        self.world, self.ordinary = world, ordinary

    def wrap(self, model, strategy=None, inner=None, n=N, **options):
        inner = inner or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        schedule = Schedule("misuse", Cluster.regular(1, n), strategy or EVERY_2)
        return wrap(self.world, model, schedule, inner, **options)

    def begin(self, strategy=None, model=None, **options):
        self.model = network() if model is None else model
        self.optimizer = self.wrap(self.model, strategy, **options)
        for _ in range(self.ordinary):
            self.step()
        return self.model, self.optimizer

    def step(self, before=None):
        self.optimizer.zero_grad()
        indices = isinstance(self.model[0], torch.nn.EmbeddingBag)
        inputs = torch.arange(12).view(4, 3) if indices else torch.full((4, 3), 1.0 + self.world.rank)
        self.model(inputs).square().mean().backward()
        if before is not None:
            before()
        self.optimizer.step()


def network(first=None):
    return torch.nn.Sequential(first or torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))


def with_table():
    return network(torch.nn.EmbeddingBag(20, 3))


# At wrapping.


@case
def wrapped_twice(s):
    s.wrap(network(), inner=s.begin()[1])


@case
def optimizer_that_communicates(s):
    model = network()
    s.wrap(model, inner=type("OnebitAdam", (torch.optim.SGD,), {})(model.parameters(), lr=0.1))


@case
def model_in_distributed_data_parallel(s):
    s.wrap(DistributedDataParallel(network()))


@case
def model_in_fully_sharded_data_parallel(s):
    s.wrap(
        FullyShardedDataParallel(
            network(), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True
        )
    )


@case
def model_on_several_devices(s):
    model = network()
    model.register_buffer("elsewhere", torch.zeros(1, device="meta"))
    s.wrap(model)


@case
def nothing_to_train(s):
    model = network().requires_grad_(requires_grad=False)
    s.wrap(model, inner=torch.optim.SGD(model.parameters(), lr=0.1))


@case
def schedule_for_other_workers(s):
    s.wrap(network(), n=3)


@case
def rounds_of_several_optimizers(s):
    first = s.wrap(network(), st.AllReduce(steps_per_round=(1, 2)))
    s.wrap(network(), st.AllReduce(steps_per_round=(2, 1)))
    assert first


# In a step.


@case
def parameter_replaced(s):
    s.begin()[0][1].bias = torch.nn.Parameter(torch.zeros(1))
    s.step()


@case
def storage_moved(s):
    model, _ = s.begin()
    model[1].bias.data = torch.zeros(1)
    s.step()


@case
def buffer_changed(s):
    model = network()
    model.register_buffer("seen", torch.zeros(2, dtype=torch.int32))
    s.begin(model=model)
    model.seen = torch.zeros(3, dtype=torch.int32)
    s.step()


@case
def layer_replaced(s):
    s.begin()[0][1] = torch.nn.Linear(3, 1)
    s.step()


@case
def parameter_unfrozen(s):
    model = network()
    model[0].bias.requires_grad_(requires_grad=False)
    s.begin(model=model)
    model[0].bias.requires_grad_(requires_grad=True)
    s.step()


@case
def parameter_given_to_the_optimizer(s):
    _, optimizer = s.begin()
    stranger = torch.nn.Parameter(torch.zeros(2))
    optimizer.param_groups = [*optimizer.param_groups, {**optimizer.param_groups[0], "params": [stranger]}]
    s.step()


@case
def embedding_changed(s):
    model, _ = s.begin(TABLES, with_table())
    model[0].forward = lambda inputs: torch.nn.functional.embedding_bag(inputs, model[0].weight)
    s.optimizer.step()


@case
def model_inside_distributed_data_parallel(s):
    model, optimizer = s.begin()
    with one_at_a_time:  # torch notes for the whole process which wrapper's forward pass is running
        DistributedDataParallel(model)(torch.ones(4, 3)).sum().backward()
    optimizer.step()


@case
def started_again_without_loading(s):
    s.begin()
    s.step()


@case
def model_loaded_alone(s):
    model, _ = s.begin(LATE)
    for _ in range(3):
        s.step()
    with warnings.catch_warnings(action="ignore"):
        model.load_state_dict(model.state_dict())
    s.step()


@case
def gradients_clipped_before_averaging(s):
    model, _ = s.begin(st.AllReduce())
    s.step(before=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3))


@case
def means_changed_by_join_alone(s):
    _, optimizer = s.begin(st.AllReduce())
    with optimizer.join(after_averaging=lambda: None):
        s.step()


# A step that is skipped or scaled.


@case
def skip_with_tables(s):
    s.begin(TABLES, with_table())[1].skip()


@case
def scaler_with_tables(s):
    model, optimizer = s.begin(TABLES, with_table())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.arange(12).view(4, 3)).sum()).backward()
    scaler.step(optimizer)


@case
def skip_after_average_gradients(s):
    _, optimizer = s.begin(st.AllReduce())
    s.step(before=lambda: (optimizer.average_gradients(), optimizer.skip()))


@case
def gradients_sent_with_a_scale(s):
    model, optimizer = s.begin(st.AllReduce(sync=st.Pipeline()))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(4, 3)).sum()).backward()
    optimizer.average_gradients()
    scaler.step(optimizer)


# Around an average.


def compare_by_process(s):
    """Compare data between workers, as in runs whose workers are processes."""
    s.optimizer.engine.guard.compares_data(s.world.store, f"{id(s.world.store)} {s.ordinary}", N)


@case
def data_in_different_orders(s):
    s.begin()
    compare_by_process(s)
    with one_at_a_time:  # the fingerprint is global to the process
        pop_fingerprint()
        record_fingerprint([s.world.rank, 2, 3])
        s.optimizer.engine.guard.compare_first(gradients=True)


@case
def same_batches(s):
    model, optimizer = s.begin(model=torch.nn.Sequential(torch.nn.Linear(3, 8)))
    compare_by_process(s)
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()


# Other optimizers.


@case
def another_optimizer_first(s):
    model = network()
    other = torch.optim.SGD(model[1].parameters(), lr=0.1)
    inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
    s.ordinary = 0
    s.begin(st.Server(hosts=(0,), synchronous=False), model, inner=inner)
    s.step(before=other.step)


@case
def another_optimizer_with_own_gradients(s):
    model = network()
    other = torch.optim.SGD(model[1].parameters(), lr=0.1)
    s.begin(st.AllReduce(), model, inner=torch.optim.SGD(model[0].parameters(), lr=0.1))
    s.step(before=other.step)


# Where all workers synchronize.


@case
def frozen_changed(s):
    model = network()
    model[0].bias.requires_grad_(requires_grad=False)
    _, optimizer = s.begin(model=model)
    s.step()
    with torch.no_grad():
        model[0].bias += 1
    with optimizer.mean_model():
        pass


@case
def models_that_part(s):
    model, optimizer = s.begin(st.AllReduce())
    with torch.no_grad():
        model[0].weight += s.world.rank
    with optimizer.mean_model():
        pass


def messages_of(ranks, name, ordinary):
    """Return the errors and warnings of all workers."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        results = ranks.run(N, lambda world: CASES[name](Script(world, ordinary)), catch=PartreduceError)
    assert all(result is None or isinstance(result, InputError) for result in results), results
    return [str(one) for one in results if one is not None] + [str(one.message) for one in caught]


def pattern_of(row):
    """Return the pattern of the row's message, with wildcards for its fields."""
    return re.compile(".*".join(map(re.escape, re.split(r"\{[^}]*\}", row.message))))


def is_reported(name, messages):
    return any(pattern_of(ROWS[name]).search(text) for text in messages)


def test_every_row_has_a_case():
    assert set(CASES) | set(ELSEWHERE) | BY_SUGGESTED_FIXES == set(ROWS)
    folder = Path(__file__).parents[1]
    for name, file in ELSEWHERE.items():
        text = (folder / file).read_text()
        assert pattern_of(ROWS[name]).pattern.split(".*")[1].split(",")[0].replace("\\", "") in text
    fixes = re.findall(r'@fix\("(.*)"\)', (folder / "test_suggested_fixes.py").read_text())
    assert all(any(fix in ROWS[name].message for fix in fixes) for name in BY_SUGGESTED_FIXES)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", CASES)
def test_check_reports_its_message_from_the_first_step(ranks, monkeypatch, name):
    if name == "started again without loading":
        monkeypatch.setenv(RESTART_COUNT, "1")
    assert is_reported(name, messages_of(ranks, name, 0))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("name", sorted(set(IN_STEPS) - {"started again without loading"}))
def test_misuse_in_the_eleventh_step_is_detected_by_permanent_checks(ranks, monkeypatch, name, always):
    if always:
        monkeypatch.setenv(CHECK, "always")
    assert is_reported(name, messages_of(ranks, name, 10)) == (always or name in PERMANENT)


@pytest.mark.parametrize("always", [False, True])
def test_later_steps_run_permanent_checks_or_all_if_configured(ranks, monkeypatch, always):
    counted, looked = set(), {}
    if always:
        monkeypatch.setenv(CHECK, "always")
    for row in TABLE:

        def look(facts, *more, name=row.name, original=row.look):
            if isinstance(facts, Layout) and facts.rank == 0:
                counted.add(name)
            return original(facts, *more)

        monkeypatch.setattr(row, "look", look)

    def act(world):
        s = Script(world, 0)
        s.begin(st.AllReduce())
        for step in range(1, 12):
            s.step()
            if world.rank == 0:
                looked[step] = counted & set(IN_STEPS)
                counted.clear()
        s.optimizer.finish()

    ranks.run(N, act)
    assert all(looked[step] == set(IN_STEPS) for step in range(1, FIRST_STEPS + 1))
    assert all(looked[step] == set(IN_STEPS if always else PERMANENT) for step in range(FIRST_STEPS + 1, 12))


def test_permanent_checks_with_a_cost_have_a_reason():
    for name in PERMANENT:
        assert ROWS[name].why or ROWS[name].cost == "none", name


def test_unknown_check_setting_is_rejected(ranks, monkeypatch):
    monkeypatch.setenv(CHECK, "sometimes")
    errors = ranks.run(N, lambda world: Script(world, 0).begin(), catch=InputError)
    assert {str(error) for error in errors} == {
        "PARTREDUCE_CHECK: expected 'always', got 'sometimes'; set it to that, or unset it"
    }


def test_generated_page_matches_the_table():
    assert TARGET.read_text(encoding="utf-8") == page()
