"""The examples print what their heads show; the manifests run as far as one machine allows, on two nodes of it."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.kit import free_port
from helpers import children
from helpers.warm import WARM

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODES = 2
SHORT = {
    "ddp_before": ["--epochs", "1"],
    "ddp_after": ["--epochs", "1"],
    "gpt_diloco": ["--steps", "9", "--width", "32"],
    "cnn_slow_link": ["--epochs", "1"],
    "straggler_demo": ["--epochs", "1", "--compute", "0.05"],
    "fault_tolerance_demo": ["--steps", "400", "--kill", "10"],
    "hf_trainer": ["--epochs", "1"],
    "lightning_strategy": ["--epochs", "1"],
    "embedding_table": [],
    "train_digits": [],
    "train_sharded": [],
}
"""The scripts, and arguments with which they run in seconds."""
LIBRARIES = {"hf_trainer": "transformers", "lightning_strategy": "lightning"}
FAKE = {
    "scontrol": "echo localhost\necho another-node\n",
    "srun": """shift
for node in $(seq 0 $((SLURM_NNODES - 1))); do SLURM_NODEID=$node "$@" & started+=($!); done
for one in "${started[@]}"; do wait "$one" || code=$?; done
exit ${code:-0}
""",
    "partreduce": f'exec "{sys.executable}" -P -m partreduce "$@"\n',
}
"""What a cluster has, as programs of this machine; SLURM's start the command once for each node."""


def head(name):
    """The commands in the head of an example, and the lines that each is shown to print."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split('"""')[1].replace("\\\\\n", " ")
    found: list[tuple[list[str], list[str]]] = []
    for line in (line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")):
        if line.startswith("$ "):
            found.append((shlex.split(line)[1:], []))
        else:
            found[-1][1].append(line)
    return found


def form(line):
    """A line without its numbers, of which machines and settings have others."""
    return re.sub(r"\d[\d,.]*", "N", line)


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHORT)
def test_an_example_prints_what_its_head_shows(name, tmp_path):
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"{LIBRARIES[name]} is not installed")
    outputs = []
    for words, shown in head(name):
        command = [word.replace("examples/", f"{EXAMPLES}/") for word in words]
        if command[0] == "torchrun":  # the same variables, without its seconds
            command[:3] = ["run", "--nproc-per-node", command[2]]
        else:
            command.pop(0)
        short = SHORT[name] if command[0] == "run" else []
        done = WARM.run("partreduce", *command, *short, cwd=tmp_path, timeout=280)
        assert done.returncode == 0, done.stderr
        if not shown:
            continue
        plain = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("[", "partreduce: "))]
        prefix = "" if words[0] == "torchrun" else r"(?:\[\d+\] )?"
        printed = {form(line.removeprefix("[0] ") if not prefix else line) for line in plain}
        for line in {form(line) for line in shown}:
            pattern = re.compile(re.escape(line).replace(re.escape("..."), ".*"))
            assert any(pattern.fullmatch(other) for other in printed), (line, printed)
        outputs.append(done.stdout)
    CHECKS.get(name, lambda *_: None)(*outputs)


def numbers(pattern, output):
    return [float(one) for one in re.findall(pattern, output)]


def check_slow_link(whole, rarely):
    """Rare averages take less time and fewer bytes on the link, for as many steps."""
    for pattern, ratio in ((r"(\d+) ms per step", 1.3), (r"(\d+) kB", 10), (r"(\d+) steps", 0.99)):
        assert numbers(pattern, whole)[0] > ratio * numbers(pattern, rarely)[0]


def check_straggler(waiting, paced):
    """The other workers wait under All-Reduce; with steps per round the slow one takes a fifth of their steps."""
    seconds = [max(numbers(r"in ([\d.]+) s", one)) for one in (waiting, paced)]
    assert seconds[0] > 2 * seconds[1]
    slow, fast = (numbers(rf"worker {rank}: (\d+) steps", paced)[0] for rank in (3, 0))
    assert fast == 5 * slow


def check_failure(output):
    """Both workers end with the same model in the same step, and one of them is a replacement."""
    ends = {re.sub(r"^.*worker \d: |, replaced.*$", "", line) for line in output.splitlines() if "replaced" in line}
    assert len(ends) == 1
    assert re.search(r"worker 2: step 400, .* replaced: True", output)


def check_bytes(output):
    ours, whole = numbers(r"sends (\d+) kB", output)
    assert whole / ours == pytest.approx(15, rel=0.05)


