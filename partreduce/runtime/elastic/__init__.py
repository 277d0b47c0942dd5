"""Membership: who of a run goes on after losses, and what those who are left run."""
