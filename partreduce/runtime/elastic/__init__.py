"""Which workers are members of a run, and what those who are left run after a failure."""