CHECKS = {
    "cnn_slow_link": check_slow_link,
    "straggler_demo": check_straggler,
    "fault_tolerance_demo": check_failure,
    "gpt_diloco": check_bytes,
}
"""What the outputs of an example have to show besides."""


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["ddp_before", "ddp_after"])
def test_the_pair_of_scripts_resumes_after_its_last_epoch(name, tmp_path):
    assert (
        WARM.run("partreduce", "design", "1x2", "--build", "allreduce", "-o", "schedule.json", cwd=tmp_path).returncode
        == 0
    )
    schedule = ["schedule.json"] if name == "ddp_after" else []
    epochs = []
    for count in (1, 2):
        script = [f"{EXAMPLES}/{name}.py", *schedule, "--epochs", str(count)]
        done = WARM.run("partreduce", "run", "-n", "2", *script, cwd=tmp_path, timeout=280)
        assert done.returncode == 0, done.stderr
        epochs.append(re.findall(r"epoch (\d): test accuracy 0\.[5-9]", done.stdout))
    assert epochs == [["1"], ["2"]]


def test_the_scripts_with_and_without_partreduce_differ_where_they_say_so():
    before, after = ((EXAMPLES / f"ddp_{name}.py").read_text().split('"""', 2)[2] for name in ("before", "after"))
    added = [line for line in after.splitlines() if line not in before.splitlines() and line.strip()]
    unmarked = [line.strip() for line in added if "# changed" not in line]
    assert unmarked == [
        "order = torch.Generator()",
        'scheduler.load_state_dict(resumed.extra["scheduler"])',
        'first = resumed.extra["epoch"]',
        "order.manual_seed(1000 * epoch + optimizer.rank)",
        "if optimizer.rank == 0:",
        'extra = {"epoch": epoch + 1, "scheduler": scheduler.state_dict()}',
    ]


@pytest.fixture
def cluster(tmp_path):
    """Variables and a folder in which the programs above are found, and schedules for two nodes."""
    for name, text in FAKE.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{text}")
        program.chmod(0o755)
    for workers, name in ((4, "schedule.json"), (1, "small.json")):
        words = ("design", f"{NODES}x{workers}", "--build", "allreduce", "-o", name)
        assert WARM.run("partreduce", *words, cwd=tmp_path).returncode == 0
    (tmp_path / "examples").mkdir()
    script = (EXAMPLES / "train_digits.py").read_text(encoding="utf-8")
    for name in ("examples/train_digits.py", "train.py"):
        (tmp_path / name).write_text(script.replace("150)", "40)"))  # its steps, here of processes that share few cores
    return tmp_path, children.environment(PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def has_trained(output):
    """Whether worker 0 has said, once, that the model has learned, and no worker failed on the way."""
    return len(re.findall(r"test accuracy of the mean model 0\.[4-9]", output)) == 1 and "without worker" not in output


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_sbatch_script_runs_its_command_on_every_node(cluster):
    folder, variables = cluster
    slurm = {"SLURM_NNODES": str(NODES), "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_ID": str(free_port())}
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm.sbatch", "schedule.json"],
        env=variables | slurm, cwd=folder, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_trained(done.stdout), done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_kubernetes_job_runs_its_command_in_every_pod(cluster):
    folder, variables = cluster
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    endpoint, nnodes = (command.index(option) + 1 for option in ("--rdzv-endpoint", "--nnodes"))
    assert command[endpoint].startswith(f"{job['metadata']['name']}-0.{pod['subdomain']}:")
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == (pod["subdomain"], "None")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(command[nnodes])
    command[endpoint], command[nnodes] = f"127.0.0.1:{free_port()}", str(NODES)
    pods = [
        subprocess.Popen(
            command, env=variables | {"JOB_COMPLETION_INDEX": str(index)}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(NODES)
    ]  # fmt: skip
    outputs = [one.communicate(timeout=250)[0] for one in pods]
    assert [one.returncode for one in pods] == [0] * NODES, outputs
    assert has_trained(outputs[0]), outputs


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: PYTHONPATH=SITE names one")
def test_ray_s_worker_group_runs_the_script(cluster):
    folder, variables = cluster
    words = ["--nnodes", str(NODES), "--nproc-per-node", "1", "small.json", "train.py", "small.json"]
    code = "import ray, runpy, sys; init = ray.init; ray.init = lambda: init(num_cpus=2); sys.argv.pop(0); "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, EXAMPLES / "ray_train.py", *words],
        env=variables, cwd=folder, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_trained(done.stdout + done.stderr), done.stdout + done.stderr
