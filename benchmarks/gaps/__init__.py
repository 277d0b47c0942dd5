"""Gaps in virtual time: what graphs and settings of Hop's are worth, from 16 to 10,000 workers."""
