"""Embedding tables on a simulated device: rows and indices are sent through the host, everything else stays."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

import partreduce
from helpers.device import table_cells
from helpers.device.cells import RANKS, run_cell, shows_by_delay
from helpers.device.ranks import Fault, SharedState, run_ranks
from helpers.device.table_cells import TABLE_CELLS, compare, prepare
from partreduce.errors import InputError, PeerFailedError
from partreduce.runtime.sharding import placement, table, tables
from partreduce.runtime.sharding.table import Part, Staging, Table
from partreduce.runtime.transport.streams import streams_of

pytestmark = [pytest.mark.filterwarnings("ignore:Sparse invariant checks"), pytest.mark.usefixtures("one_thread")]
BY_NAME = {cell.name: cell for cell in TABLE_CELLS}
LATE = 0.02
NO_WORLD = SimpleNamespace(next_instance=None)
"""Instead of a world, for errors that are raised before a world is used."""
SPARSE, AGGREGATED = BY_NAME["sharded, sparse SGD"], BY_NAME["sharded, Adam, aggregated, weighted bags, int8"]


@pytest.mark.parametrize("cell", TABLE_CELLS, ids=lambda cell: cell.name)
def test_late_device_changes_no_bit_of_rows_and_states(cell):
    place = ("fill", "commit", "sum", "step")[TABLE_CELLS.index(cell) % 4]
    assert compare(cell, "simulated", place=place, seconds=LATE) == 0


def test_missing_wait_for_copies_of_indices_is_detected(monkeypatch):
    monkeypatch.setattr(table, "await_mark", lambda _: None)
    assert shows_by_delay(compare, AGGREGATED, place="fill")


def test_missing_wait_for_row_gradients_is_detected(monkeypatch):
    def take_first(table):
        passed, table.pending = table.pending, []
        return Part(passed[0][0], passed[0][1].values) if passed else None

    monkeypatch.setattr(Table, "taken", take_first)
    assert shows_by_delay(compare, SPARSE, place="fill")


def test_rows_left_on_the_host_raise_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Staging, "to_device", lambda _staging, values, _device: values)
    with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        compare(SPARSE, "simulated")


def test_hanging_collective_is_detected_while_hosts_wait_for_rows():
    def act(cell, world, prepared):
        try:
            table_cells.train(cell, prepared, world.simulated_device.device, world)
        except PeerFailedError as error:
            return {"message": str(error)}
        return {"message": ""}

    fault = Fault("never complete", 1)
    results = run_cell(SPARSE, "simulated", fault=fault, timeout=1, prepare=prepare, action=act)
    assert all(
        "round 1" in result["message"] and "did not finish on the device" in result["message"] for result in results
    )


def test_checkpoints_and_state_dicts_restore_rows_on_a_device(tmp_path):
    def act(cell, world, prepared):
        model, optimizer = table_cells.wrap_model(cell, prepared[0], world.simulated_device.device, world)
        inner, tables = optimizer.optimizer, [model.words.weight, model.bag.weight]
        words, bags, targets = prepared[1][0]
        torch.nn.functional.mse_loss(model(words, bags), targets).backward()
        optimizer.step()
        partreduce.save_checkpoint(optimizer, tmp_path / "checkpoint")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        world.simulated_device.settle()  # torch.save does this itself for a real device
        if world.rank == 0:
            torch.save(state, tmp_path / "state.pt")
        model.state_dict()  # a barrier: the other workers find the file

        def load_state_dicts():
            with ThreadPoolExecutor(1) as host:  # the simulated device does not support files
                loaded = host.submit(torch.load, tmp_path / "state.pt", weights_only=True, mmap=True).result()
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])

        live = [*tables, *(inner.state[table]["exp_avg"] for table in tables)]
        saved, same = [array.detach().clone() for array in live], []
        for load in (
            load_state_dicts,
            lambda: partreduce.load_checkpoint(optimizer, tmp_path / "checkpoint"),
            lambda: partreduce.load_checkpoint(optimizer, tmp_path / "checkpoint", allow_different_run=True),
        ):
            with torch.no_grad():
                for array in live:
                    array.zero_()
            load()
            live[2:] = [inner.state[table]["exp_avg"] for table in tables]
            same.append([torch.equal(a, b) and bool(a.any()) for a, b in zip(live, saved, strict=True)])
        return {"same": same}

    results = run_cell(AGGREGATED, "simulated", place="fill", seconds=LATE / 4, prepare=prepare, action=act)
    assert [result["same"] for result in results] == [[[True] * 4] * 3] * RANKS


class ToDevice(torch.autograd.Function):
    """`.to(device)` between two memories, which are both on the CPU here."""

    @staticmethod
    def forward(ctx, rows, world):
        ctx.world = world
        return world.streams(rows.device).stage(rows, rows.device)

    @staticmethod
    def backward(ctx, gradient):
        return Staging(ctx.world.streams).to_host(gradient), None


def test_table_on_the_host_trains_with_dense_parameters_on_a_device(monkeypatch):
    cell = table_cells.TableCell("mixed", clip=0.02)
    monkeypatch.setattr(tables, "Staging", lambda _streams: Staging(streams_of))  # the device of the tables is the host

    def train(world):
        device, (model, batches) = world.simulated_device, prepared[world.rank]
        is_ahead = world.streams(device.device).runs_ahead
        if is_ahead:
            device.note_host([model.words.weight, model.bag.weight, [batch[:2] for batch in batches]])
        model, optimizer = table_cells.wrap_model(cell, model, device.device, world)
        for words, bags, targets in batches:
            optimizer.zero_grad()
            pooled = model.bag(bags.view(-1), torch.arange(0, bags.numel(), bags.shape[1]))
            both = torch.cat([model.words(words).sum(1), pooled], dim=1)
            outputs = model.last(ToDevice.apply(both, world) if is_ahead else both)
            torch.nn.functional.mse_loss(outputs.squeeze(1), targets).backward()
            partreduce.clip_grad_norm_(model.parameters(), cell.clip)
            optimizer.step()
        optimizer.finish()
        device.settle()
        values = [parameter.detach().clone() for parameter in model.parameters()]
        device.settle()
        return values

    ended = []
    for kind in ("plain", "simulated"):
        prepared = [prepare(cell, rank) for rank in range(RANKS)]
        ended.append(run_ranks(kind, RANKS, train, SharedState()))
    for mine, theirs in zip(*ended, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)), (mine, theirs)


def test_table_on_an_unsupported_device_is_rejected(monkeypatch):
    monkeypatch.setattr(placement, "DEVICES", ("cuda",))
    model = prepare(SPARSE, 0)[0]
    with pytest.raises(
        InputError, match=r"parameter 'words.weight': lies on cpu; rows of tables travel from the CPU and"
    ):
        partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, SPARSE.schedule, world=NO_WORLD)


def test_indices_on_another_device_are_reported_by_all_workers(ranks):
    cell = table_cells.TableCell("indices elsewhere")

    def act(world):
        model, batches = prepare(cell, world.rank)
        model, _ = table_cells.wrap_model(cell, model, torch.device("cpu"), world)
        words = batches[0][0].to("meta" if world.rank == 2 else "cpu")
        model.words(words)

    results = ranks.run(4, act, catch=InputError)
    line = "lies on cpu and is looked up with indices on meta; look up with indices.to('cpu')"
    assert {str(error) for error in results} == {f"worker 2: parameter 'words.weight': {line}"}
