"""The examples and the commands of the pages on fault tolerance and installation run unchanged."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from benchmarks.kit import free_port
from helpers import children
from helpers.pages import blocks
from helpers.warm import WARM
from partreduce.topo import errors, extras
from partreduce.topo.failure_plan import table

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODES = 2
SHORT = {
    "ddp_before": ["--epochs", "1"],
    "ddp_after": ["--epochs", "1"],
    "gpt_diloco": ["--steps", "9", "--width", "32"],
    "cnn_slow_link": ["--epochs", "1"],
    "straggler_demo": ["--epochs", "1", "--compute", "0.05"],
    "fault_tolerance_demo": ["--steps", "250", "--kill", "10"],
    "hf_trainer": ["--epochs", "1"],
    "lightning_strategy": ["--epochs", "1"],
    "embedding_table": [],
    "train_digits": [],
    "train_sharded": [],
}
"""The scripts, and arguments that shorten them to seconds; only workers of the first import scikit-learn."""
STEPS = {"train_digits": ("150)", "40)"), "train_sharded": ("range(120)", "range(10)")}
"""The number of steps in scripts without such an argument, and a smaller one: many processes share few cores."""
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
"""Programs of a cluster, replaced by local scripts; srun starts the command once for each node."""


def docstring_commands(name):
    """Return the commands in the docstring of an example with the output that it shows for each."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split('"""')[1].replace("\\\\\n", " ")
    indented = [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]
    found: list[tuple[list[str], list[str]]] = []
    for line in indented or text.partition("\n\n")[2].splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line)[1:], []))
        else:
            found[-1][1].append(line)
    return found


def shorter(name):
    """Return the text of an example with fewer steps."""
    return (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").replace(*STEPS[name])


def without_numbers(line):
    """Return a line without its numbers, which depend on the machine and on the settings."""
    return re.sub(r"\d[\d,.]*", "N", line)


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHORT)
def test_example_prints_the_output_in_its_docstring(name, tmp_path):
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"{LIBRARIES[name]} is not installed")
    outputs, folder = [], tmp_path if name in STEPS else EXAMPLES
    imports = [] if name == "ddp_before" else ["sklearn.datasets"]
    if name in STEPS:
        (tmp_path / f"{name}.py").write_text(shorter(name))
    for words, shown in docstring_commands(name):
        command = [word.replace("examples/", f"{folder}/") for word in words]
        if command[0] == "torchrun":  # the same variables, without its seconds
            command[:3] = ["run", "--nproc-per-node", command[2]]
        else:
            command.pop(0)
        short = SHORT[name] if command[0] == "run" else []
        done = WARM.run("partreduce", *command, *short, cwd=tmp_path, timeout=280, imports=imports)
        assert done.returncode == 0, done.stderr
        if not shown:
            continue
        plain = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("[", "partreduce: "))]
        prefix = "" if words[0] == "torchrun" else r"(?:\[\d+\] )?"
        printed = {without_numbers(line.removeprefix("[0] ") if not prefix else line) for line in plain}
        for line in {without_numbers(line) for line in shown}:
            pattern = re.compile(re.escape(line).replace(re.escape("..."), ".*"))
            assert any(pattern.fullmatch(other) for other in printed), (line, printed)
        outputs.append(done.stdout)
    if name.startswith("ddp_"):  # the second run resumes after the last epoch
        outputs.append(WARM.run("partreduce", *command, "--epochs", "2", cwd=tmp_path, timeout=280).stdout)
    CHECKS.get(name, lambda *_: None)(*outputs)


def numbers(pattern, output):
    return [float(one) for one in re.findall(pattern, output)]


def check_slow_link(whole, rarely):
    """Rare averages take less time and fewer bytes on the link for the same number of steps."""
    for pattern, ratio in ((r"(\d+) ms per step", 1.3), (r"(\d+) kB", 10), (r"(\d+) steps", 0.99)):
        assert numbers(pattern, whole)[0] > ratio * numbers(pattern, rarely)[0]


def check_straggler(waiting, paced):
    """All-Reduce makes the others wait; with steps per round the slow worker takes a fifth of their steps."""
    seconds = [max(numbers(r"in ([\d.]+) s", one)) for one in (waiting, paced)]
    assert seconds[0] > 2 * seconds[1]
    slow, fast = (numbers(rf"worker {rank}: (\d+) steps", paced)[0] for rank in (3, 0))
    assert fast == 5 * slow


