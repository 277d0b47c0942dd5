"""A check of error messages: one line that matches a pattern."""

import pytest


def check_error(error, words, function, *arguments, **named):
    """Check that a call raises this error with one printable line that matches `words`."""
    with pytest.raises(error, match=words) as caught:
        function(*arguments, **named)
    assert str(caught.value).isprintable()
    return caught.value
