"""What tests of all rooms use: wrong calls, in one line each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cepheid.rules.errors import UserError


def assert_raises(
    error: type[Exception], message: str, call: Callable[..., object], *arguments: Any, **named: Any
) -> None:
    """Require that the call raises the error, and that its message has the pattern ``message``."""
    with pytest.raises(error, match=message):
        call(*arguments, **named)


assert_refused = partial(assert_raises, UserError)
"""Require that the call is a mistake of the user, and that its message has this pattern."""
