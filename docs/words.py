"""Checks names and prose for patterns that this project avoids; `make check` runs this.

    python -m docs.words [PATH ...]

Names are those of modules, functions, classes and variables; prose is docstrings, comments and strings of Python, and
Markdown without its code. Prints one line per finding and ends with 1 if there is one. `EXCLUDED` lists what is not
clean yet.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

from docs.links import CODE, FENCE, ROOT, blank

if TYPE_CHECKING:
    from collections.abc import Iterator

EXCLUDED = (
    "docs/conformance.md",  # written from the tests' table
    "docs/make_conformance.py",
    "docs/words.py",
)
"""Paths that are skipped, by how they begin, unless they are given by name."""

SPEECH = re.compile(
    r"_?(?:refuse|say|tell)(?:_\w+)?|_?(?:told|heard|said|hears|refused)(?:_\w+)?|\w+_(?:refusal|anew|beside|alike)"
)
SPOKEN_TEST = re.compile(
    r"test_(?:who|whoever|what|nobody|everybody)_\w+"
    r"|test_\w+_(?:goes_on|go_on|went_on|is_told|are_told|nobody|everybody|whoever|anew|alike)(?:_\w+)?"
)
PARTICIPLE = re.compile(
    r"_?(?:[a-z]{2,}[^e]ed|begun|brought|chosen|dealt|done|drawn|found|given|gone|held|kept|left|lent|lost|made|met"
    r"|seen|sent|shown|taken|told|went)",
    re.IGNORECASE,
)
EVENTS = re.compile(
    "Arrived|Broken|Computed|Confirmed|Connected|Crashed|Ended|Evicted|Given|Healed|Left|OneSided|Opened|Piggybacked"
    "|Received|Released|Restarted|Resumed|Summed|Terminated"
)
"""Classes that say what has happened: messages of protocols, and exceptions."""
STATUSES = re.compile("proved|refuted")
"""Makers of claims, by the status of the claim."""
SPOKEN_VARIABLE = re.compile("alike|asked|beaten|brought|came|laws|pretended|said|told|went|whom")
PREPOSITIONS = re.compile(
    "(?:about|above|alone|around|beside|between|beyond|inside|on|outside|over|through|under)(?:_.*)?"
)
PROSE = re.compile(
    r"\b(?:anew|beside|alike|whoever|nobody|(?:go|goes|going|went|gone) on(?! (?:a |the )?(?:CPU|GPU))"
    r"|(?:is|are|was|were) (?:told|said)|of (?:its|their) own(?= *[.,;:()])|at (?:its|their) best"
    r"|bears|dear(?:er|est)?)\b"
    r"|\bAs above\.",
    re.IGNORECASE,
)


def fault_of_name(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, *, is_method: bool) -> str | None:
    """What is wrong with the name of a function or class; None for a good one."""
    if SPEECH.fullmatch(node.name):
        return f"{node.name}: use check_, log_, warn_, send_, receive_ or format_"
    if SPOKEN_TEST.fullmatch(node.name):
        return f"{node.name}: name a test by subject, behavior and condition"
    usual = EVENTS if isinstance(node, ast.ClassDef) else STATUSES
    if PARTICIPLE.fullmatch(node.name) and not is_method and not usual.fullmatch(node.name):
        return f"{node.name}: name a function by a verb and its object, a class by a noun"
    return None


def findings(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Line number and fault of all findings in one file; `name` is its path in the repository."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        prose = [(1, CODE.sub(blank, FENCE.sub(blank, text)))]
    else:
        if PREPOSITIONS.fullmatch(path.stem):
            yield 1, f"{path.name}: name a module by a noun"
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        prose = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
        tree = ast.parse(text, name)
        methods = {id(item) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if (fault := fault_of_name(node, is_method=id(node) in methods)) is not None:
                    yield node.lineno, fault
            elif isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                variable = node.arg if isinstance(node, ast.arg) else node.id
                if SPOKEN_VARIABLE.fullmatch(variable):
                    yield node.lineno, f"{variable}: name a variable by a noun"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                prose.append((node.lineno, node.value))
    for line, part in prose:
        for match in PROSE.finditer(part):
            yield line + part.count("\n", 0, match.start()), f'"{match[0]}": write it in plain English'


def main(arguments: list[str]) -> int:
    """Check these paths, or all of the repository but `EXCLUDED`."""
    given = [Path(argument).resolve() for argument in arguments] or [ROOT]
    files = sorted({path for one in given for path in ([one] if one.is_file() else one.rglob("*.*"))})
    count = 0
    for path in files:
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        skipped = not arguments and name.startswith((*EXCLUDED, ".", "build/"))
        if path.suffix not in (".py", ".md") or skipped or path.resolve() != path:
            continue
        for line, fault in sorted(findings(path, name)):
            count += 1
            print(f"{name}:{line}: {fault}", file=sys.stderr)
    print(f"{count} names and words to change")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
