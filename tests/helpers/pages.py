"""The blocks of code on a page of the docs, and its commands with the output shown."""

import re


def blocks(text, language=None):
    """Return all blocks of code, or those in one language ("" for blocks that name none)."""
    found = re.findall(r'^```(\w*)(?: title="\w+")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    return [code for name, code in found if language in {None, name}]


def commands(text):
    """Return every command after a `$`, with the lines of output shown below it."""
    pieces = [piece for block in blocks(text, "") for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    listed = (piece.strip("\n").splitlines() for piece in pieces)
    return [(command.partition("  #")[0].strip(), lines) for command, *lines in listed]
