"""The checker: confirms a certificate, trusting neither its author nor the prover.

    python -I verify/checker certificate.json schedule.json

It needs this folder, which may be copied and renamed, and Python 3.11; it imports nothing of the prover, which takes
the numbers of facts and the classes of failures from it, and computes with integers and fractions only. Where to read:

* `claims/`: one claim a file, the theorem on top and below it the check of the witness that a certificate brings. This
  is what a mathematician confirms.
* `facts/`: what follows from the schedule alone, with its proof; computed here and in no certificate. What follows from
  the rules that a program is assumed to obey is told apart.
* `period.py`: one period as a matrix, and why a rule of any size is a few small ones. `linear_algebra.py`: pivots, and
  a factor rounded to integers; `definite.py`: the same for forms. `steady_state.py`: what workers add between two
  averagings. `meetings.py`: after how many rounds everybody has met everybody. `events.py`: who waits for whom where
  workers keep a gap.
* `schedule.py`: what a schedule file says, and its hash; `axes.py`, `kept_gap.py`, `quorum.py`: who waits for whom, how
  late averages are, and how payload travels; `tables.py`: which tables go their own way, and who owns their rows.
  `certificate.py`: which check decides which entry.
* `failure_plans.py`, `failure_classes.py`: what survivors run when workers fail, and which failures are equivalent.
* `strict_json.py`, `refusal.py`, `program.py`: strict reading, the two ways to say no, and the command line.

From Python: `check(certificate, read_schedule(document))` yields the claims that hold, and raises Refusal at the first
entry that does not; `facts(read_schedule(document))` yields the rest.
"""

from __future__ import annotations

from .certificate import CLAIMS, check
from .facts import Fact, facts
from .program import main
from .refusal import Refusal
from .schedule import read_schedule

__all__ = ["CLAIMS", "Fact", "Refusal", "check", "facts", "main", "read_schedule"]