def check_failure(output):
    """Both workers end with the same model in the same step, and one of them is a replacement."""
    ends = {re.sub(r"^.*worker \d: |, replaced.*$", "", line) for line in output.splitlines() if "replaced" in line}
    assert len(ends) == 1
    assert re.search(r"worker 2: step 250, .* replaced: True", output)


def check_bytes(output):
    ours, whole = numbers(r"sends (\d+) kB", output)
    assert whole / ours == pytest.approx(15, rel=0.05)


def check_epochs(*outputs):
    assert [re.findall(r"epoch (\d): test accuracy 0\.[5-9]", one) for one in outputs] == [["1"], ["2"]]


CHECKS = {
    "cnn_slow_link": check_slow_link, "straggler_demo": check_straggler, "fault_tolerance_demo": check_failure,
    "gpt_diloco": check_bytes, "ddp_before": check_epochs, "ddp_after": check_epochs,
}  # fmt: skip
"""Further checks of the outputs of an example."""


def test_ddp_scripts_differ_in_the_marked_lines():
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
    """A folder with the programs above and schedules for two nodes, and variables whose PATH contains it."""
    for name, text in FAKE.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{text}")
        program.chmod(0o755)
    for workers, name in ((4, "schedule.json"), (1, "small.json")):
        words = ("design", f"{NODES}x{workers}", "--build", "allreduce", "-o", name)
        assert WARM.run("partreduce", *words, cwd=tmp_path).returncode == 0
    (tmp_path / "examples").mkdir()
    for name in ("examples/train_digits.py", "train.py"):
        (tmp_path / name).write_text(shorter("train_digits"))
    return tmp_path, children.environment(PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def has_trained(output):
    """Return whether worker 0 has printed a good accuracy exactly once and no worker failed."""
    return len(re.findall(r"test accuracy of the mean model 0\.[4-9]", output)) == 1 and "without worker" not in output


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_sbatch_script_runs_its_command_on_every_node(cluster):
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
def test_kubernetes_job_runs_its_command_in_every_pod(cluster):
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
def test_ray_worker_group_runs_the_script(cluster):
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


# docs/how-to/fault-tolerance.md: its output, its measured numbers and its exit codes


PAGE = (ROOT / "docs/how-to/fault-tolerance.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"

TRAIN = """
import os, signal, sys, time
from pathlib import Path
import torch, partreduce
if os.environ.get("PARTREDUCE_RESTARTED"):
    time.sleep(1.0)  # otherwise it would join by the current vote of the others
model = torch.nn.Linear(4, 1)
optimizer = partreduce.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, sys.argv[1], timeout=60)
partreduce.load_checkpoint(optimizer, "saved")
is_first = not os.environ.get("PARTREDUCE_RESTARTED") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not Path(f"stop-{optimizer.steps}").exists():
    if is_first and optimizer.rank == 3 and optimizer.steps == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(optimizer.rank))).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if optimizer.rank == 3 and not is_first and not list(Path().glob("stop-*")):
        Path(f"stop-{optimizer.steps + 20}").touch()
    if optimizer.steps == 8:
        partreduce.save_checkpoint(optimizer, "saved")
optimizer.finish()
"""


def pattern_of(text):
    """Return the pattern of a line of the page, with any numbers and any text in place of `…`."""
    pattern = re.escape(text).replace("…", ".*")
    return re.compile(re.sub(r"\d+", r"\\d+", pattern) + r"(; .*)?")


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("command", "printed"), [(0, 1), (2, 3)], ids=["continues and joins", "all restart"])
def test_commands_of_the_fault_tolerance_page_print_the_shown_output(tmp_path, command, printed):
    listed = [block.splitlines() for block in blocks(PAGE, "")]
    ((line,), expected) = listed[command], listed[printed]
    words = shlex.split(line)
    workers = words[words.index("--nproc-per-node") + 1]
    (tmp_path / "train.py").write_text(TRAIN)
    design = ("design", f"1x{workers}", "--build", "allreduce", "-o", "schedule.json")
    assert WARM.run("partreduce", *design, cwd=tmp_path).returncode == 0
    done = WARM.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    stderr = [line for line in done.stderr.splitlines() if line.startswith("partreduce: ")]
    assert [text for text in expected if not any(pattern_of(text).fullmatch(one) for one in stderr)] == [], stderr


def test_seconds_of_the_page_match_the_results():
    cells = [line.split("|") for line in (RESULTS / "recovery.md").read_text(encoding="utf-8").splitlines()]
    for name in ("partreduce", "torchft, tuned"):
        first, second, third = (row[5].strip() for row in cells if len(row) > 5 and row[2].strip() == name)
        assert f"{first}, {second} and {third} s" in PAGE
    curve = re.findall(r"^\| \d+ \| ([\d.]+) \| ([\d.]+) \|$", (RESULTS / "elastic_runs.md").read_text(), re.MULTILINE)
    last = [float(one) for one in curve[-1]]
    assert abs(last[0] - last[1]) <= float(re.search(r"within ([\d.]+) of that without", PAGE)[1])


def test_exit_codes_of_the_page_match_the_errors():
    assert f"* {errors.EvictedError.exit_code}: the same, and a silent worker was evicted" in PAGE
    codes = sorted({errors.InputError.exit_code, errors.FileError.exit_code, errors.MissingDependencyError.exit_code})
    assert f"(exit codes {', '.join(map(str, codes))}) are not retried" in PAGE


def test_table_of_the_page_matches_the_code():
    rows = {}
    for name, answer, _ in table():
        rows.setdefault(answer, []).append(name)
    heads = {"continues": "survivors continue", "restarts": "all restart", "refused": "refused"}
    lines = [f"| {heads[answer]} | {', '.join(names)} |" for answer, names in rows.items()]
    assert "\n".join(["|---|---|", *lines, "", "<!-- end of kinds -->"]) in PAGE


# Every documented `pip install` names partreduce or a dependency: other authors own packages of similar names


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = PROJECT["project"]["name"]
OPTIONAL = PROJECT["project"]["optional-dependencies"]
VALUES = {"-c", "--group", "-r", "--index-url"}
"""Options of pip whose value is the next word."""
PATTERN = re.compile(r"\bpip3?\s+install\s+([^`\n);]+)")


def name_of(requirement):
    """Return the distribution of a requirement such as `torch>=2.6` or `partreduce[plot]`."""
    return re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0].lower()


