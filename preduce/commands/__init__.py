"""The verbs of the command line: one verb a file."""
