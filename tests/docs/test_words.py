"""The check of names and words finds what is planted, and nothing in what is clean."""

import pytest

from docs import words

CLEAN = '''"""Average the parameters of a group."""


class Received:
    """A message."""


def check_group(group):
    """Return the group; it continues with its own data."""
    return group  # a step is done
'''


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ("def refuse_group(group): ...\n", "refuse_group: use check_"),
        ("class Group:\n    def _tell(self): ...\n", "_tell: use check_"),
        ("def group_refusal(group): ...\n", "group_refusal: use check_"),
        ("def dealt(order): ...\n", "dealt: name a function by a verb"),
        ("class Averaged: ...\n", "Averaged: name a function by a verb"),
        ('"""A worker of its own."""\n', '"of its own"'),
        ("x = 1  # nobody waits\n", '"nobody"'),
        ('raise ValueError(f"{1} goes on")\n', '"goes on"'),
    ],
)
def test_what_is_planted_is_found_with_its_line(planted, expected, tmp_path, capsys):
    (tmp_path / "planted.py").write_text(CLEAN + planted, encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    line = CLEAN.count("\n") + 1 + planted.startswith("class Group")
    assert capsys.readouterr().err.startswith(f"planted.py:{line}: {expected}")


def test_a_preposition_as_a_module_and_a_word_on_a_page_are_found(tmp_path, capsys):
    (tmp_path / "over_ssh.py").write_text(CLEAN, encoding="utf-8")
    (tmp_path / "page.md").write_text("Workers\nare told.\n\n```\nanew\n```\n", encoding="utf-8")
    assert words.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "over_ssh.py:1: over_ssh.py: name a module by a noun",
        'page.md:2: "are told": write it in plain English',
    ]


def test_clean_files_pass(tmp_path, capsys):
    (tmp_path / "clean.py").write_text(CLEAN, encoding="utf-8")
    (tmp_path / "clean.md").write_text("Survivors continue, `anew` or not.\n", encoding="utf-8")
    assert words.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 names and words to change\n"


def test_the_repository_is_clean_but_for_what_is_excluded(capsys):
    assert words.main([]) == 0, capsys.readouterr().err
