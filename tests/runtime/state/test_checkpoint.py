"""Checkpoints: bit-for-bit continuation after a kill, rejections, damage, and another number of workers."""

import contextlib
import hashlib
import json
import re
import signal

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import wrap
from partreduce import Cluster, Schedule, load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import DocumentError, FileError, InputError
from partreduce.runtime import checkpoint
from partreduce.runtime.state.checkpoint_directory import MANIFEST, read_manifest
from partreduce.topo.phase import Group

SCENARIOS = "helpers.resume_worker"


@pytest.mark.processes
@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    ("kind", "adam", "kill_at"),
    [
        ("static", False, 4), ("allreduce", True, 5), ("overlap", True, 6), ("steps_per_round", False, 8),
        ("coded", False, 9), ("coded overlap", True, 10),
    ],
)  # fmt: skip
def test_a_killed_run_resumes_bit_for_bit(driver, tmp_path, kind, adam, kill_at):
    """Parameters, momentum, BatchNorm, dropout's random numbers and the learning rate all continue."""

    def train(**facts):
        answer = driver.run("training", environment={"REQUEST": json.dumps(common | facts)})
        return answer["code"], {report["rank"]: report for report in answer["reports"]}, answer["output"]

    common = {"kind": kind, "adam": adam, "rounds": 11, "directory": str(tmp_path)}
    code, whole, output = train(resume=False, save=False)
    assert (code, sorted(whole)) == (0, [0, 1, 2]), output
    code, _, _ = train(resume=False, save=True, victim=2, kill_at=kill_at)
    assert code == 128 + signal.SIGKILL, "the fault fired"
    code, resumed, output = train(resume=True, save=True)
    assert code == 0, output
    for rank, one in whole.items():
        assert resumed[rank]["begun"] == kill_at // 3 * 3 * (2 if kind == "steps_per_round" and rank == 1 else 1)
        assert resumed[rank]["weights"] == one["weights"]


def everyone(n, **options):
    return Schedule("everyone", Cluster.regular(1, n), st.AllReduce(**options))


def make(world, plan, value=None, *, width=4):
    model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width))
    inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    optimizer = wrap(world, model, plan, inner, initial="keep")
    with torch.no_grad():
        for tensor in [*model.parameters(), model[1].running_mean]:
            tensor.fill_(float(world.rank if value is None else value))
    return model, optimizer


def values(model):
    return [float(p.detach().mean()) for p in model.parameters()] + [float(model[1].running_mean.mean())]


