"""The guard: checks for misuse that would train wrongly in silence; each is one row of `table.TABLE`."""
