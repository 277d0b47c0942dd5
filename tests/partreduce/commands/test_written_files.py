"""Files are written atomically, by one function."""

import ast
import os
from pathlib import Path

import pytest

import partreduce
from helpers.refusals import check_error
from partreduce.__main__ import main
from partreduce.errors import FileError
from partreduce.topo.document import writer
from partreduce.topo.document.writer import write_file

ROOT = Path(partreduce.__file__).parent.parent
PACKAGES = sorted(path for path in (ROOT / "partreduce").iterdir() if path.name != "runtime")
PLACES = [*PACKAGES, ROOT / "partreduce" / "runtime" / "profile"]
"""The rest of the runtime writes sockets, pipes, keys and logs."""
ALLOWED = {
    "partreduce/topo/document/writer.py": "the helper itself",
    "partreduce/__main__.py": "a fresh file for a traceback, and the null device",
    "partreduce/streams.py": "the null device",
    "partreduce/demo/stages.py": "the output of the workers, while they write it",
}


def find_writes(path):
    """Yield the lines that open a file for writing without `write_file`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        texts = [a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
        words = [text for text in texts if isinstance(text, str) and set(text) <= set("rwaxbt+")]
        modes = [text for text in words if set(text) & set("wax+")]
        saves = name == "savefig" and not (node.args and getattr(node.args[0], "id", "") == "buffer")
        if (
            (name in {"write_text", "write_bytes"} and isinstance(function, ast.Attribute))
            or saves
            or (name in {"open", "fdopen"} and modes)
        ):
            yield node.lineno


def test_files_are_written_by_the_atomic_writer_only():
    for place in PLACES:
        for path in [place] if place.suffix == ".py" else sorted(place.rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            assert name in ALLOWED or not list(find_writes(path)), name


@pytest.mark.parametrize("arguments", [
    ["show", "SCHEDULE", "-o", "out.png"],
    ["show", "SCHEDULE", "-o", "out.html"],
    ["verify", "SCHEDULE", "--certificate", "out.json"],
    ["simulate", "SCHEDULE", "-o", "out.json"],
    ["schema", "-o", "out.json"],
    ["simulate", "SCHEDULE", "-o", "out.svg"],
])  # fmt: skip
def test_failed_write_keeps_the_previous_file(arguments, tmp_path, monkeypatch):
    schedule = tmp_path / "schedule.json"
    assert main(["design", "2x2", "--build", "prague-figure-10", "-o", str(schedule)]) == 0
    target = tmp_path / arguments[-1]
    target.write_text("old")
    seen = []

    def full(descriptor):
        seen.append(target.read_text())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.os, "fsync", full)
    words = [{"SCHEDULE": str(schedule), arguments[-1]: str(target)}.get(word, word) for word in arguments]
    assert main(words) == 74
    assert seen == ["old"]
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([arguments[-1], "schedule.json"])


def test_file_descriptors_are_written_directly():
    reading, writing = os.pipe()
    write_file(f"/dev/fd/{writing}", b"text")
    os.close(writing)
    assert os.read(reading, 10) == b"text"
    os.close(reading)
    check_error(FileError, f"/dev/fd/{reading}: cannot be written", write_file, f"/dev/fd/{reading}", b"text")


@pytest.mark.parametrize(("arguments", "option"), [
    (["verify", "in.json", "--certificate", "in.json"], "--certificate"),
    (["simulate", "in.json", "-o", "./in.json"], "--output"),
    (["design", "in.yaml", "--build", "ring", "-o", "in.yaml"], "--output"),
    (["simulate", "in.json", "in.json", "-o", "link.png"], "--output"),
])  # fmt: skip
def test_command_rejects_an_output_that_is_also_an_input(arguments, option, tmp_path, monkeypatch, capsys):
    """Regression: a certificate replaced its schedule, with exit code 0."""
    monkeypatch.chdir(tmp_path)
    partreduce.write_schedule("in.json", partreduce.design("2x2", build="allreduce"))
    Path("in.yaml").write_text("format: partreduce.cluster\nversion: 1\nnum_nodes: 2\nworkers_per_node: 2\n")
    Path("link.png").symlink_to("in.json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(
        f"partreduce: Invalid value for {option} {arguments[-1].removeprefix('./')}: is a file that"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
