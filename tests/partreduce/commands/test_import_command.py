"""`partreduce import` prints its notes and includes them in the JSON."""

import json

import numpy as np

from helpers.command_runs import runner
from partreduce.commands.import_ import command

run = runner(command)


def test_notes_are_printed_and_included_in_the_json(tmp_path):
    path, output = tmp_path / "w.npy", tmp_path / "s.json"
    np.save(path, np.array([[1, 2], [2, 1]], dtype=np.float32) / np.float32(3))
    shown = run(str(path), "-o", str(output))
    assert "Note: 4 weights were read as the nearest simple fraction" in " ".join(shown.output.split())
    facts = json.loads(run(str(path), "-o", str(output), "--json").stdout)
    assert "such as 1/3 for 0.3333333432674408" in facts["notes"][0]
    np.save(path, np.array([[1, 1], [1, 1]]) / 2)
    assert json.loads(run(str(path), "-o", str(output), "--json").stdout)["notes"] == []
