"""Forged certificates: changed entries, valid entries of changed schedules, and entries of other schedules."""
