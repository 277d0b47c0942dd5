"""Write tests/verify/checker/guards.md: every inequality and premise of the checker, and the test that guards it.

python docs/make_guards.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "verify" / "checker" / "guards.md"
HEAD = """# What guards the checker

Every inequality and every premise on which a claim of the [checker](../../../docs/certificates.md) rests, with data
that is *just* true and data that is just false: one unit too good, one edge too few, one class that diverges.

This page is written by `python docs/make_guards.py`. Rows of [edges.py](../../helpers/edges.py) are tried both ways by
[test_checker_edges.py][edges]. Those of [read_edges.py](../../helpers/read_edges.py) are tried on the loader too, by
[test_checker_inputs.py][read]. A test holds the page to them. Small changes of the checker's code are to be
noticed by these tests ([mutants](../../../benchmarks/results/mutants.md) says how many are).

In addition:

* from where on rounded factors, forms and pivots accept; that no covariance, state, form or weights confirm a bound
  below the metric, a rate below the second eigenvalue or too small an error: [test_checker_numbers.py][numbers];
* what is read and refused is what the loader reads and refuses, with the same hash:
  [test_checker_inputs.py][read];
* every number of every fact is what independent simulations, counts and eigenvalues say: [test_facts.py][facts];
* bounds of gaps are what every interleaving attains: [test_bounds.py][gaps];
* hostile files and wrong arguments end in one line: [test_checker_attacks.py][attacks],
  [test_checker_program.py][program];
* entries and schedules that are changed at random: [test_certificate_mutations.py][random], and
  `python -m benchmarks.forgery`.

[edges]: ../../../tests/verify/checker/test_checker_edges.py
[numbers]: ../../../tests/verify/checker/test_checker_numbers.py
[read]: ../../../tests/verify/checker/test_checker_inputs.py
[facts]: ../../../tests/verify/checker/test_facts.py
[gaps]: ../../../tests/verify/gaps/test_bounds.py
[attacks]: ../../../tests/verify/checker/test_checker_attacks.py
[program]: ../../../tests/verify/checker/test_checker_program.py
[random]: ../../../tests/verify/checker/test_certificate_mutations.py

"""


def page() -> str:
    """The text of the page."""
    from helpers.edges import EDGES
    from helpers.read_edges import READ_EDGES

    edges = [*EDGES, *READ_EDGES]
    parts = [HEAD]
    for file in dict.fromkeys(edge.file for edge in edges):
        parts.append(
            f"## [{file}](../../../partreduce/verify/checker/{file})\n\n"
            "| it asks | what is just false is refused with |\n|---|---|\n"
        )
        parts += [
            f"| {edge.rule} | {edge.says.replace('|', ' ').replace('[', chr(92) + '[')} |\n"
            for edge in edges
            if edge.file == file
        ]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    PAGE.write_text(page(), encoding="utf-8")
