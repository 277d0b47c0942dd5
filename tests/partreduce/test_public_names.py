"""The public API: complete, lazy, typed, documented, and strict about argument types."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import partreduce
from helpers.command_runs import ran
from helpers.refusals import check_error
from partreduce import PartreduceError
from partreduce.__main__ import in_options
from partreduce.errors import InputError
from partreduce.topo.argument_types import check_arguments

ROOT = Path(partreduce.__file__).parent.parent
PACKAGES = ("topo", "schedulers", "verify", "runtime")
PUBLIC_MODULES = ("errors", "files", "strategies", "types")
"""Public modules of names that few scripts need."""


def public_names(module):
    """Return the public names of a module with their values."""
    return {name: value for name, value in vars(getattr(partreduce, module)).items() if not name.startswith("_")}


EVERYTHING = {name: getattr(partreduce, name) for name in partreduce.__all__ if name not in PUBLIC_MODULES}
EVERYTHING |= {name: value for module in PUBLIC_MODULES for name, value in public_names(module).items()}


def test_every_public_name_is_importable_and_documented():
    for name, value in {**EVERYTHING, **{module: getattr(partreduce, module) for module in PUBLIC_MODULES}}.items():
        assert value.__doc__, name


def test_package_has_at_most_40_unique_names():
    assert len(partreduce.__all__) <= 40
    names = [set(public_names(module)) for module in PUBLIC_MODULES]
    assert sum(map(len, names)) == len(set().union(*names))
    assert set(partreduce.__all__) & set().union(*names) == {"PartreduceError"}


def test_public_names_match_the_stub_and_are_sorted():
    assert list(partreduce.__all__) == sorted(partreduce.__all__)
    stub = ast.parse(Path(partreduce.__file__).with_suffix(".pyi").read_text())
    imported = [(node.module, alias) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    # Only `import x as x` makes a name of a stub public for type checkers.
    assert all(alias.asname == alias.name for _, alias in imported)
    assert sorted(alias.name for _, alias in imported) == partreduce.__all__
    assert {alias.name for module, alias in imported if module is None} == set(PUBLIC_MODULES)
    for module, alias in imported:
        if module is None:
            continue
        home = importlib.import_module(f"partreduce.{module}")
        assert getattr(partreduce, alias.name) is getattr(home, alias.name)
    assert set(partreduce.__all__) <= set(dir(partreduce))


def test_public_name_is_never_a_module():
    for name in set(partreduce.__all__) - set(PUBLIC_MODULES) - {"verify"}:
        assert importlib.util.find_spec(f"partreduce.{name}") is None, name


RENAMED = {"plan", "prove", "figures", "shard", "Job", "Option", "Figures", "Figure", "Routes", "Quorum", "Gap"}


def test_renamed_names_are_gone():
    assert not RENAMED & set(EVERYTHING)


VERIFY = """
import sys
import partreduce
assert not any(name.startswith("partreduce.verify") for name in sys.modules)
schedule = partreduce.design("2x4", build="prague-figure-10")
if {before!r}:
    import partreduce.verify.checker
