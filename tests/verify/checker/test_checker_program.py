"""Input and output of the checker program: for every rule a file that violates it, and one that barely does not.

The program runs in this process; `test_checker_attacks.py` starts it as a subprocess.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.edges import HALF, PRODUCT, certificate, groups, over_all, rate
from helpers.read_edges import gap
from partreduce.verify import checker
from partreduce.verify.checker.refusal import REFUTED, UNREADABLE
from partreduce.verify.checker.strict_json import MAX_BYTES

RATE = rate("pivots", "1/4")


def answer(capsys, folder, one, other, *options):
    """Return exit status and output lines of the program; files are given as values or bytes."""
    paths = folder / "certificate.json", folder / "schedule.json"
    for path, content in zip(paths, (one, other), strict=True):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    status = checker.main([*options, *map(str, paths)])
    return status, capsys.readouterr().out.replace(f"{folder}/", "").splitlines()


SHA256 = certificate(HALF)["schedule_sha256"]
REFUSED = [
    ({"format": "certificate"}, 65, "certificate.format: must be one of ['partreduce.certificate']"),
    ({"version": 2}, 65, "certificate.version: must be one of [1]"),
    ({"schedule_sha256": "0" * 64}, 1,
        f'schedule_sha256 is "{"0" * 64}"; expected "{SHA256}": the certificate is of another schedule'),
    ({"num_workers": 3}, 1, "num_workers is 3; expected 2"),
    ({"period": 2}, 1, "period is 2; expected 1"),
    ({"more": 1}, 65, "certificate: has unknown keys ['more']"),
    ({"claims": {}}, 65, "certificate.claims: must be a list"),
    ({"claims": [1]}, 65, "claims[0]: must be an object"),
    ({"claims": [{"method": "pivots"}]}, 65, "claims[0] (None/pivots): is unknown or repeated"),
    ({"claims": [{"claim": "contraction", "method": 1}]}, 65, "claims[0] (contraction/1): is unknown or repeated"),
    ({"claims": [{"claim": "contraction/pivots", "squared": "1/4"}]}, 65,
        "claims[0] (contraction/pivots): is unknown or repeated"),
    ({"claims": [{"claim": "x" * 99}]}, 65, f"claims[0] ({'x' * 60}): is unknown or repeated"),
    ({"claims": [RATE, RATE]}, 65, "claims[1] (contraction/pivots): is unknown or repeated"),
    ({"claims": [RATE, rate("norms", "1/4")]}, 65, "claims[1] (contraction/norms): is unknown or repeated"),
    ({"claims": [PRODUCT]}, 1, 'claims[0] (exact-consensus/product) is "the product"; expected exactly the mean'),
    ({"schedule_sha256": "x" * 999}, 1,
        f'schedule_sha256 is "{"x" * 119}; expected "{SHA256}": the certificate is of another schedule'),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "status", "says"), REFUSED)
def test_malformed_certificates_are_refused(changed, status, says, tmp_path, capsys):
    assert answer(capsys, tmp_path, certificate(HALF, RATE), HALF)[0] == 0
    code, lines = answer(capsys, tmp_path, certificate(HALF, **changed), HALF)
    assert (code, lines[-1]) == (status, f"{'refuted' if status == 1 else 'unreadable'}: {says}")


def with_workers(text):
    """Return a certificate with `text` as the number of workers."""
    return json.dumps(certificate(HALF, RATE)).replace('"num_workers": 2', f'"num_workers": {text}').encode()


FILES = [
    (with_workers("2"), HALF, ""),
    (with_workers("2.0"), HALF, "certificate.json: 2.0: numbers are integers or fraction strings"),
    (with_workers("NaN"), HALF, "certificate.json: NaN: numbers are integers or fraction strings"),
    (with_workers("1e" + "9" * 99), HALF, f"certificate.json: 1e{'9' * 38}: numbers are integers or fraction strings"),
    (with_workers('2, "num_workers": 2'), HALF, "certificate.json: an object has a key twice"),
    (with_workers("true"), HALF, "certificate.json: true, false and null have no place here"),
    (certificate(over_all(sync={"delay": 1})), json.dumps(over_all(sync={"delay": 1.0})).encode(),
        "schedule.json: 1.0"),
    (certificate(HALF), json.dumps(HALF).replace('"name"', '"version": 1, "name"').encode(),
        "schedule.json: an object has"),
    (b"\xff", HALF, "certificate.json: is not JSON in UTF-8: 'utf-8' codec"),
    (b"[", HALF, "certificate.json: is not JSON in UTF-8: Expecting value: line 1"),
    (certificate(HALF), b"num_nodes: 2", "schedule.json: is not JSON in UTF-8: Expecting value: line 1"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "says"), FILES)
def test_files_are_parsed_strictly(one, other, says, tmp_path, capsys):
    status, lines = answer(capsys, tmp_path, one, other)
    assert status == (65 if says else 0)
    if says:
        assert lines[-1].startswith(f"unreadable: {says}")
        assert len(lines) == 1


def test_schedule_may_contain_booleans(tmp_path, capsys):
    raw = over_all(transport={"codec": "int8", "error_feedback": True})
    assert answer(capsys, tmp_path, certificate(raw), raw)[0] == 0


def test_file_size_limit_is_inclusive(tmp_path, capsys):
    large = json.dumps(HALF).encode().ljust(1000)
    for size, status in ((1000, 0), (999, 65)):
        code, lines = answer(capsys, tmp_path, certificate(HALF), large, "--max-bytes", str(size))
        assert code == status
    assert lines == ["unreadable: schedule.json: is larger than 999 bytes; --max-bytes raises the limit"]
    padded = json.dumps(certificate(HALF)).encode().ljust(1000)
    assert answer(capsys, tmp_path, padded, HALF, "--max-bytes", "1000")[0] == 0
    assert answer(capsys, tmp_path, padded, HALF, "--max-bytes", "999")[1] == [
        lines[0].replace("schedule", "certificate")
    ]
    assert MAX_BYTES == 2**27
    assert (UNREADABLE, REFUTED) == (65, 1)


@pytest.mark.parametrize("arguments", [
    [], ["one"], ["one", "two", "three"], ["--max-bytes", "1"], ["--max-bytes", "x", "one", "two"],
    ["--max-bytes", "-1", "one", "two"],
    ["--max-bytes", "1" * 16, "one", "two"], ["--more", "1", "one", "two"], ["--one", "two"],
])  # fmt: skip
def test_invalid_command_lines_print_the_usage(arguments, capsys):
    assert checker.main(arguments) == 65
    usage = "usage: python -I checker [--max-bytes N] certificate.json schedule.json"
    assert capsys.readouterr().out == f"unreadable: {usage}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_prints_the_usage(option, capsys):
    assert checker.main([option]) == 0
    assert capsys.readouterr().out.startswith("usage: python -I checker")


def test_missing_and_swapped_files_are_reported(tmp_path, capsys):
    assert checker.main([f"{tmp_path}/none.json", "x"]) == 65
    assert capsys.readouterr().out == f"unreadable: {tmp_path}/none.json: No such file or directory\n"
    one = json.dumps(certificate(HALF, RATE)).encode()
    status, lines = answer(capsys, tmp_path, one, one)
    assert status == 65
    assert lines[0].startswith("unreadable: schedule.json: is a certificate, which comes first: python -I checker")


@pytest.mark.parametrize("place", ["/dev/full", "a pipe without a reader"])
def test_failed_write_of_the_output_exits_with_65(place, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(certificate(HALF, RATE)))
    (tmp_path / "s.json").write_text(json.dumps(HALF))
    if place == "/dev/full":
        output, expected = os.open(place, os.O_WRONLY), "the answer cannot be written: No space left on device\n"
    else:
        (read, output), expected = os.pipe(), ""
        os.close(read)
    line = [sys.executable, "-I", str(Path(checker.__file__).parent), "c.json", "s.json"]
    done = subprocess.run(line, cwd=tmp_path, stdout=output, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(output)
    assert (done.returncode, done.stderr) == (65, expected)


def test_each_claim_is_flushed_once_confirmed(tmp_path, capsys, monkeypatch):
    """A user who stops a long check has the claims confirmed so far."""

    class Pipe(io.StringIO):
        seen = ()

        def flush(self):
            self.seen = (*self.seen, self.getvalue())

    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", pipe)
    answer(capsys, tmp_path, certificate(HALF, RATE), HALF)
    assert pipe.seen[0] == "contraction: proved\n"


def test_every_claim_and_fact_is_printed(tmp_path, capsys, monkeypatch):
    raw = groups(3, [[0, 1]])
    expected = [
        "conflict-free: fact",
        'doubly-stochastic: fact: smallest_weight "1/2"',
        "deadlock-free: follows from the protocol's rules",
        "end: follows from the protocol's rules: steps 3, behind -1",
    ]
    assert answer(capsys, tmp_path, certificate(HALF, RATE), HALF)[1][0] == "contraction: proved"
    status, lines = answer(capsys, tmp_path, certificate(raw), raw)
    assert (status, lines[:4]) == (0, expected)
    long = gap([(v, (v + 1) % 100) for v in range(100)], n=100)
    shown = [line for line in answer(capsys, tmp_path, certificate(long), long)[1] if line.startswith("queues")]
    assert shown == [f"queues: follows from the protocol's rules: update {json.dumps([100] * 100)[:200]}"]
    monkeypatch.setitem(checker.facts.__globals__, "MAX_WORK", 1)
    lines = answer(capsys, tmp_path, certificate(HALF), HALF)[1]
    assert "end: follows from the protocol's rules, but its numbers take too long to compute" in lines
