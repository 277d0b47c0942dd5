"""Checks of errors: one line, of which the words match."""

import pytest


def check_error(error, words, function, *arguments, **named):
    """The error of a call: one printable line that matches the words."""
    with pytest.raises(error, match=words) as caught:
        function(*arguments, **named)
    assert str(caught.value).isprintable()
    return caught.value
