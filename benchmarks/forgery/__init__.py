"""Forged certificates: corrupted entries, honest ones of corrupted schedules, and entries of other schedules."""