assert partreduce.verify(schedule).verdict == "proved"
import partreduce.verify.checker
assert partreduce.verify.checker.__name__ == "partreduce.verify.checker"
assert partreduce.verify(schedule) == partreduce.verify.prove(schedule)
assert partreduce.verify is sys.modules["partreduce.verify"]
"""


@pytest.mark.parametrize("before", [True, False])
def test_verify_is_callable_regardless_of_import_order(before):
    subprocess.run([sys.executable, "-c", VERIFY.format(before=before)], check=True)


def test_star_import_provides_every_public_name():
    names: dict[str, object] = {}
    exec("from partreduce import *", names)
    assert set(partreduce.__all__) <= set(names)
    assert names["design"] is partreduce.design


def test_strategy_values_and_their_parts_are_public():
    strategies = importlib.import_module("partreduce.topo.strategies")
    values = {name for name, value in vars(strategies).items() if isinstance(value, type)}
    assert values <= set(public_names("strategies"))
    assert {"Block", "Cluster", "Group", "Hardware", "Link", "Phase", "Schedule", "Switch"} <= set(EVERYTHING)


RESULTS = {
    "Claim", "Metric", "ScheduleMetrics", "CandidateSchedule", "Pilot", "Plan", "Prediction", "Proof", "Timeline",
}  # fmt: skip
"""Public values that users do not construct."""


def test_parts_of_public_values_are_public():
    """Annotations with `| str` also accept text for an enumeration."""
    bodies = [ast.parse(path.read_text(encoding="utf-8")).body for path in (ROOT / "topo").rglob("*.py")]
    classes = {node.name for body in bodies for node in body if isinstance(node, ast.ClassDef)}
    aliases = {node.targets[0].id for body in bodies for node in body
               if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    hidden, missing = classes - aliases - set(EVERYTHING), []
    for name in set(EVERYTHING) - RESULTS:
        value = EVERYTHING[name]
        if inspect.isfunction(value) or dataclasses.is_dataclass(value):
            for parameter in inspect.signature(value).parameters.values():
                text = str(parameter.annotation)
                words = set() if "| str" in text else hidden & set(re.findall(r"\w+", text))
                missing += [f"{name}({parameter.name}: {word})" for word in words]
    assert missing == []


def test_job_is_planned_with_public_names():
    hardware = partreduce.Hardware(
        inside=partreduce.Link.of_bandwidth(10e9), nic=partreduce.Link.of_bandwidth(5e9), model_bytes=100_000_000
    )
    cluster = partreduce.Cluster(2, 2, hardware=hardware)
    limits = partreduce.Limits(max_group=2, max_period=4)
    job = partreduce.PlanRequest(
        cluster=cluster, objective=partreduce.Objective.CONSENSUS_DISTANCE, limits=limits, effort=1.0
    )
    planned = partreduce.design(job)
    assert isinstance(planned, partreduce.types.Plan)
    assert planned.proof.verdict == "proved"
    assert planned.reasons[0].startswith("it communicates "), "general reasons are included"
    assert all(
        len(group.members) == 2
        for t in range(planned.recommendation.period)
        for group in planned.recommendation.schedule.phase(t)
    )


def test_every_error_is_public():
    errors = importlib.import_module("partreduce.topo.errors")
    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PartreduceError)}
    assert tree == set(public_names("errors"))


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="partreduce attribute desing"):
        _ = partreduce.desing


@pytest.mark.parametrize(("statement", "heavy"), [
    ("import partreduce", "torch numpy pydantic networkx scipy ortools typer rich"),
    ("import partreduce.topo.document", "pydantic yaml json.decoder"),
    ("import partreduce.topo.metrics", "torch networkx scipy"),
    ("from partreduce.__main__ import main; main(['--help'])",
        "torch ortools sympy matplotlib networkx pydantic numpy scipy sklearn"),
])  # fmt: skip
def test_import_and_help_load_no_heavy_libraries(statement, heavy):
    code = f"{statement}\nimport sys; print(sorted({set(heavy.split())} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_user_modules_named_like_our_packages_are_not_imported(tmp_path):
    for index, name in enumerate(PACKAGES):  # importing any of them would end the script
        file = tmp_path / (f"{name}.py" if index % 2 else f"{name}/__init__.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise SystemExit('{file} of the user was imported')")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "import partreduce\n"
        "schedule = partreduce.design('2x4', build='prague-figure-10')\n"
        "print(partreduce.verify(schedule).verdict)"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "proved\n"


@pytest.mark.parametrize("name", PACKAGES)
def test_top_level_import_of_a_subpackage_is_rejected(name):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"this folder is the package partreduce.{name}; import it by that name" in done.stderr


def test_design_builds_from_a_shorthand():
    schedule = partreduce.design("2x4", build="node-then-all", node_rounds=3)
    assert schedule.period == 4
    assert "node-then-all" in partreduce.catalogue()
    check_error(partreduce.errors.InputError, "did you mean", partreduce.design, "2x4", build="node-then-al")


# Public docstrings list every parameter under `Args:`, and the result under `Returns:`


def public_callables():
    """Yield (name, value) of functions and of classes that users construct."""
    for module in [partreduce, *(getattr(partreduce, name) for name in PUBLIC_MODULES)]:
        for name in getattr(module, "__all__", None) or vars(module):
            found = getattr(module, name)
            is_fixed = isinstance(found, type) and (
                issubclass(found, (enum.Enum, BaseException))
                or getattr(found, "_is_protocol", False)
                or inspect.isabstract(found)
            )
            if callable(found) and not name.startswith("_") and not is_fixed:
                yield f"{module.__name__}.{name}", found


def public_functions():
    """Yield (name, function) of these without dataclasses, and of the optimizer's methods."""
    for name, found in public_callables():
        if inspect.ismodule(found):
            yield name, type(found).__call__  # partreduce.verify
        elif not (isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, tuple))):
            yield name, found
    for name, method in inspect.getmembers(partreduce.DistributedOptimizer, inspect.isfunction):
        if not name.startswith("_") and method.__module__.startswith("partreduce"):
            yield f"DistributedOptimizer.{name}", method


