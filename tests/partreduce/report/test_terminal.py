"""Terminals: narrow, closed early by `head`, without UTF-8, and pipes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import partreduce
from helpers import children
from helpers.warm import WARM
from partreduce import __main__, write_schedule
from partreduce.__main__ import main
from partreduce.commands import EXIT_CODES, HIDDEN, VERBS
from partreduce.console import console, fresh_terminal
from partreduce.report.table import Column, table
from partreduce.topo import errors

ROOT = Path(partreduce.__file__).parent.parent
RUN_ALL = """
import json, sys
from partreduce.__main__ import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    assert code == 0, (arguments, code)
"""
"""Several commands in one process, whose standard streams follow its environment."""


def run(*arguments, code=0, stdin="", **environment):
    done = WARM.run("partreduce", *arguments, stdin=stdin, environment=children.environment(**environment))
    assert done.returncode == code, done.stderr
    return done


def run_all(*commands, **environment):
    """Run commands in one process with these environment variables."""
    commands = json.dumps([[str(one) for one in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, commands], capture_output=True, check=False, cwd=ROOT, timeout=100,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def shell(command, **environment):
    """Run a line of bash in which `partreduce` is this package."""
    text = f'partreduce() {{ {sys.executable} -m partreduce "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def allreduce_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allreduce_files")
    paths = []
    for every in (2, 4):
        paths.append(folder / f"{every}.json")
        schedule = partreduce.design("4x4", build="allreduce", every=every)
        write_schedule(paths[-1], replace(schedule, name=f"allreduce-every-{every}-steps"))
    return paths


# Tables


def render(made, width):
    console = Console(file=StringIO(), width=width, highlight=False, soft_wrap=True)
    console.print(made)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_names_stay_whole_and_columns_drop_by_priority(width):
    made = table("Title", "name", "first", *(Column(f"column-{i}", drop=i) for i in range(1, 8)))
    names = [f"allreduce-every-{every}-steps" for every in (2, 4, 8)]
    for name in names:
        made.add(name, "51.75 ms", *["123.4 ms"] * 7)
    lines = render(made, width)
    assert all(len(line.rstrip()) <= width for line in lines)
    for name in names:
        assert sum(name in line and "51.75 ms" in line for line in lines) == 1
    left = [i for i in range(1, 8) if f"column-{i}" in lines[2]]
    assert left == list(range(1, len(left) + 1)), "columns drop by priority"
    gone = ", ".join(f"column-{i}" for i in range(len(left) + 1, 8))
    assert gone in " ".join(" ".join(lines).split())
    assert ("Too narrow" in " ".join(lines)) == bool(gone)


def test_too_narrow_table_folds_without_truncation():
    made = table("", "name", "value")
    made.add("a-name-that-is-wider-than-the-terminal-1", "1")
    made.add("a-name-that-is-wider-than-the-terminal-2", "2")
    lines = render(made, 20)
    text = "".join(line[:16].strip() for line in lines)
    assert "…" not in text
    assert "a-name-that-is-wider-than-the-terminal-1" in text
    assert "a-name-that-is-wider-than-the-terminal-2" in text


@pytest.mark.parametrize("width", [80, 60])
def test_every_row_of_a_comparison_has_its_name(figure_10, allreduce_files, width):
    lines = run("simulate", figure_10, *allreduce_files, COLUMNS=str(width)).stdout.splitlines()
    for name in ("prague-figure-10", "allreduce-every-2-steps", "allreduce-every-4-steps"):
        assert sum(line.startswith(name + " ") for line in lines) == 1
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", [80, 60])
def test_catalogue_names_are_not_truncated(width):
    lines = run("design", "--list", COLUMNS=str(width)).stdout.splitlines()
    first = {line.split(" ")[0] for line in lines}
    assert set(partreduce.catalogue()) <= first


@pytest.mark.parametrize("columns", ["0", "-5", "wide", "9" * 5000])
def test_invalid_columns_variable_is_ignored(monkeypatch, columns):
    """Regression: rich printed nothing at 0 columns, which some containers set."""
    monkeypatch.setenv("COLUMNS", columns)
    with fresh_terminal():
        assert console().width == 120
    monkeypatch.setenv("COLUMNS", "77")
    with fresh_terminal():
        assert console().width == 77


def test_long_schedule_is_shown_in_parts_that_fit(tmp_path):
    path = tmp_path / "long.json"
    assert main(["design", "2x2", "--build", "node-then-all(node_rounds=39)", "-o", str(path)]) == 0
    lines = run("show", path, COLUMNS="60").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    steps = [int(word) for line in lines if line.split()[:2] == ["node", "worker"] for word in line.split()[2:]]
    assert steps == list(range(40))


# Closed pipes


@pytest.mark.parametrize("arguments", [
    "--help", "verify FIGURE_10", "verify --json FIGURE_10", "verify /nowhere 2>&1",
    "design 64x8 --build 'node-then-all(node_rounds=400)' -o -",
])  # fmt: skip
def test_closed_pipe_exits_with_0(figure_10, arguments):
    """`true` exits without reading, so every write fails with EPIPE."""
    done = shell(f"partreduce {arguments} | true; exit ${{PIPESTATUS[0]}}".replace("FIGURE_10", str(figure_10)))
    assert done.returncode == 0
    assert "Traceback" not in done.stderr if "-o -" in arguments else done.stderr == ""


@pytest.mark.parametrize("verb", VERBS + HIDDEN)
def test_closed_pipe_of_a_help_text_exits_with_0(verb, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "err").open("w") as err:
        code = WARM.start("partreduce", verb, "--help", streams=[0, writing, err.fileno()]).wait()
    os.close(writing)
    assert (code, (tmp_path / "err").read_text()) == (0, "")


def test_closed_stdout_exits_with_0(figure_10):
    done = shell(f"partreduce verify {figure_10} >&-; echo $? >&2")
    assert done.stderr.strip() == "0"


# Encodings


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "ascii:strict"])
def test_limited_encodings_get_ascii_signs_and_equal_json(figure_10, encoding):
    as_json = ["verify", figure_10, "--explain", "--json"]
    done = run_all(as_json, ["--help"], as_json[:-1], ["show", figure_10], PYTHONIOENCODING=encoding)
    printed = done.stdout.decode(encoding.partition(":")[0])
    assert json.JSONDecoder().raw_decode(printed)[0] == json.loads(run(*as_json).stdout)
    assert b"Traceback" not in done.stderr
    assert "consensus distance <= " in printed or "ascii" not in encoding


def test_c_locale_raises_nothing(figure_10):
    run_all(["verify", figure_10, "--explain"], LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


# Standard input and output


def test_verify_reads_stdin_and_writes_the_certificate_to_stdout(figure_10, tmp_path):
    done = run("verify", "-", "--certificate", "-", stdin=figure_10.read_text())
    assert json.loads(done.stdout)["claims"]
    assert "PROVED: " in done.stderr
    assert done.stderr.rstrip().endswith("checker CERTIFICATE SCHEDULE"), "the checker reads no pipe"
    certificate = tmp_path / "certificate.json"
    certificate.write_text(done.stdout)
    checker = [sys.executable, "-I", ROOT / "verify" / "checker", certificate, figure_10]
    assert subprocess.run(checker, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], ["design", "--list"], ["schema"]], ids=" ".join)
def test_full_disk_on_stdout_is_a_one_line_error(arguments, tmp_path):
    """Regression: a full disk was a traceback and exit code 1."""
    full, log = os.open("/dev/full", os.O_WRONLY), tmp_path / "log"
    with log.open("wb") as err:
        code = WARM.start("partreduce", *arguments, streams=[0, full, err.fileno()]).wait()
    os.close(full)
    assert (code, log.read_text()) == (74, "partreduce: standard output: cannot be written: No space left on device\n")


def test_design_writes_to_stdout_and_show_reads_stdin():
    made = run("design", "2x4", "--build", "prague-figure-10", "-o", "-")
    assert "Next: partreduce verify" not in made.stderr, "there is no file to verify"
    assert "prague-figure-10" in run("show", "-", stdin=made.stdout).stdout


def test_process_substitution_can_be_read(figure_10):
    slow = f"<(sleep 0.3; cat {figure_10})"
    assert shell(f"partreduce verify {slow}").returncode == 0


@pytest.mark.parametrize("document", [
    '{"format": "partreduce.cluster", "version": 1, "num_nodes": 4, "workers_per_node": 4}',
    "# YAML starts with a comment here\n{num_nodes: 4, workers_per_node: 4}",
], ids=["JSON", "YAML"])  # fmt: skip
def test_cluster_is_read_from_a_pipe(figure_10, document):
    reading, writing = os.pipe()
    os.write(writing, document.encode())
    os.close(writing)
    assert main(["simulate", str(figure_10), "--cluster", f"/dev/fd/{reading}"]) == 0
    os.close(reading)


def test_clusters_and_graphs_are_read_from_stdin(tmp_path):
    document = "format: partreduce.cluster\nversion: 1\nnum_nodes: 2\nworkers_per_node: 2\n"
    text = run("design", "-", "--build", "node-then-all", stdin=document).stdout
    assert json.loads(text)["cluster"] == {"num_nodes": 2, "workers_per_node": 2}
    imported = json.loads(run("import", "-", "-o", "-", stdin="0 1\n1 2\n").stdout)
    assert imported["format"] == "partreduce.schedule"


def test_stdout_accepts_one_document(figure_10):
    assert "one document" in run("design", "2x2", "--build", "ring", "-o", "-", "--json", code=2).stderr
    assert "has no ending" in run("show", figure_10, "-o", "-", code=2).stderr


def test_closed_descriptor_is_a_file_error():
    assert "cannot be read" in run("verify", "/dev/fd/987", code=74).stderr


@pytest.mark.processes
def test_workers_get_a_file_for_a_piped_schedule(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, partreduce\nprint(partreduce.load_schedule(os.environ['PARTREDUCE_SCHEDULE']).num_workers)\n"
    )
    text = run("design", "1x2", "--build", "allreduce").stdout
    done = run("run", "--schedule", "-", script, stdin=text)
    assert done.stdout.count("2") >= 2


# Exit codes and completion


def test_every_exit_code_is_in_the_help_and_the_docs():
    raised = {
        e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.PartreduceError)
    }
    everything = raised | {0, 2, __main__.INTERNAL, __main__.INTERRUPTED}
    assert everything == set(EXIT_CODES)
    text = (ROOT / "docs" / "command-line.md").read_text()
    words = " ".join(run("--help", COLUMNS="200").stdout.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in words
        assert f"| {code} |" in text


def complete(words, current):
    environment = {"_PARTREDUCE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(current)}
    return run(**environment).stdout.split()


def test_shell_completes_verbs_catalogue_names_and_choices():
    assert complete("partreduce me", 1) == ["measure"]
    assert complete("partreduce design 4x4 --build prague", 4) == ["prague-figure-10", "prague-inter-intra"]
    assert complete("partreduce design --list --build node-then", 4) == ["node-then-all"]
    assert complete("partreduce simulate a.json --algorithm h", 4) == ["hierarchical"]
    assert "per-worker" in complete("partreduce design 4x4 --data p", 4)


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_scripts_exist_for_common_shells(shell_name):
    script = run(_PARTREDUCE_COMPLETE=f"source_{shell_name}").stdout
    assert "_PARTREDUCE_COMPLETE=complete_" + shell_name in script
