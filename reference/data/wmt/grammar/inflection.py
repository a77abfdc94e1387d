"""German articles and endings by case, for m, f, n and the plural in this order."""

from collections.abc import Mapping, Sequence

CASES = ("nominative", "accusative", "dative", "genitive")
PLURAL = "p"  # instead of a gender: German has one set of endings for all plurals
CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "bei dem": "beim"}

DEFINITE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
    "genitive": ("des", "der", "des", "der"),
}
RELATIVE = {**DEFINITE, "dative": ("dem", "der", "dem", "denen")}
LIKE_DIESER = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("es", "er", "es", "er"),
}
LIKE_EIN = {**LIKE_DIESER, "nominative": ("", "e", "", "e"), "accusative": ("en", "e", "", "e")}
WEAK_ADJECTIVE = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en",) * 4,
    "genitive": ("en",) * 4,
}
MIXED_ADJECTIVE = {
    **WEAK_ADJECTIVE,
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
}
STRONG_PLURAL_ADJECTIVE = {"nominative": "e", "accusative": "e", "dative": "en", "genitive": "er"}


def find_ending(table: Mapping[str, Sequence[str]], case: str, gender: str) -> str:
    """Return the entry of a table for a case and for a gender or PLURAL."""
    return table[case]["mfnp".index(gender)]
