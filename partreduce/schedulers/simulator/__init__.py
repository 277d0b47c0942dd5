"""Simulate schedules and protocols in virtual time, without torch, threads or waiting."""
