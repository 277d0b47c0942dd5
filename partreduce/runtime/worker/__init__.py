"""One worker's part of a run: what it agrees on with the others, its steps and rounds, its meetings, its end."""
