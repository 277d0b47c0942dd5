"""Commands and numbers of the pages, their links, and the strategy pages."""

import json
import re
import shlex
import shutil
from itertools import takewhile
from pathlib import Path
from statistics import median

import pytest
import typer.main

from benchmarks.lab.results import rows_by_setting
from docs import links
from helpers.command_runs import ran
from helpers.pages import blocks, commands
from helpers.readings import document
from helpers.warm import WARM
from partreduce import load_cluster, load_schedule, predict
from partreduce.__main__ import main
from partreduce.commands import HIDDEN, build_app
from partreduce.files import dump_schedule, parse_schedule
from partreduce.topo.document.strategies import KINDS
from partreduce.topo.document.writer import schedule_text
from partreduce.verify import checker
from partreduce.verify.prove import prove

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGES = [
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *(ROOT / f"docs/{name}.md" for name in ("concepts", "faq", "troubleshooting")),
]
SHOWN = {"frameworks": 1, "regions": 6, "slow-link": 3, "slow-worker": 4, "concepts": 7, "troubleshooting": 1}
"""Number of lines of output on each page; other pages show none."""
WORD_LIMITS = {"fault-tolerance": 900, "multi-node": 300}


def text_of(page):
    return (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


def plain(line):
    """Return a line with single spaces and with worker 0 in place of a range of workers, which depends on timing."""
    return re.sub(r"^\[\d+-\d+\] ", "[0] ", " ".join(line.split()))


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_of_a_page_print_the_shown_output_in_order(path, tmp_path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    found = commands(text)
    if not found:
        pytest.skip("shows no output")
    for example in (ROOT / "examples").iterdir():
        shutil.copy(example, tmp_path)
    scripts = [block for block in blocks(text, "python") if "sys.argv" in block]
    (tmp_path / "train.py").write_text(scripts[0] if scripts else (ROOT / "examples/train_digits.py").read_text())
    seen = 0
    for command, lines in found:
        monkeypatch.setenv("COLUMNS", "80" if command.startswith("partreduce design") else "200")
        done = WARM.run(*shlex.split(command), cwd=tmp_path)
        fails = any("Error: " in line for line in lines)
        assert (done.returncode != 0) == fails, (command, done.stderr)
        printed = iter([plain(line) for line in (done.stdout + done.stderr).splitlines()])
        expected = [plain(line) for line in lines if line.strip() not in {"", "…"}]
        assert [line for line in expected if line not in printed] == [], (command, done.stdout)
        seen += len(expected)
    assert seen == SHOWN.get(path.stem, 0)


def rows_of(name):
    """Return the rows of a lab result by contestant."""
    ((_, rows),) = rows_by_setting(json.loads((RESULTS / f"lab-{name}.json").read_text()))
    return {row.contestant: row for row in rows}


@pytest.mark.parametrize(("page", "label", "result", "contestant"), [
    ("slow-link", "PyTorch DDP", "front", "DDP"),
    ("slow-link", "PyTorch DDP, fp16 hook", "front", "DDP, float16"),
    ("slow-link", "PyTorch post-local SGD, every 32 steps", "front", "torch post-local SGD 32"),
    ("slow-link", "partreduce: inside nodes every step, all every 24", "front", "node-then-all 23, hierarchical"),
    ("slow-link", "the same, int8 between nodes", "front", "node-then-all 23, hierarchical, int8"),
    ("slow-link", "partreduce: DiLoCo with a node as a worker, every 15", "front", "planner's recommendation"),
    ("slow-worker", "All-Reduce, hierarchical, overlapped", "peers-slow", "hierarchical, overlapped"),
    ("slow-worker", "PyTorch hierarchical averager", "peers-slow", "torch averager 1/16"),
    ("slow-worker", "PyTorch DDP, fp16 hook", "peers-slow", "DDP, float16"),
    ("slow-worker", "partreduce: dynamic groups", "peers-slow", "generator, node-then-all 24"),
])  # fmt: skip
def test_seconds_of_a_guide_are_medians_of_the_runs(page, label, result, contestant):
    (line,) = (line for line in text_of(f"how-to/{page}").splitlines() if line.startswith(f"| {label} |"))
    found = rows_of(result)[contestant].reached(1)
    _, _, seconds, *runs = (cell.strip() for cell in line.split("|")[:-1])
    assert seconds == f"{median(found):.1f}"
    assert runs in ([], [str(len(found))])


def test_losses_of_the_regions_guide_match_the_results():
    page = (RESULTS / "long_regions.md").read_text(encoding="utf-8")
    measured = {cells[1].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) > 9}
    ours = "regions as replicas, outer steps every 15 in 4 bits, AdamW"
    for label, name in {
        "All-Reduce in every step": "All-Reduce in each step, AdamW",
        "a region is a replica, outer step every 15": ours,
        "every 30": "regions as replicas, outer steps every 30 in 4 bits, AdamW",
        "regions average parameters, outer step every 15": ours.replace("as replicas", "in each step"),
        "DiLoCo of single workers, every 15": "DiLoCo, every 15, 4 bits, AdamW",
    }.items():
        row = measured[name]
        fewer = row[7].strip().removesuffix("×")
        share = fewer if fewer == "1" else f"1/{fewer}"
        line = f"| {label} | {float(row[3].split()[0]):.2f} | {share} | {row[4].strip()} |"
        assert line in text_of("how-to/regions")
    longer, best = (
        float(measured[f"{name}, 1,170 steps"][3].split()[0]) for name in (ours, "All-Reduce in each step, AdamW")
    )
    assert f"ends at {round(longer - 1e-9, 2)} and All-Reduce at {best:.2f} (1 seed)" in text_of("how-to/regions")
    sgd = measured["regions in each step, outer steps every 30 in 4 bits"], measured["All-Reduce in each step"]
    assert "({:.2f} and {:.2f})".format(*(float(row[3].split()[0]) for row in sgd)) in text_of("how-to/regions")


def test_step_time_of_the_regions_guide_matches_the_simulator(tmp_path, capsys):
    guide = text_of("how-to/regions")
    cluster = ROOT / "examples/two-regions.yaml"
    assert cluster.read_text() in guide
    paths = [str(tmp_path / f"{name}.json") for name in ("ours", "whole")]
    for build, path in zip(("regions-diloco(every=20,lr=1,momentum=0.5)", "allreduce"), paths, strict=True):
        assert main(["design", str(cluster), "--build", build, "-o", path]) == 0
    capsys.readouterr()
    assert main(["simulate", *paths, "--cluster", str(cluster), "--json"]) == 0
    ours, whole = (row["seconds_per_step"] for row in json.loads(capsys.readouterr().out)["schedules"])
    assert f"A step takes {1000 * ours:.1f} ms; with All-Reduce in every step it takes {whole:.1f} s" in guide


def test_streaming_example_sends_a_quarter_and_region_examples_are_proved(capsys):
    path = ROOT / "examples/streaming.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    hardware = load_cluster(ROOT / "examples/two-regions.yaml").hardware
    late = predict(load_schedule(path), hardware)
    del raw["strategy"]["sync"], raw["strategy"]["payload"]["fragments"]
    assert late.peak_nic_bytes == predict(parse_schedule(json.dumps(raw)), hardware).peak_nic_bytes / 4
    for name in ("two-level", "streaming"):
        assert ran(capsys, ["verify", str(ROOT / f"examples/{name}.json")]).out.startswith("PROVED: ")


def test_python_code_of_the_faq_runs(tmp_path):
    (code,) = blocks(text_of("faq"), "python")
    done = WARM.run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_schedule(tmp_path / "schedule.json").num_workers == 16


@pytest.mark.parametrize("page", WORD_LIMITS)
def test_guide_stays_within_its_word_limit(page):
    text = re.sub(r"<!--.*?-->", "", text_of(f"how-to/{page}"))
    assert sum(bool(re.search(r"\w", word)) for word in text.split()) <= WORD_LIMITS[page]


# The check of links finds all broken links and no others


def test_no_link_of_the_repository_is_broken(capsys):
    assert links.main() == 0, capsys.readouterr().err


def test_broken_links_are_reported_with_file_and_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(links, "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# Two words, `three`\n\n# Again\n\n# Again\n")
    (tmp_path / "a.md").write_text(
        "[good](b.md#two-words-three) [second](b.md#again-1) [web](https://example.org/x) `[code](nowhere.md)`\n"
        "```\n[code](nowhere.md)\n```\n"
        "[gone](c.md) [no heading](b.md#again-2) [outside](../b.md)\n"
        "[by name][name]\n\n[name]: missing.md\n"
    )
    assert links.main() == 1
    errors = capsys.readouterr()
    assert errors.err.splitlines() == [
        "a.md:5: (c.md) there is no such file",
        "a.md:5: (b.md#again-2) there is no heading #again-2",
        "a.md:5: (../b.md) leads out of the repository",
        "a.md:8: (missing.md) there is no such file",
    ]
    assert errors.out == "6 links in 2 pages, 4 broken\n"


def test_code_blocks_open_with_a_language_the_site_parses():
    """With a second word the site takes the end of the block for the start of the next, and headings vanish."""
    opening = re.compile(r'^```(?:[\w-]*|[\w-]+ title="\w+")$')
    lines = [line for page in links.pages() for line in page.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line.startswith("```") and not opening.match(line)] == []


# The reference pages: every strategy on one template with a schedule that loads, and commands that exist


DOCS = ROOT / "docs"
STRATEGIES = sorted(path for path in (DOCS / "strategies").glob("*.md") if path.stem != "README")
HEADINGS = ["What it does", "When to use it", "JSON", "Guarantees", "Cost", "Limits", "Source"]
PROVED = {"proved", "follows from the rules"}
UNPROVED = ("dynamic_groups", "not proved")
"""As its page explains, a draw that filters slow workers has no proof of convergence."""
ALL_PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", STRATEGIES, ids=lambda page: page.stem)
def test_strategy_page_follows_the_template_and_is_listed(page):
    headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in headings if heading in HEADINGS] == HEADINGS
    assert f"({page.name})" in (DOCS / "strategies/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", STRATEGIES, ids=lambda page: page.stem)
