"""DiLoCo schedules as settings of MaxText, torchft and torchtitan: what is written means the same when it is read."""

from __future__ import annotations

import json
import random
import tomllib

import pytest

from partreduce.__main__ import main
from partreduce.schedulers.imports import export_schedule, import_schedule
from partreduce.schedulers.imports.diloco_export import formats
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.writer import write_schedule
from partreduce.topo.errors import InputError, MissingFeatureError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce, Lockstep, Merge, Outer, Routes
from partreduce.topo.strategies.axes import Codec, How, Late

SUFFIX = {"maxtext": ".yaml", "torchft": ".json", "torchtitan": ".toml"}
PUBLISHED = Outer(lr="0.7", momentum="0.9", nesterov=True)


def schedule(pace=20, fragments=1, steps=0, alpha="0", outer=PUBLISHED, **options):
    when = Merge(steps=steps, alpha=alpha) if steps or alpha != "0" else Lockstep()
    what = Routes(outer=outer, fragments=fragments)
    given = {"pace": pace, "when": when, "what": what} | options
    return Schedule("s", Cluster.regular(4, 1), AllReduce(**given))


@pytest.mark.parametrize("program", formats())
@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_is_read_as_the_same_schedule(tmp_path, program, seed):
    draw = random.Random(seed)
    fragments = draw.choice([1, 2, 4])
    pace = fragments * draw.randint(2, 9)
    momentum = draw.choice(["0", "0.5", "0.9"])
    outer = Outer(lr=draw.choice(["0.3", "0.7", "1"]), momentum=momentum, nesterov=momentum != "0")
    steps = draw.randrange(pace // fragments)
    original = schedule(
        pace, fragments, steps, draw.choice(["0", "0.5"]), PUBLISHED if program == "torchtitan" else outer
    )
    if program == "maxtext" and fragments == 1 and original.strategy.takes_turns:
        with pytest.raises(MissingFeatureError, match="num_diloco_fragments"):
            export_schedule(original, program)
        return
    path = tmp_path / f"settings{SUFFIX[program]}"
    path.write_text(export_schedule(original, program))
    read = import_schedule(path, format=program)
    assert read.strategy == original.strategy
    assert read.num_workers == original.num_workers


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("maxtext", {"pace": 36, "fragments": 19}, "36 / 19 is rounded to 2"),
        ("maxtext", {"fragments": (("0.*",), ("1.*",))}, "its what.fragments"),
        ("maxtext", {"outer": Outer(lr="0.7", momentum="0.9")}, "its what.outer, which is outer SGD 0.7, momentum 0.9"),
        ("torchft", {"pace": 20, "fragments": 3}, "a multiple of the 3 fragments"),
        ("torchft", {"fragments": 4, "steps": 5}, "torchft asks for less than 20 / 4 steps"),
        ("torchft", {"alpha": "1/3"}, "its when, which is 0.333333 of its own"),
        ("torchtitan", {"outer": Outer(lr="0.5")}, "its what.outer, which is outer SGD 0.5"),
        ("torchtitan", {"how": How(codec=Codec.INT8)}, "its how.codec, which is int8"),
        ("torchft", {"pace": 1, "outer": Outer()}, "outer steps of all workers"),
        ("torchft", {"outer": Outer(), "when": Late()}, "its when, which is late"),
    ],
)
def test_what_a_program_cannot_do_is_refused_by_its_place(program, options, words):
    with pytest.raises(MissingFeatureError) as caught:
        export_schedule(schedule(**options), program)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_modules_of_fragments_keep_their_names_in_torchtitan(tmp_path):
    named = schedule(fragments=(("embed.*", "layers.0.*"), ("layers.1.*", "head.*")))
    text = export_schedule(named, "torchtitan")
    table = tomllib.loads(text)["fault_tolerance"]
    assert table["module_fqns_per_model_fragment"] == [["embed", "layers.0"], ["layers.1", "head"]]


def test_plain_averages_are_torchtitans_local_sgd():
    table = tomllib.loads(export_schedule(schedule(outer=Outer()), "torchtitan"))["fault_tolerance"]
    assert (table["semi_sync_method"], table["sync_steps"]) == ("local_sgd", 20)


def test_the_form_of_sums_is_left_to_the_program():
    assert json.loads(export_schedule(schedule(how=How(form="hierarchical")), "torchft"))["sync_every"] == 20


def test_an_unknown_program_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="maxtext, torchft, torchtitan"):
        export_schedule(schedule(), "torchfit")


def test_export_writes_a_file_that_import_reads(tmp_path, capsys):
    path, settings, back = tmp_path / "s.json", tmp_path / "settings.toml", tmp_path / "back.json"
    original = schedule(fragments=4, steps=2)
    write_schedule(path, original)
    assert main(["export", str(path), "--format", "torchtitan", "-o", str(settings)]) == 0
    assert main(["import", str(settings), "-o", str(back)]) == 0
    assert import_schedule(back).strategy == original.strategy
    capsys.readouterr()
    assert main(["export", str(path), "--format", "torchft"]) == 0
    assert json.loads(capsys.readouterr().out)["fragment_sync_delay"] == 2
    assert main(["export", str(path), "--format", "torchft", "--json"]) == 0
    assert json.loads(json.loads(capsys.readouterr().out)["text"])["sync_every"] == 20