def train(model, optimizer, steps):
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def test_missing_checkpoint_loads_as_none_and_the_last_two_are_kept(ranks, tmp_path):
    def work(world):
        model, optimizer = make(world, everyone(2), 0)
        assert load_checkpoint(optimizer, tmp_path / "nothing") is None
        for _ in range(4):
            train(model, optimizer, 2)
            save_checkpoint(optimizer, tmp_path)
        return optimizer.round

    assert ranks.run(2, work) == [8, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000006", "round-00000008"]


def save_run(ranks, tmp_path, n=3, plan=None, rounds=(2, 4)):
    def work(world):
        model, optimizer = make(world, plan or everyone(n, steps_per_round=1, sync=st.DelayedAveraging()))
        for round_ in rounds:
            train(model, optimizer, round_ - optimizer.round)
            save_checkpoint(optimizer, tmp_path, extra={"epoch": round_, "rank": world.rank})
        return values(model)

    return ranks.run(n, work)


def test_load_restores_the_saved_state_and_extra(ranks, tmp_path):
    before = save_run(ranks, tmp_path)

    def work(world):
        model, optimizer = make(world, everyone(3, sync=st.DelayedAveraging()), 77.0)
        resumed = load_checkpoint(optimizer, tmp_path)
        return values(model), resumed.extra, optimizer.steps, optimizer.round

    for rank, (restored, extra, steps, round_) in enumerate(ranks.run(3, work)):
        assert restored == before[rank]
        assert extra == {"epoch": 4, "rank": rank}
        assert (steps, round_) == (4, 4)


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", True), ("round", -1), ("number", 0), ("num_workers", 0), ("workers", [{"steps": -1}])],
)
def test_manifest_with_impossible_numbers_raises(tmp_path, key, value):
    """A run once resumed from round -1."""
    entry = {"sha256": "0" * 64, "steps": 3}
    facts = {"format": "partreduce.checkpoint", "version": 1, "num_workers": 1, "round": 3, "number": 1, "lineage": "a"}
    facts |= {"schedule": "s", "schedule_sha256": "1", "model_sha256": "2", "workers": [entry]}
    (tmp_path / MANIFEST).write_text(json.dumps(facts))
    assert read_manifest(tmp_path) == facts
    changed = [entry | value[0]] if key == "workers" else value
    (tmp_path / MANIFEST).write_text(json.dumps(facts | {key: changed}))
    with pytest.raises(DocumentError, match="is not what save_checkpoint writes"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("damage", ["flipped byte", "missing file", "no manifest", "bad manifest", "cut file"])
def test_damaged_newest_checkpoint_is_skipped_by_all_workers(ranks, tmp_path, damage):
    save_run(ranks, tmp_path)
    newest = tmp_path / "round-00000004"
    victim = newest / "worker-00001.safetensors"
    if damage == "flipped byte":
        data = bytearray(victim.read_bytes())
        data[-3] ^= 1
        victim.write_bytes(data)
    elif damage == "cut file":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif damage == "missing file":
        victim.unlink()
    elif damage == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text('{"format": "partreduce.checkpoint", "format": 1}')

    def work(world):
        _, optimizer = make(world, everyone(3, sync=st.DelayedAveraging()))
        return load_checkpoint(optimizer, tmp_path).round

    warning = pytest.warns(RuntimeWarning, match=r"round-00000004.* resumed from round-00000002 instead")
    with contextlib.nullcontext() if damage == "no manifest" else warning:  # without a manifest it is unfinished
        assert ranks.run(3, work) == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "width", "words"),
    [
        ({"steps_per_round": 2}, 4, r"was saved under schedule 'everyone' \(sha256 .*allow_different_run=True"),
        ({"sync": st.DelayedAveraging()}, 5, "another model"),
    ],
)
def test_checkpoint_of_another_schedule_or_model_is_rejected(ranks, tmp_path, options, width, words):
    save_run(ranks, tmp_path)

    def work(world):
        _, optimizer = make(world, everyone(3, **options), width=width)
        load_checkpoint(optimizer, tmp_path)

    assert all(re.search(words, str(error)) for error in ranks.run(3, work, catch=InputError))


@pytest.mark.parametrize("n", [2, 5])
def test_another_number_of_workers_starts_from_the_mean_model(ranks, tmp_path, n):
    before = save_run(ranks, tmp_path)
    mean = [sum(column) / 3 for column in zip(*before, strict=True)]

    def check_load(world):
        _, optimizer = make(world, everyone(n))
        load_checkpoint(optimizer, tmp_path)

    assert all("3 workers and this run has" in str(error) for error in ranks.run(n, check_load, catch=InputError))

    def work(world):
        model, optimizer = make(world, everyone(n))
        resumed = load_checkpoint(optimizer, tmp_path, allow_different_run=True)
        restored = values(model)
        train(model, optimizer, 2)
        return restored, resumed.num_workers, resumed.round, optimizer.steps

    for restored, old_size, old_round, steps in ranks.run(n, work):
        assert restored == pytest.approx(mean)
        assert (old_size, old_round, steps) == (3, 4, 2)


@on_ranks(2)
def test_save_inside_a_round_names_the_next_step_that_can_be_saved(world, tmp_path):
    model, optimizer = make(world, st.Pairwise(active=(0,), steps_per_round=3))
    train(model, optimizer, 4)
    with pytest.raises(InputError, match=r"step 4 lies inside a round of 3 .*steps % 3 == 0, next at step 6"):
        save_checkpoint(optimizer, tmp_path)
    train(model, optimizer, 2)
    assert save_checkpoint(optimizer, tmp_path).name == "round-00000002"


def test_failed_write_names_the_worker_and_the_run_continues(ranks, tmp_path, monkeypatch):
    write = checkpoint.write_file

    def full(path, data):
        if "worker-00001" in str(path):
            raise FileError(f"{path}: cannot be written: No space left on device")
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_file", full)

    def work(world):
        model, optimizer = make(world, everyone(2), 0)
        train(model, optimizer, 1)
        with pytest.raises(FileError, match=r"round 1: worker 1: .* No space left on device"):
            save_checkpoint(optimizer, tmp_path)
        train(model, optimizer, 1)
        return load_checkpoint(optimizer, tmp_path)

    assert ranks.run(2, work) == [None, None]