def section(text, title):
    """Return the indented lines below `title:` of a docstring."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


CASES = [pytest.param(function, id=name) for name, function in public_functions()]


@pytest.mark.parametrize("function", CASES)
def test_every_parameter_is_documented(function):
    text = inspect.cleandoc(function.__doc__ or "")
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    explained = re.findall(r"^    \**(\w+)(?: \(.*?\))?:", section(text, "Args"), re.MULTILINE)
    assert [name for name in names if name not in explained] == []


@pytest.mark.parametrize("function", CASES)
def test_return_values_are_documented(function):
    answer = inspect.signature(function).return_annotation
    if isinstance(function, type) or answer in ("None", None, "NoReturn", inspect.Signature.empty):
        return
    text = inspect.cleandoc(function.__doc__ or "")
    assert section(text, "Returns") or section(text, "Yields"), f"{answer}: no section Returns"


@pytest.mark.parametrize("file", ["lightning_strategy", "trainer_callback"])
def test_adapters_of_optional_libraries_document_their_arguments(file):
    path = Path(partreduce.__file__).parent / "runtime" / "adapters" / f"{file}.py"
    made = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    init = next(node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = [*init.args.args[1:], *init.args.kwonlyargs, *filter(None, [init.args.vararg, init.args.kwarg])]
    explained = re.findall(r"^    \**(\w+):", section(ast.get_docstring(made) or "", "Args"), re.MULTILINE)
    assert [argument.arg for argument in arguments if argument.arg not in explained] == []


# A wrong argument type raises one line that names the argument


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
"""Valid values by name of required arguments; None stands for any other, which must raise an error of ours too."""
WRONG = ["4x4", 3, None, [], object()]


def error_of(function, arguments):
    """Return the message of a PartreduceError, or ""."""
    try:
        function(**arguments)
    except PartreduceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("function", [pytest.param(found, id=name) for name, found in public_callables()])
@pytest.mark.filterwarnings("ignore")
def test_wrong_type_raises_a_one_line_error_or_is_accepted(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind not in kinds]
    for wrong in parameters:
        required = [one.name for one in parameters if one.default is one.empty and one.name != wrong.name]
        for value in WRONG:
            if function is partreduce.design and wrong.name == "progress" and value is None:
                continue  # which plans
            text = error_of(function, {name: VALID.get(name) for name in required} | {wrong.name: value})
            assert "\n" not in text
            assert "--" not in re.sub("`partreduce [^`]*`", "", text), "Python errors name no command-line options"


@pytest.mark.parametrize(("call", "text"), [
    (lambda: partreduce.design("4x4"),
        "design: build: expected a catalogue entry for cluster 4x4, got none; give build=NAME, or a PlanRequest"),
    (lambda: partreduce.design([]), "design: request: expected PlanRequest, got list []; partreduce.PlanRequest("),
    (lambda: partreduce.design(VALID["request"], build="allreduce"),
        "design: build: expected a cluster alone, got a PlanRequest, too; leave one of the two out"),
    (lambda: partreduce.design("2x2", build="allreduce", progress=print),
        "design: build: expected a cluster alone, got progress, too; leave one of the two out"),
    (lambda: partreduce.design(VALID["request"], every=4),
        "design: every: expected no such argument of a PlanRequest; leave it out, or build a catalogue entry"),
    (lambda: partreduce.PlanRequest(cluster="4x4"),
        "PlanRequest: cluster: expected Cluster, got str '4x4'; partreduce.load_cluster"),
    (lambda: partreduce.PlanRequest(cluster=CLUSTER, seed="1"), "PlanRequest: seed: expected int, got str '1'"),
    (lambda: partreduce.Cluster.regular("4", 4), "Cluster: num_nodes: expected int, got str '4'"),
    (lambda: partreduce.metrics(None), "metrics: schedule: expected Schedule, got None; partreduce.load_schedule"),
    (lambda: partreduce.import_schedule("x.json", cluster="4x4"),
        "import_schedule: cluster: expected Cluster or None, got str '4x4'; partreduce.load_cluster"),
    (lambda: partreduce.predict(VALID["schedule"], partreduce.Hardware(nic=HARDWARE.nic)),
        "model_bytes: is not given; say how many bytes the model has, such as 552_000_000"),
])  # fmt: skip
def test_error_names_argument_expectation_and_value(call, text):
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(text)


def test_command_line_errors_name_options_and_python_errors_arguments(tmp_path, capsys):
    (path := tmp_path / "x.json").write_text("{}")
    assert "give --format, one of" in ran(capsys, ["import", str(path)], 65).err
    check_error(InputError, "give format=, one of", partreduce.import_schedule, path)
    assert "--time-limit: is 0.0 s" in ran(capsys, ["design", "2x2", "--time-limit", "0s"], 2).err
    assert in_options("pilot: plan with data=shuffled") == "pilot: plan with --data shuffled"
    assert in_options("x.json: model_bytes: is 3") == "x.json: model_bytes: is 3", "a key of a file is no option"


def test_unknown_and_missing_arguments_raise_type_error():
    check_error(TypeError, "unexpected keyword argument 'jobs'", partreduce.load_cluster, "2x2", jobs=1)
    check_error(TypeError, "missing 1 required positional argument: 'request'", partreduce.design)


def test_equivalent_types_are_accepted():
    @check_arguments
    def takes(
        number: float, count: int | None, path: str | os.PathLike[str], word: partreduce.Data, many: tuple
    ) -> str:
        return f"{number} {count} {path} {word} {many}"

    assert takes(1, None, "x", "shuffled", [1]) == "1 None x shuffled [1]"
    assert takes(torch.tensor(2), True, "x", partreduce.Data.SHUFFLED, (1,)).startswith("2 True ")
    with pytest.raises(InputError, match=r"word: expected Data \(shuffled, per-worker, per-node\), got str 'mine'"):
        takes(1, 1, "x", "mine", ())
