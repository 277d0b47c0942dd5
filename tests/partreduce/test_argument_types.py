"""Public functions refuse arguments of a wrong type in one line that names the argument in the caller's words."""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import re

import pytest
import torch

import partreduce
from partreduce import PartreduceError
from partreduce.__main__ import in_options, main
from partreduce.errors import InputError
from partreduce.topo.argument_types import check_arguments

HARDWARE = partreduce.Hardware(nic=partreduce.Link(1e-5, 1e-9), inside=partreduce.Link(1e-6, 1e-10), model_bytes=10**6)
CLUSTER = partreduce.Cluster.regular(2, 2, hardware=HARDWARE)
MODEL = torch.nn.Linear(2, 1)
VALID = {
    "batch_size": 2, "cluster": CLUSTER, "data": list(range(8)), "directory": ".", "group": [0], "hardware": HARDWARE,
    "request": partreduce.PlanRequest(cluster=CLUSTER, effort=0.2), "max_norm": 1.0,
    "model": MODEL, "name": "s", "num_nodes": 2,
    "optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.1), "parameters": [torch.nn.Parameter(torch.ones(1))],
    "path": "x.json", "schedule": partreduce.design("2x2", build="allreduce"), "tensors": torch.ones(2),
    "build": "allreduce", "workers_per_node": 2,
}  # fmt: skip
"""Arguments that are required, by name; None stands for others, which an error of ours has to name just as well."""
WRONG = ["4x4", 3, None, [], object()]


def public_callables():
    modules = [partreduce, *(importlib.import_module(f"partreduce.{of}") for of in ("strategies", "files", "types"))]
    for module in modules:
        for name in partreduce.__all__ if module is partreduce else vars(module):
            found = getattr(module, name)
            is_made_by_users = callable(found) and not name.startswith("_") and not inspect.isabstract(found)
            if isinstance(found, type) and (
                issubclass(found, (enum.Enum, BaseException)) or getattr(found, "_is_protocol", False)
            ):
                continue
            if is_made_by_users:
                yield pytest.param(found, id=f"{module.__name__}.{name}")


def error_of(function, arguments):
    """What an error of ours says; any other error ends the test."""
    try:
        function(**arguments)
    except PartreduceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("function", list(public_callables()))
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_type_is_an_error_of_ours_in_one_line_or_is_accepted(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind not in kinds]
    for wrong in parameters:
        required = [one.name for one in parameters if one.default is one.empty and one.name != wrong.name]
        for value in WRONG:
            if function is partreduce.design and wrong.name == "progress" and value is None:
                continue  # which plans
            said = error_of(function, {name: VALID.get(name) for name in required} | {wrong.name: value})
            assert "\n" not in said
            assert "--" not in re.sub("`partreduce [^`]*`", "", said), "an option, to a caller in Python"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: partreduce.design("4x4"),
            "design: build: expected a catalogue entry for cluster 4x4, got none; give build=NAME, or a PlanRequest",
        ),
        (lambda: partreduce.design([]), "design: request: expected PlanRequest, got list []; partreduce.PlanRequest("),
        (
            lambda: partreduce.design(VALID["request"], build="allreduce"),
            "design: build: expected a cluster alone, got a PlanRequest, too; leave one of the two out",
        ),
        (
            lambda: partreduce.design("2x2", build="allreduce", progress=print),
            "design: build: expected a cluster alone, got progress, too; leave one of the two out",
        ),
        (
            lambda: partreduce.design(VALID["request"], every=4),
            "design: every: expected no such argument of a PlanRequest; leave it out, or build a catalogue entry",
        ),
        (
            lambda: partreduce.PlanRequest(cluster="4x4"),
            "PlanRequest: cluster: expected Cluster, got str '4x4'; partreduce.load_cluster",
        ),
        (lambda: partreduce.PlanRequest(cluster=CLUSTER, seed="1"), "PlanRequest: seed: expected int, got str '1'"),
        (lambda: partreduce.Cluster.regular("4", 4), "Cluster: num_nodes: expected int, got str '4'"),
        (lambda: partreduce.metrics(None), "metrics: schedule: expected Schedule, got None; partreduce.load_schedule"),
        (
            lambda: partreduce.import_schedule("x.json", cluster="4x4"),
            "import_schedule: cluster: expected Cluster or None, got str '4x4'; partreduce.load_cluster",
        ),
        (
            lambda: partreduce.predict(VALID["schedule"], partreduce.Hardware(nic=HARDWARE.nic)),
            "model_bytes: is not given; say how many bytes the model has, such as 552_000_000",
        ),
    ],
)
def test_an_error_names_the_argument_what_is_expected_and_what_came(call, said):
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(said)


def test_the_command_line_names_options_where_python_names_arguments(tmp_path, capsys):
    (path := tmp_path / "x.json").write_text("{}")
    assert main(["import", str(path)]) == 65
    assert "give --format, one of" in capsys.readouterr().err
    with pytest.raises(InputError, match="give format=, one of"):
        partreduce.import_schedule(path)
    assert main(["design", "2x2", "--time-limit", "0s"]) == 2
    assert "--time-limit: is 0.0 s" in capsys.readouterr().err
    assert in_options("pilot: plan with data=shuffled") == "pilot: plan with --data shuffled"
    assert in_options("x.json: model_bytes: is 3") == "x.json: model_bytes: is 3", "a member of a file is no option"


def test_unknown_and_missing_arguments_are_type_errors_as_in_any_function():
    with pytest.raises(TypeError, match="unexpected keyword argument 'jobs'"):
        partreduce.load_cluster("2x2", jobs=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'request'"):
        partreduce.design()


def test_what_stands_for_a_type_is_accepted():
    @check_arguments
    def takes(
        number: float, count: int | None, path: str | os.PathLike[str], word: partreduce.Data, many: tuple
    ) -> str:
        return f"{number} {count} {path} {word} {many}"

    assert takes(1, None, "x", "shuffled", [1]) == "1 None x shuffled [1]"
    assert takes(torch.tensor(2), True, "x", partreduce.Data.SHUFFLED, (1,)).startswith("2 True ")
    with pytest.raises(InputError, match=r"word: expected Data \(shuffled, per-worker, per-node\), got str 'mine'"):
        takes(1, 1, "x", "mine", ())
