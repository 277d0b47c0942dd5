"""What the benchmark of recovery reads from its workers."""

import json

from benchmarks import recovery


def test_a_diary_holds_the_present_process_s_steps_and_every_discarded_one_and_no_half_line(tmp_path):
    path = tmp_path / "0.jsonl"
    diary = recovery.Diary(path)
    assert diary.read().pids == []
    lines = [["pid", 7], [0, 1.0], ["discarded", 2.0], [1, 3.0], ["pid", 8], [5, 9.0]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "[6, 9.")
    diary.read()
    assert (diary.pids, diary.steps, diary.discarded) == ([7, 8], [(5, 9.0)], [2.0])
    with path.open("a") as file:
        file.write("5]\n")
    assert diary.read().steps == [(5, 9.0), (6, 9.5)]
