"""The reference pages: every strategy on one template with a schedule that loads, and commands that exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from partreduce.commands import HIDDEN, build_app
from partreduce.files import dump_schedule, parse_schedule
from partreduce.topo.document.writer import schedule_text
from partreduce.verify import checker
from partreduce.verify.prove import prove

DOCS = Path(__file__).parents[2] / "docs"
STRATEGIES = sorted(path for path in (DOCS / "strategies").glob("*.md") if path.stem != "README")
HEADINGS = ["What it does", "When to use it", "JSON", "Guarantees", "Cost", "Limits", "Source"]
CLUSTER = {"num_nodes": 4, "workers_per_node": 2}
PROVED = {"proved", "follows from the rules"}
UNPROVED = ("dynamic_groups", "not proved")
"""Draws that a filter of slow workers decides have no proof of convergence, as the page says."""
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if "how-to" not in path.parts]


def blocks(page, language):
    """The texts of a page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", STRATEGIES, ids=lambda page: page.stem)
def test_a_strategy_page_follows_the_template_and_is_listed(page):
    headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in headings if heading in HEADINGS] == HEADINGS
    assert f"({page.name})" in (DOCS / "strategies/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", STRATEGIES, ids=lambda page: page.stem)
def test_every_strategy_that_a_page_shows_loads_and_is_not_refuted(page):
    shown = blocks(page, "json")
    assert shown
    for text in shown:
        strategy = json.loads(text)
        document = {"format": "partreduce.schedule", "version": 1, "name": "shown", "cluster": CLUSTER}
        schedule = parse_schedule(json.dumps({**document, "strategy": strategy}).encode())
        assert json.loads(schedule_text(schedule)) == {**document, "strategy": strategy}
        assert parse_schedule(schedule_text(schedule).encode()) == schedule
        proof = prove(schedule)
        assert proof.verdict in PROVED or (strategy["kind"], proof.verdict) == UNPROVED
        if schedule.is_mixing:
            certificate = json.loads(json.dumps(proof.certificate))
            confirmed = list(checker.check(certificate, checker.read_schedule(dump_schedule(schedule))))
            assert confirmed == [entry["claim"] for entry in certificate["claims"]] != []


def test_every_kind_has_a_page_that_shows_it():
    from partreduce.topo.document.strategies import KINDS

    assert {json.loads(text)["kind"] for page in STRATEGIES for text in blocks(page, "json")} == set(KINDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_commands_of_a_page_exist_with_their_options(page):
    verbs = typer.main.get_command(build_app()).commands
    lines = [line.removeprefix("$ ") for block in blocks(page, r"\w*") for line in block.splitlines()]
    for line in lines:
        if not line.startswith("partreduce "):
            continue
        verb, *words = shlex.split(re.split(r" \| | <\(", line)[0], comments=True)[1:]
        assert verb in verbs or verb in HIDDEN
        if verb == "run":
            continue  # what follows the script is the script's
        known = {name for parameter in verbs[verb].params for name in parameter.opts}
        assert [word for word in words if re.match(r"--?[a-z]", word) and word not in known] == [], line
