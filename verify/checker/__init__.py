"""The checker: confirms a certificate, trusting neither its author nor the prover.

    python -I verify/checker certificate.json schedule.json      what is claimed about a schedule
    python -I verify/checker certificate.json                    iteration gaps, about a graph that the file names

It needs this folder, which may be copied and renamed, and Python 3.11; it shares no code with the prover, and computes
with integers and fractions only. Where to read:

* `claims/`: one claim a file, the theorem on top and the check below. This is what a mathematician confirms.
* `gaps/`: the same for iteration gaps and queue capacities.
* `period.py`: one period as a matrix, and why a rule of any size is a few small ones. `linear_algebra.py`: pivots, and
  a factor rounded to integers; `definite.py`: the same for forms. `steady_state.py`: what workers add between two
  averagings. `meetings.py`: after how many rounds everybody has met everybody.
* `schedule.py`: what a schedule file says, and its hash; `axes.py`: how late averages are, and how payload travels;
  `tables.py`: which tables go their own way, and who owns their rows.
  `certificate.py`: which check decides which entry.
* `strict_json.py`, `refusal.py`, `program.py`: strict reading, the two ways to say no, and the command line.

From Python: `check(certificate, read_schedule(document))` yields the claims that hold, and raises Refusal at the first
entry that does not; `check_gaps(certificate)` is the other one.
"""

from __future__ import annotations

from .certificate import CLAIMS, check
from .gaps import check_gaps
from .program import main
from .refusal import Refusal
from .schedule import read_schedule

__all__ = ["CLAIMS", "Refusal", "check", "check_gaps", "main", "read_schedule"]