def test_every_strategy_on_a_page_loads_and_is_not_refuted(page):
    shown = blocks(page.read_text(encoding="utf-8"), "json")
    assert shown
    for text in shown:
        strategy = json.loads(text)
        raw = document(strategy, 4, 2)
        schedule = parse_schedule(json.dumps(raw))
        assert json.loads(schedule_text(schedule)) == raw
        assert parse_schedule(schedule_text(schedule).encode()) == schedule
        proof = prove(schedule)
        assert proof.verdict in PROVED or (strategy["kind"], proof.verdict) == UNPROVED
        if schedule.is_mixing:
            certificate = json.loads(json.dumps(proof.certificate))
            confirmed = list(checker.check(certificate, checker.read_schedule(dump_schedule(schedule))))
            assert confirmed == [entry["claim"] for entry in certificate["claims"]] != []


def test_every_kind_has_a_page():
    texts = [text for page in STRATEGIES for text in blocks(page.read_text(encoding="utf-8"), "json")]
    assert {json.loads(text)["kind"] for text in texts} == set(KINDS)


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_their_options(page):
    verbs = typer.main.get_command(build_app()).commands
    text = page.read_text(encoding="utf-8")
    lines = [line.removeprefix("$ ") for block in blocks(text) for line in block.splitlines()]
    for line in lines:
        if not line.startswith("partreduce "):
            continue
        verb, *words = shlex.split(re.split(r" \| | <\(", line)[0], comments=True)[1:]
        assert verb in verbs or verb in HIDDEN
        if verb == "run":  # arguments after the script belong to the script
            words = takewhile(lambda word: not word.endswith(".py"), words)
        known = {name for parameter in verbs[verb].params for name in parameter.opts}
        assert [word for word in words if re.match(r"--?[a-z]", word) and word not in known] == [], line
