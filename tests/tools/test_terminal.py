"""Tables of a report as a terminal shows them."""

import math

from cepheid.reference.run.report import Table
from cepheid.tools.console.terminal import format_table

TABLE = Table(
    "Bias",
    (
        {"quantity": "m", "e1": -0.11239, "e1_error": 0.0075, "galaxies": 12},
        {"quantity": "c", "e1": 0.00321, "e1_error": 0.00067, "galaxies": 12},
        {"quantity": "nothing", "e1": math.nan, "e1_error": math.inf, "galaxies": 0},
    ),
    "a note",
)


def test_standard_errors_have_two_digits() -> None:
    text = format_table(TABLE)
    assert "-0.1124 ± 0.0075" in text
    assert "0.00321 ± 0.00067" in text
    assert "a note" in text
    assert "e1_error" not in text
