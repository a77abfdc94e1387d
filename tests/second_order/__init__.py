"""What tests of the library share: wrong uses, in one line each."""

from functools import partial

from cepheid.second_order.options import UseError
from tests import assert_raises

assert_misused = partial(assert_raises, UseError)
"""Require that the call is a wrong use, and that its message has this pattern."""
