"""Check for misuse that would silently train wrongly; each check is one row of `table.TABLE`."""
