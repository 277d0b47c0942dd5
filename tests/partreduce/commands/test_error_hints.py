"""Hints in error messages: the suggested command works."""

import shlex
import shutil

import pytest

from partreduce.__main__ import main

FILES = {
    "cluster.yaml": "num_nodes: 2\nworkers_per_node: 2\n",
    "anchor.yaml": "num_nodes: &n 2\nworkers_per_node: *n\n",
    "twice.yaml": "num_nodes: 2\nnum_nodes: 2\nworkers_per_node: 2\n",
    "once.yaml": "num_nodes: 2\nworkers_per_node: 2\n",
    "both.json": '{"nodes": [[0, 1], [2, 3]], "num_nodes": 2, "workers_per_node": 2}',
    "nodes.json": '{"nodes": [[0, 1], [2, 3]]}',
    "counts.json": '{"num_nodes": 2, "workers_per_node": 2}',
    "ring.edgelist": "0 1\n1 2\n2 3\n3 0\n",
    "apart.edgelist": "0 1\n2 3\n",
    "together.edgelist": "0 1\n2 3\n1 2\n3 0\n",
    "one-way.edgelist": "0 1 0.5\n1 2 0.5\n2 0 0.5\n",
    "train.py": "import os\nassert os.environ['WORLD_SIZE'] == '2'\n",
    "function.py": """
import torch

def group_of(worker, step, cluster):
    first = worker // 2 * 2
    return (first, first + 1) if step % 2 else (0, 1, 2, 3)

def model():
    return torch.nn.Linear(4, 2)
""",
    "empty.json": "",
    "topology.conf": "SwitchName=leaf1 Nodes=a\nSwitchName=leaf2 Nodes=b\nSwitchName=top Switches=leaf1,leaf2\n",
}

