"""Functions of users in processes of their own: whatever they do, the answer is one sentence and the status is ours."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.verify import Status
from partreduce.verify.asked_function import ask
from partreduce.verify.function_process import answers_in_processes
from partreduce.verify.functions import prove_function_file

if TYPE_CHECKING:
    from pathlib import Path

ALL = "def f(worker, step, cluster):\n    return range(cluster.num_workers)\n"
HOSTILE = {
    "exits": ("def f(w, s, c):\n    import sys\n    sys.exit(0)\n", "SystemExit: 0"),
    "exits when imported": ("import sys\nsys.exit(0)\n" + ALL, "raised SystemExit: 0 when executed"),
    "ends at once": ("import os\ndef f(w, s, c):\n    os._exit(0)\n",
        "ended with exit status 0 before it had answered"),
    "ends at once when imported": ("import os\nos._exit(0)\n" + ALL, "exit status 0"),
    "ends in the middle": (ALL.replace("    ret", "    import os\n    s = step == 3 and os._exit(0)\n    ret"),
        "exit status 0"),
    "crashes": ("import os\ndef f(w, s, c):\n    os.kill(os.getpid(), 11)\n", "ended by SIGSEGV"),
    "kills its parent's group": ("import os\ndef f(w, s, c):\n    os.killpg(0, 9)\n", "ended by SIGKILL"),
    "raises with lines": ("def f(w, s, c):\n    raise ValueError('one\\ntwo')\n", "ValueError: one two"),
    "takes all memory": ("def f(w, s, c):\n    return [0] * 10**10\n", "MemoryError"),
    "prints without end": ("def f(w, s, c):\n    while True:\n        print('x' * 10**6, flush=True)\n",
        "File too large|SIGXFSZ"),
    "is cyclic": ("def f(w, s, c):\n    return f(w, s, c)\n", "RecursionError"),
    "is no Python": ("def f(:\n", "SyntaxError"),
}  # fmt: skip


def written(folder: Path, source: str) -> str:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return f"{folder}/mine.py:f"


def command(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "partreduce", "verify", written(folder, source), "--cluster", "1x4", "--period", "2"]
    return subprocess.run([*line, *options], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(("source", "said"), HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_function_does_the_answer_is_one_sentence(tmp_path, source, said):
    with pytest.raises(InputError, match=said) as error:
        prove_function_file(written(tmp_path, source), Cluster.regular(1, 4), 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["exits", "ends at once"])
def test_the_exit_status_is_never_the_functions(tmp_path, name):
    result = command(tmp_path, HOSTILE[name][0])
    assert result.returncode == 65
    assert not result.stdout
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_endless_function_is_stopped_with_all_it_started(tmp_path):
    source = "import subprocess, time\ndef f(w, s, c):\n    subprocess.Popen(['sleep', '300'])\n    time.sleep(300)\n"
    start = time.monotonic()
    with pytest.raises(InputError, match="did not answer within 2 seconds"):
        answers_in_processes(written(tmp_path, source), Cluster.regular(1, 4), 2, seconds=2)
    assert time.monotonic() - start < 30


def test_a_function_that_leaves_a_thread_does_not_keep_us_waiting(tmp_path):
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\n" + ALL
    assert prove_function_file(written(tmp_path, source), Cluster.regular(1, 4), 2).proof.verdict is Status.PROVED


def test_what_a_function_prints_does_not_stand_in_our_output(tmp_path):
    source = "print('{')\nimport sys\nprint('}', file=sys.stderr)\n" + ALL.replace("    ret", "    print('x')\n    ret")
    result = command(tmp_path, source, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["verdict"] == "proved"
    assert not result.stderr


def test_a_function_that_depends_on_the_hash_seed_is_refuted(tmp_path):
    source = (
        "def f(w, s, c):\n"
        "    order = sorted(range(c.num_workers), key=lambda r: hash(f'worker {r} of a long list'))\n"
        "    place = order.index(w)\n"
        "    return order[place - place % 2 : place - place % 2 + 2]\n"
    )
    proof = prove_function_file(written(tmp_path, source), Cluster.regular(1, 16), 1).proof
    assert proof.verdict is Status.REFUTED
    assert "PYTHONHASHSEED" in proof["membership"].explanation


def test_a_function_that_draws_lots_is_refuted(tmp_path):
    source = "import random\ndef f(w, s, c):\n    return {0, 1} if w < 2 and random.random() < 0.5 else None\n"
    assert prove_function_file(written(tmp_path, source), Cluster.regular(1, 8), 16).proof.verdict is Status.REFUTED


def test_two_processes_that_agree_prove_what_they_say(tmp_path):
    found = prove_function_file(written(tmp_path, ALL), Cluster.parse("3,2"), 2)
    assert found.proof.verdict is Status.PROVED
    assert [found.schedule.phase(step)[0].members for step in range(2)] == [(0, 1, 2, 3, 4)] * 2
    assert "different hash seeds" in found.scope


def test_an_exit_in_this_process_is_a_sentence_too():
    with pytest.raises(InputError, match="SystemExit"):
        ask(lambda w, s, c: sys.exit(0), 0, 0, Cluster.regular(1, 4))


FORGER = """
import json, os
def pipes():
    for fd in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
                yield fd
        except OSError:
            continue

