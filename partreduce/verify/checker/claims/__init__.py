"""One claim, or one family of claims, a file: its theorem above, the check below.

Each check has the signature `(schedule, entry, place)`: it returns if the data of the entry prove the claim for the
schedule, and raises a Refusal otherwise. `place` is where the entry stands, for the sentence of a refusal.
"""