TABLE = """
# no or a wrong cluster
design | write 4x4, 3,3,2 or a cluster file | design 4x4 --list | design 3,3,2 --list | design cluster.yaml --list
design 4,4x --list | write NODESxWORKERS such as 4x4 | design 4x4 --list | design 3,3,2 --list
design 1x1 --build allreduce | the smallest cluster has 2 workers | design 1x2 --build allreduce
design anchor.yaml --list | write the value out | design once.yaml --list
design twice.yaml --list | keep one of them | design once.yaml --list
design both.json --list | keep nodes, or num_nodes and workers_per_node | design nodes.json --list |
  design counts.json --list
design 2x2 --set uplink=2GB/s | say --set switches=topology.conf, too |
  design 2x2 --set uplink=2GB/s --set switches=topology.conf --effort quick
design 2x2 --set nic=5 | a bandwidth needs one, such as 10GB/s or 25Gbit/s |
  design 2x2 --set nic=10GB/s --effort quick | design 2x2 --set nic=25Gbit/s --effort quick
# options that exclude one another
design 4x4 --build allreduce --effort quick | leave one of them out | design 4x4 --build allreduce |
  design 2x2 --effort quick
design 4x4 --list --max group=4 | leave one of them out | design 4x4 --list | design 2x2 --max group=4 --effort quick
design 2x2 --model function.py:model --model-bytes 5MB --effort quick | leave one of them out |
  design 2x2 --model function.py:model --effort quick | design 2x2 --model-bytes 5MB --effort quick
design 4x4 --effort wrong | write quick, thorough or a number such as 20 | design 2x2 --effort quick |
  design 2x2 --effort 0.1
design 4x4 --time-limit 0s | give the search some time, such as 30s | design 2x2 --time-limit 30s --effort quick
design 2x2 --model-bytes 5 | a size needs one, such as 552MB or 2GiB | design 2x2 --model-bytes 552MB --effort quick |
  design 2x2 --model-bytes 2GiB --effort quick
# limits
design 2x2 --model-bytes 5MB --max communication=1us --max period=4 --effort quick |
  --max communication: expected at least |
  design 2x2 --model-bytes 5MB --max communication=1s --max period=4 --effort quick
design 2x2 --model-bytes 5MB --max queues=1B --sync iteration_gap --effort quick | raise it |
  design 2x2 --model-bytes 5MB --max queues=400MB --sync iteration_gap --effort quick
design 2x2 --tolerate-failures 3 --build allreduce | expected 1 to 2, got 3 of 4 workers |
  design 2x2 --tolerate-failures 1 --build allreduce | design 2x2 --tolerate-failures 2 --build allreduce
# the catalogue
design 4x4 --build all-reduce | did you mean allreduce? | design 4x4 --build allreduce
design 1x4 --build local-sgd(evry=2) | did you mean every? | design 1x4 --build local-sgd(every=2)
design 1x2 --build ring | use allreduce for 2 | design 1x2 --build allreduce
design 4x1 --build node-then-all | use allreduce(every=4) | design 4x1 --build allreduce(every=4)
design 4x1 --build pairs-pairs-all | use allreduce(every=3) | design 4x1 --build allreduce(every=3)
design 1x4 --build regions-diloco | use diloco(every=30) | design 1x4 --build diloco(every=30)
design 4x1 --build regions-diloco(regions=4) | use diloco(every=30) | design 4x1 --build diloco(every=30)
design 4x2 --build regions-diloco(regions=3) | give a divisor of the nodes, 2 or more |
  design 4x2 --build regions-diloco(regions=2)
design 4x1 --build hierarchy(levels=3x2) | such as 2x2 | design 4x1 --build hierarchy(levels=2x2)
design 4x2 --build node-digits(radices=3x2) | such as 2,2 | design 4x2 --build node-digits(radices=2x2)
design 1x4 --build node-digits | use allreduce | design 1x4 --build allreduce
design 1x4 --build hop-figure-21 | use ring-based for other sizes | design 1x4 --build ring-based
design 1x6 --build hypercube | the nearest are 4 or 8 | design 1x4 --build hypercube | design 1x8 --build hypercube
design 1x6 --build de-bruijn(base=2) | use base=6 | design 1x6 --build de-bruijn(base=6)
design 1x5 --build random-regular(degree=3) | use an even degree such as 4 |
  design 1x5 --build random-regular(degree=4)
design 1x6 --build hyper-cuboid(max_group=2) | use max_group=3, or base-k-plus-1 |
  design 1x6 --build hyper-cuboid(max_group=3) | design 1x6 --build base-k-plus-1
design 1x6 --build hyper-cuboid(factors=2x4) | use factors ≥ 2 such as 6 | design 1x6 --build hyper-cuboid(factors=6)
design 1x7 --build torus(shape=2x3) | use ring | design 1x7 --build ring
# files to read and to write
design cluster.yaml --build allreduce -o cluster.yaml | name another one to write |
  design cluster.yaml --build allreduce -o other.json
design 2x2 --build allreduce -o made/x.json | make it first | mkdir made | design 2x2 --build allreduce -o made/x.json
verify cluster.yaml | partreduce design cluster.yaml -o schedule.json makes a schedule |
  design cluster.yaml -o schedule.json --effort quick | verify schedule.json
verify empty.json | write it again | design 2x2 --build allreduce -o empty.json | verify empty.json
verify s.json --max-bytes 10B | raise the limit if you trust the file | verify s.json --max-bytes 1MB
verify s.json --cluster 2x2 | is for FILE.py:NAME; a schedule file says it itself | verify s.json |
  verify function.py:group_of --cluster 2x2 --period 2
verify function.py:group_of | needs --cluster and --period | verify function.py:group_of --cluster 2x2 --period 2
import apart.edgelist -o x.json | add edges until every worker reaches every other | import together.edgelist -o x.json
import ring.edgelist --cluster 3x1 -o x.json | name a cluster of 4 | import ring.edgelist --cluster 4x1 -o x.json
simulate s.json --cluster 4x4 | name a cluster of that shape, or design a schedule for this one |
  simulate s.json --cluster 2x2 | design 4x4 --build allreduce -o s44.json | simulate s44.json --cluster 4x4
simulate s.json s42.json | compare schedules of one shape, or simulate each alone | simulate s.json ring.json |
  simulate s.json | simulate s42.json
simulate s.json -o x.bmp | written as .png, .svg or .pdf | simulate s.json -o x.png | simulate s.json -o x.svg
# runs
run train.py | expected --workers N or --schedule FILE | run --workers 2 train.py | run --schedule two.json train.py
run train.py --workers 2 | write it before the script | run --workers 2 train.py
run --workers 2 cluster.yaml | a schedule goes before the script: --schedule cluster.yaml SCRIPT |
  run --schedule two.json train.py
run --workers 2 nothing.py | name a Python script | run --workers 2 train.py
"""
HINTS = [
    [part.strip() for part in hint.split(" | ")]
    for hint in TABLE.replace("|\n ", "| ").strip().splitlines()
    if not hint.startswith("#")
]
"""A wrong command, a part of its message, and the commands that follow its hint."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files and four schedules."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, cluster, using in (
        ("s.json", "2x2", "allreduce"),
        ("s42.json", "4x2", "allreduce"),
        ("ring.json", "2x2", "ring"),
        ("two.json", "1x2", "allreduce"),
    ):
        assert main(["design", cluster, "--build", using, "-o", str(folder / name)]) == 0
    return folder


@pytest.fixture
def folder(files, tmp_path, monkeypatch):
    """A copy of these files as the working directory."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint[0])
def test_error_hint_fixes_the_command(folder, capfd, hint):
    wrong, message, *right = hint
    capfd.readouterr()
    code, text = main(shlex.split(wrong)), capfd.readouterr().err
    assert code not in (0, 70)
    assert message in " ".join(text.split())
    for line in right:
        words = shlex.split(line)
        if words[0] == "mkdir":
            (folder / words[1]).mkdir()
            continue
        code = main(words)
        assert code == 0, f"{line}: {capfd.readouterr().err}"


@pytest.mark.usefixtures("brief")
def test_quorum_is_recommended_without_a_plain_alternative(capfd):
    """Regression: an internal error, because the best plain candidate was not among the allowed ones."""
    assert main(["design", "4x4", "--sync", "partial", "--effort", "0.3"]) == 0
    assert "is ready (eager-SGD majority)" in " ".join(capfd.readouterr().out.split())


def test_hint_table_has_at_least_40_rows():
    assert len(HINTS) >= 40
    assert all(len(hint) >= 3 for hint in HINTS)
