"""Forge certificates, and check that the checker confirms no false claim.

    python -m benchmarks.forgery --attempts 100000 --seed 1

Prints, by kind of claim and way of forging, attempts and how many were accepted because true. Exit code 1 if a false
claim was confirmed or a valid certificate rejected; each is printed.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.forgery.campaign import WAYS, run
from benchmarks.kit import parser, table


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--attempts", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    start = time.process_time()
    tally = run(arguments.attempts, arguments.seed)
    rows = [
        [kind, *(f"{tally.attempts[way, kind]:,} ({tally.accepted[way, kind]:,} true)" for way in WAYS)]
        for kind in sorted({kind for _, kind in tally.attempts})
    ]
    print(table(["claim", *WAYS], rows))
    accepted, seconds = sum(tally.accepted.values()), time.process_time() - start
    print(
        f"\n{sum(tally.attempts.values()):,} attempts with seed {arguments.seed}: {accepted:,} accepted and true, "
        f"{len(tally.false)} accepted and false; {tally.honest} honest certificates, {len(tally.refused_honest)} of "
        f"them refused; {seconds:.0f} s of processor time"
    )
    for line in tally.refused_honest:
        print(f"HONEST AND REFUSED: {line}")
    for way, kind, entry, raw in tally.false[:20]:
        print(f"FALSE AND CONFIRMED: {way}: {kind}: {json.dumps(entry)[:400]}\n  of {json.dumps(raw)[:2000]}")
    return int(bool(tally.false or tally.refused_honest))


if __name__ == "__main__":
    sys.exit(main())