KNOWN = {OURS, "."} | {
    name_of(one) for listed in [PROJECT["project"]["dependencies"], *OPTIONAL.values()] for one in listed
}  # fmt: skip


def strings(tree):
    """Return all literal strings of a module, with {} in place of the values in f-strings."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append(node.value)
    return found


def documents():
    folders = ("partreduce", "benchmarks", "examples", "docs", ".ci")
    files = {path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    files |= {ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml")}
    texts = {path for path in files if path.suffix in {".py", ".pyi", ".md", ".toml", ".yml", ".sh", ""}}
    return sorted(path for path in texts if "__pycache__" not in path.parts)


def commands():
    """Return (file, arguments) of every `pip install`."""
    found = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        if "install" not in text:
            continue
        parts = strings(ast.parse(text)) if path.suffix == ".py" else [text]
        found += [(str(path.relative_to(ROOT)), words) for part in parts for words in PATTERN.findall(part)]
    return found


def requirements(words):
    """Return the requirements among the arguments of pip."""
    parts, requested = iter(shlex.split(words)), []
    for part in parts:
        if part in VALUES:
            next(parts, None)
        elif not part.startswith("-") and part != "{}":
            requested.append(part)
    return requested


def unknown_requirements(words):
    """Return the requirements that are neither partreduce nor a dependency, or name an unknown extra."""
    wrong = []
    for requirement in requirements(words):
        extra = re.search(r"\[([^]]*)\]", requirement)
        named = set(extra[1].split(",")) - {"{}"} if extra else set()
        if name_of(requirement) not in KNOWN | {"pip"} or not named <= set(OPTIONAL):
            wrong.append(requirement)
    return wrong


def test_every_pip_install_names_partreduce_or_a_dependency():
    found = commands()
    assert len(found) >= 8, "the pattern finds the commands in the Makefile, the README and the library"
    assert {"partreduce/topo/extras.py", "README.md", "Makefile"} <= {place for place, _ in found}
    assert [(place, wrong) for place, words in found if (wrong := unknown_requirements(words))] == []


@pytest.mark.parametrize("module", extras.EXTRAS)
def test_message_about_a_missing_library_names_the_extra(module):
    (words,) = PATTERN.findall(str(extras.missing([module], "this")))
    assert unknown_requirements(words) == []
    (requirement,) = requirements(words)
    assert name_of(requirement) == OURS
    library, extra = extras.EXTRAS[module]
    assert requirement == f"{OURS}[{extra}]"
    passed = {name_of(one).replace("-", "") for one in OPTIONAL[extra]}
    assert library.replace("-", "").lower() in passed


@pytest.mark.parametrize(
    "words", ["'preduce[torch]'", "preduce", "-c constraints.txt partreduse", "'partreduce[tourch]'"]
)
def test_foreign_packages_and_unknown_extras_are_detected(words):
    assert unknown_requirements(words) != []
