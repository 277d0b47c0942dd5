"""The check of links finds what is broken, and nothing else."""

import re

from docs import links


def test_every_link_of_the_repository_leads_somewhere(capsys):
    assert links.main() == 0, capsys.readouterr().err


def test_a_broken_link_is_named_with_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(links, "ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# Two words, `three`\n\n# Again\n\n# Again\n")
    (tmp_path / "a.md").write_text(
        "[good](b.md#two-words-three) [second](b.md#again-1) [web](https://example.org/x) `[code](nowhere.md)`\n"
        "```\n[code](nowhere.md)\n```\n"
        "[gone](c.md) [no heading](b.md#again-2) [outside](../b.md)\n"
        "[by name][name]\n\n[name]: missing.md\n"
    )
    assert links.main() == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "a.md:5: (c.md) there is no such file",
        "a.md:5: (b.md#again-2) there is no heading #again-2",
        "a.md:5: (../b.md) leads out of the repository",
        "a.md:8: (missing.md) there is no such file",
    ]
    assert said.out == "6 links in 2 pages, 4 broken\n"


def test_blocks_of_code_open_as_the_site_reads_them():
    """A second bare word, and the site takes the block's end for the beginning of the next: headings vanish."""
    opening = re.compile(r'^```(?:[\w-]*|[\w-]+ title="\w+")$')
    lines = [line for page in links.pages() for line in page.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line.startswith("```") and not opening.match(line)] == []
