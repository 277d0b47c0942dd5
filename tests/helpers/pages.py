"""The blocks of code of a page, and its commands with the lines that they are shown to print."""

import re


def blocks(text, language=None):
    """All blocks of code, or those in one language; "" for those that name none."""
    found = re.findall(r'^```(\w*)(?: title="\w+")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    return [code for name, code in found if language in {None, name}]


def commands(text):
    """Every command behind a `$` with the lines that it is shown to print."""
    pieces = [piece for block in blocks(text, "") for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    listed = (piece.strip("\n").splitlines() for piece in pieces)
    return [(command.partition("  #")[0].strip(), lines) for command, *lines in listed]
