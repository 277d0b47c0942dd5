"""The public API: complete, lazy, typed, and never answered by somebody else's packages."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import partreduce

ROOT = Path(partreduce.__file__).parent.parent
PACKAGES = ("topo", "schedulers", "verify", "runtime")
ROOMS = ("errors", "files", "strategies", "types")
"""Public modules, for what few scripts name."""


def public(room):
    """The public names of a module, by name."""
    return {name: value for name, value in vars(getattr(partreduce, room)).items() if not name.startswith("_")}


EVERYTHING = {name: getattr(partreduce, name) for name in partreduce.__all__ if name not in ROOMS}
EVERYTHING |= {name: value for room in ROOMS for name, value in public(room).items()}


def test_every_public_name_can_be_imported_and_is_documented():
    for name, value in {**EVERYTHING, **{room: getattr(partreduce, room) for room in ROOMS}}.items():
        assert value.__doc__, name


def test_few_names_stand_in_the_package_itself_and_none_of_them_twice():
    assert len(partreduce.__all__) <= 40
    rooms = [set(public(room)) for room in ROOMS]
    assert sum(map(len, rooms)) == len(set().union(*rooms))
    assert set(partreduce.__all__) & set().union(*rooms) == {"PartreduceError"}


def test_the_list_of_names_is_that_of_the_stub_and_sorted():
    assert list(partreduce.__all__) == sorted(partreduce.__all__)
    stub = ast.parse(Path(partreduce.__file__).with_suffix(".pyi").read_text())
    imported = [(node.module, alias) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    # Only `import x as x` makes a name of a stub public for type checkers.
    assert all(alias.asname == alias.name for _, alias in imported)
    assert sorted(alias.name for _, alias in imported) == partreduce.__all__
    assert {alias.name for module, alias in imported if module is None} == set(ROOMS)
    for module, alias in imported:
        if module is None:
            continue
        home = importlib.import_module(f"partreduce.{module}")
        assert getattr(partreduce, alias.name) is getattr(home, alias.name)
    assert set(partreduce.__all__) <= set(dir(partreduce))


def test_no_public_name_is_also_a_module():
    for name in set(partreduce.__all__) - set(ROOMS) - {"verify"}:
        assert importlib.util.find_spec(f"partreduce.{name}") is None, name


OLD = {"plan", "prove", "figures", "shard", "Job", "Option", "Figures", "Figure", "Routes", "Quorum", "Gap"}


def test_a_name_from_before_the_renaming_is_gone():
    assert not OLD & set(EVERYTHING)


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
def test_verify_is_a_function_and_a_package_whatever_was_imported_before(before):
    subprocess.run([sys.executable, "-c", VERIFY.format(before=before)], check=True)


TYPED = """
import partreduce
import partreduce.verify.checker

schedule: partreduce.Schedule = partreduce.design("2x4", build="allreduce", every=4)
plan: partreduce.types.Plan = partreduce.design(partreduce.PlanRequest(cluster=schedule.cluster), progress=print)
proof: partreduce.types.Proof = partreduce.verify(schedule)
metrics: partreduce.types.ScheduleMetrics = partreduce.metrics(schedule)
wrong: int = partreduce.verify(schedule)
partreduce.design("2x4")
"""


def test_a_type_checker_accepts_the_calls_of_users_and_no_others(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(TYPED)
    mypy = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(script)]
    said = subprocess.run(mypy, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    lines = TYPED.splitlines()
    wrong = [lines.index(line) + 1 for line in lines if line.startswith(("wrong", 'partreduce.design("2x4")'))]
    assert [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line] == wrong, said


def test_a_star_import_brings_every_public_name():
    names: dict[str, object] = {}
    exec("from partreduce import *", names)
    assert set(partreduce.__all__) <= set(names)
    assert names["design"] is partreduce.design


def test_every_strategy_value_and_what_it_is_made_of_is_public():
    strategies = importlib.import_module("partreduce.topo.strategies")
    values = {name for name, value in vars(strategies).items() if isinstance(value, type)}
    assert values <= set(public("strategies"))
    assert {"Block", "Cluster", "Group", "Hardware", "Link", "Phase", "Schedule", "Switch"} <= set(EVERYTHING)


RESULTS = {
    "Claim",
    "Metric",
    "ScheduleMetrics",
    "CandidateSchedule",
    "Pilot",
    "Plan",
    "Prediction",
    "Proof",
    "Timeline",
}
"""Public values that nobody has to make by hand."""


def test_what_public_values_are_made_of_is_public_too():
    """Text stands for an enumeration where an annotation says `| str`."""
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


def test_a_job_is_planned_with_public_names_alone():
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
    assert planned.reasons[0].startswith("it communicates "), "the general reasons, too"
    assert all(
        len(group.members) == 2
        for t in range(planned.recommendation.period)
        for group in planned.recommendation.schedule.phase(t)
    )


def test_every_error_is_public():
    errors = importlib.import_module("partreduce.topo.errors")
    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PartreduceError)}
    assert tree == set(public("errors"))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="partreduce attribute desing"):
        _ = partreduce.desing


def test_importing_partreduce_imports_nothing_heavy():
    heavy = {"torch", "numpy", "pydantic", "networkx", "scipy", "ortools", "typer", "rich"}
    code = f"import sys, partreduce; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_users_module_of_a_floors_name_changes_nothing(tmp_path, kind):
    for name in PACKAGES:  # any of them that were imported would end the script
        if kind == "module":
            (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the module {name} was imported')")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(
                f"raise SystemExit('the package {name} of the user was imported')"
            )
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
def test_a_floor_cannot_be_imported_twice(name):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"this folder is the package partreduce.{name}; import it by that name" in done.stderr


def test_design_builds_from_a_shorthand():
    schedule = partreduce.design("2x4", build="node-then-all", node_rounds=3)
    assert schedule.period == 4
    assert "node-then-all" in partreduce.catalogue()
    with pytest.raises(partreduce.errors.InputError, match="did you mean"):
        partreduce.design("2x4", build="node-then-al")
