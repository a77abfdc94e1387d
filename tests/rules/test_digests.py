"""The seed that follows from what runs."""

import hashlib
import os
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.rules.digests import derive_seed
from cepheid.rules.installation import ROOT


def test_the_seed_is_the_first_four_bytes_of_the_digest() -> None:
    digest = hashlib.sha256(b"d\ns\nc\n3").digest()
    assert derive_seed("d", "s", "c", 3) == int.from_bytes(digest[:4], "big")


def test_the_seed_never_changes_between_versions() -> None:
    """The value is that of ``printf 'definition\\nsystem\\ncode\\n0' | sha256sum | cut -c1-8``."""
    assert derive_seed("definition", "system", "code", 0) == 0xDA16CACA


def test_the_rule_book_says_how_to_derive_it() -> None:
    rule = (ROOT / "rules" / "training.md").read_text("utf-8").split("### T15")[1].split("###")[0]
    (command,) = re.findall(r"^    (printf .*)$", rule, re.MULTILINE)
    variables = {"definition": "d1", "system": "my box", "code": "c0de", "k": "4"}
    printed = subprocess.run(
        ["sh", "-c", command], env={**os.environ, **variables}, capture_output=True, check=True
    )
    assert int(printed.stdout, 16) == derive_seed("d1", "my box", "c0de", 4)


def test_runs_differ() -> None:
    assert len({derive_seed("d", "s", "c", index) for index in range(100)}) == 100


@given(st.text(st.characters(codec=None)), st.integers(0, 2**40))
def test_any_name_gives_a_seed_of_32_bits(system: str, index: int) -> None:
    assert 0 <= derive_seed("d", system, "c", index) < 2**32


def test_a_negative_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="run index"):
        derive_seed("d", "s", "c", -1)