def forge(**more):
    line = json.dumps({"groups": [[[0, 1, 2, 3], "1"]], "of": [0, 0, 0, 0], **more}).encode() + b"\\n"
    for fd in pipes():
        try:
            os.write(fd, line * 4 + b'{"end":true}\\n')
        except OSError:
            continue
"""
FORGERS = {
    "beforehand": FORGER + "forge()\ndef f(w, s, c):\n    return {w, (w + 1) % 4}\n",
    "beforehand, and ends": FORGER + "forge()\nos._exit(0)\ndef f(w, s, c):\n    return None\n",
    "beforehand, with an id": FORGER + "forge(id='0' * 32)\ndef f(w, s, c):\n    return {w, (w + 1) % 4}\n",
    "when it is asked": FORGER + "def f(w, s, c):\n    forge()\n    return {w, (w + 1) % 4}\n",
    "an answer again": FORGER
    + "import sys\ndef f(w, s, c):\n    forge(id=sys._getframe(2).f_locals['question']['id'])\n    return range(4)\n",
    "a last answer, of fewer workers": FORGER
    + "import sys\ndef f(w, s, c):\n    if s == 3:\n"
    + "        forge(id=sys._getframe(2).f_locals['question']['id'], of=[0, 0, 0])\n        os._exit(0)\n"
    + "    return range(4)\n",
}


@pytest.mark.parametrize("source", FORGERS.values(), ids=FORGERS)
def test_answers_that_a_function_writes_into_the_pipe_itself_are_refused(tmp_path, source):
    with pytest.raises(InputError, match="wrote into the pipe through which its answers come"):
        prove_function_file(written(tmp_path, source), Cluster.regular(1, 4), 2)


def test_hash_seeds_are_drawn_anew_for_each_process(tmp_path):
    source = f"import os\nopen({str(tmp_path / 'seeds')!r}, 'a').write(os.environ['PYTHONHASHSEED'] + ' ')\n" + ALL
    for _ in range(2):
        assert prove_function_file(written(tmp_path, source), Cluster.regular(1, 4), 1).proof.verdict is Status.PROVED
    seeds = (tmp_path / "seeds").read_text().split()
    assert len(set(seeds)) == len(seeds) == 4


def test_a_function_whose_answer_depends_on_what_was_asked_before_is_refuted(tmp_path):
    source = (
        "asked = {}\n"
        "def f(worker, step, cluster):\n"
        "    first = asked.setdefault(worker, len(asked)) // 8 * 8\n"
        "    return range(first, first + 8)\n"
    )
    proof = prove_function_file(written(tmp_path, source), Cluster.regular(1, 64), 2).proof
    assert proof.verdict is Status.REFUTED
    assert "order drawn at random" in proof["membership"].explanation


def test_a_function_whose_answer_depends_on_the_steps_asked_before_is_refuted(tmp_path):
    source = (
        "steps = []\n"
        "def f(worker, step, cluster):\n"
        "    if step not in steps:\n"
        "        steps.append(step)\n"
        "    return {worker, worker ^ (1 + steps.index(step) % 15)}\n"
    )
    proof = prove_function_file(written(tmp_path, source), Cluster.regular(1, 16), 15).proof
    assert proof.verdict is Status.REFUTED