def test_failed_write_of_a_manifest_is_raised_on_all_workers(ranks, tmp_path, monkeypatch):
    write, done = checkpoint.write_file, []

    def full(path, data):
        if path.name == MANIFEST:
            done.append(path)
            if len(done) == 1:
                raise FileError(f"{path}: cannot be written: No space left on device")
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_file", full)

    def work(world):
        model, optimizer = make(world, everyone(2), 0)
        train(model, optimizer, 1)
        with pytest.raises(FileError, match=r"round 1: worker \d: .* No space left on device"):
            save_checkpoint(optimizer, tmp_path)
        train(model, optimizer, 1)
        return save_checkpoint(optimizer, tmp_path).name

    assert ranks.run(2, work) == ["round-00000002"] * 2


def test_an_old_checkpoint_is_found_though_one_worker_lost_its_three_newest(ranks, tmp_path):
    """Each worker once reported its three newest intact ones, of which none was common."""

    def save(world):
        model, optimizer = make(world, everyone(2), 0)
        for _ in range(4):
            train(model, optimizer, 1)
            save_checkpoint(optimizer, tmp_path, keep=4)

    ranks.run(2, save)
    for round_ in (2, 3, 4):
        (tmp_path / f"round-{round_:08d}" / "worker-00001.safetensors").write_bytes(b"damaged")

    def load(world):
        return load_checkpoint(make(world, everyone(2), 0)[1], tmp_path).round

    with pytest.warns(RuntimeWarning, match="resumed from round-00000001 instead"):
        assert ranks.run(2, load) == [1, 1]


@pytest.mark.parametrize("stop", range(5))
def test_crash_at_any_write_keeps_the_previous_checkpoint(ranks, tmp_path, monkeypatch, stop):
    """The first `stop` writes succeed, and all later ones raise, as in a crash."""
    save_run(ranks, tmp_path, rounds=(2,))
    write, count = checkpoint.write_file, [0]

    class CrashError(Exception):
        pass

    def crashing(path, data):
        count[0] += 1
        if count[0] > stop:
            raise CrashError
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_file", crashing)
    ranks.fresh()

    def work(world):
        model, optimizer = make(world, everyone(3, sync=st.DelayedAveraging()))
        load_checkpoint(optimizer, tmp_path)
        train(model, optimizer, 2)
        try:
            save_checkpoint(optimizer, tmp_path)
        except CrashError:
            optimizer.run.reducer.heartbeat.note("left", "crashed")
            raise

    failed = ranks.run(3, work, catch=Exception)
    assert any(isinstance(error, CrashError) for error in failed), "the fault fired"
    monkeypatch.setattr(checkpoint, "write_file", write)

    def again(world):
        _, optimizer = make(world, everyone(3, sync=st.DelayedAveraging()))
        return load_checkpoint(optimizer, tmp_path).round

    answers = set(ranks.run(3, again))
    assert len(answers) == 1
    assert answers <= ({2} if stop < 3 else {2, 4})


@pytest.mark.parametrize(
    "strategy", [st.Pairwise(active=(0, 2)), st.Server(hosts=(1, 2), synchronous=False), st.Server(hosts=(0,))]
)
def test_timing_dependent_strategies_lose_and_double_nothing(ranks, tmp_path, strategy):
    """Before and after a resume the mean model has every update once, with plain SGD and constant gradients."""
    plan = Schedule("asynchronous", Cluster.regular(1, 3), strategy)
    scale = 3 if isinstance(strategy, st.Server) and not strategy.synchronous else 1

    def work(world):
        model = torch.nn.Linear(2, 1, bias=False).double()
        optimizer = wrap(world, model, plan, lr=1.0, initial="keep")
        with torch.no_grad():
            model.weight.zero_()
        resumed = load_checkpoint(optimizer, tmp_path)
        train(model, optimizer, 6)
        if resumed is None:
            save_checkpoint(optimizer, tmp_path)
            train(model, optimizer, 3)  # lost in the crash that follows
            optimizer.run.reducer.agree("end", 0, Group((0, 1, 2)))
            optimizer.runner.close()
            return None
        optimizer.finish()
        return model.weight.detach().reshape(-1).tolist()

    ranks.run(3, work)
    assert ranks.run(3, work) == [[-12.0 * scale] * 2] * 3


def test_files_hold_no_pickle_and_the_manifest_names_their_hash(ranks, tmp_path):
    save_run(ranks, tmp_path, rounds=(2,))
    folder = tmp_path / "round-00000002"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["num_workers"] == 3
    for rank, entry in enumerate(manifest["workers"]):
        data = (folder / f"worker-{rank:05d}.safetensors").read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["model/0.weight"]["shape"] == [4, 3]
