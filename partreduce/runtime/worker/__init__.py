"""Run one worker: its agreement with the others, its steps and rounds, its collective points, its end."""
