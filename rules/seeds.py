"""Seeds that nobody can shop for (rule T15): what runs, where, and which run it is decide."""

import hashlib


def derived_seed(definition_digest: str, system: str, code_digest: str, index: int) -> int:
    """The seed of run ``index`` of a result, from 0 to 2**32 − 1.

    It is the first four bytes, most significant first, of the SHA-256 of the four fields joined by
    line feeds (UTF-8, the index in decimal). Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"run index is {index}, expected 0 or more")
    text = "\n".join((definition_digest, system, code_digest, str(index)))
    # A log may hold any string, lone surrogates too: they must give a seed, not an exception.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big")
