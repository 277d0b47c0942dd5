"""The checkpoints that a run deletes, and its errors for checkpoints that it cannot load."""

import json
import shutil

import pytest
import torch

from helpers.training import wrap
from partreduce import Cluster, Schedule, load_checkpoint, save_checkpoint
from partreduce.errors import FileError, InputError
from partreduce.strategies import AllReduce

PLAN = Schedule("everyone", Cluster.regular(1, 2), AllReduce())


def optimizer_of(world):
    model = torch.nn.Linear(2, 1)
    return wrap(world, model, PLAN, lr=0.5)


def train(optimizer, steps):
    for _ in range(steps):
        for parameter in optimizer.run.flat.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def run(ranks, directory, *saves, load=False, keep=2):
    """A run that saves after these rounds; returns the written folders and the folder from which it resumed."""

    def work(world):
        optimizer = optimizer_of(world)
        resumed = load_checkpoint(optimizer, directory) if load else None
        written = []
        for round_ in saves:
            train(optimizer, round_ - optimizer.round)
            written.append(save_checkpoint(optimizer, directory, keep=keep))
        return [folder.name for folder in written], None if resumed is None else resumed.folder.name

    first, second = ranks.run(2, work)
    assert first == second
    return first


def load_error(ranks, directory, kind):
    ranks.fresh()

    def work(world):
        load_checkpoint(optimizer_of(world), directory)

    (text,) = {str(error) for error in ranks.run(2, work, catch=kind)}
    assert "\n" not in text
    return text


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_fresh_run_keeps_its_newest_checkpoints_and_those_of_the_last_run(ranks, tmp_path):
    """Its rounds are lower than those of the run before, whose checkpoints it must not delete."""
    run(ranks, tmp_path, 10, 20)
    written, _ = run(ranks, tmp_path, 2, 4, 6)
    assert written == ["round-00000002", "round-00000004", "round-00000006"]
    assert names(tmp_path) == ["round-00000004", "round-00000006", "round-00000010", "round-00000020"]
    assert run(ranks, tmp_path, load=True)[1] == "round-00000006", "the newest is the last written"


def test_checkpoint_of_another_run_at_the_same_round_is_kept(ranks, tmp_path):
    run(ranks, tmp_path, 2, 4)
    before = {path.name: (path / "manifest.json").read_bytes() for path in tmp_path.iterdir()}
    written, _ = run(ranks, tmp_path, 2, 4, 6)
    assert written == ["round-00000002-3", "round-00000004-4", "round-00000006"]
    assert names(tmp_path) == ["round-00000002", "round-00000004", "round-00000004-4", "round-00000006"]
    assert all((tmp_path / name / "manifest.json").read_bytes() == data for name, data in before.items())


def test_resumed_run_continues_the_lineage_of_its_checkpoint(ranks, tmp_path):
    run(ranks, tmp_path, 2, 4)
    written, resumed = run(ranks, tmp_path, 6, 8, load=True)
    assert resumed == "round-00000004"
    assert names(tmp_path) == written == ["round-00000006", "round-00000008"]


def test_rollback_saves_its_rounds_again_and_resumes_from_them(ranks, tmp_path):
    run(ranks, tmp_path, 2, 4)
    shutil.copytree(tmp_path / "round-00000002", tmp_path / "kept")
    shutil.rmtree(tmp_path / "round-00000004")
    run(ranks, tmp_path, 4, 6, load=True)
    shutil.copytree(tmp_path / "kept", tmp_path / "round-00000002")
    assert run(ranks, tmp_path, load=True)[1] == "round-00000006"
    assert "kept" in names(tmp_path), "only folders named as checkpoints are removed"


def test_unfinished_checkpoint_is_removed_with_the_old_ones(ranks, tmp_path):
    run(ranks, tmp_path, 2, 4)
    (tmp_path / "round-00000004" / "manifest.json").unlink()
    foreign = tmp_path / "round-00000003"
    foreign.mkdir()
    (foreign / "worker-00000.safetensors").write_bytes(b"foreign data")
    run(ranks, tmp_path, 5, 6, load=True)
    assert names(tmp_path) == ["round-00000003", "round-00000005", "round-00000006"]


@pytest.mark.parametrize(
    ("rounds", "version", "words"),
    [
        ((2, 4), 3, ("/round-00000004/manifest.json: version: is 3, newer than 2", "to resume from round-00000002")),
        ((4,), 3, ("upgrade partreduce, or move it away to start afresh",)),
        ((4,), 1, ("was saved by an earlier partreduce", "pass allow_different_run=True")),
    ],
    ids=["newer", "only newer", "older"],
)
def test_other_format_version_raises_instead_of_starting_fresh(ranks, tmp_path, rounds, version, words):
    """The error for a newer format names an older checkpoint that could be used."""
    run(ranks, tmp_path, *rounds)
    path = tmp_path / "round-00000004" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    text = load_error(ranks, tmp_path, InputError)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("damage", ["file", "manifest", "unreadable", "one worker lacks it"])
def test_unreadable_checkpoint_raises_instead_of_starting_fresh(ranks, tmp_path, damage):
    run(ranks, tmp_path, 4)
    folder = tmp_path / "round-00000004"
    victim = folder / "worker-00001.safetensors"
    if damage == "file":
        victim.write_bytes(b"short")
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        victim.unlink()
        if damage == "unreadable":
            victim.mkdir()
    text = load_error(ranks, tmp_path, FileError)
    assert str(folder) in text
    assert "no older one can be used instead" in text


def test_unreadable_directory_raises_instead_of_starting_fresh(ranks, tmp_path):
    place = tmp_path / "checkpoints"
    place.write_text("a file")
    assert "checkpoints: cannot be read: Not a directory" in load_error(ranks, place, FileError)
