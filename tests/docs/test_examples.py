"""The manifests in examples/ run as far as one machine allows: their own command, on two nodes of this one."""

import importlib.util
import os
import re
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
