"""Cepheid: benchmarks, rules, reference, compliance and tools under one name.

In a checkout the rooms are links to the folders beside this one; in an installation they lie here.
Where a checkout has no links (Windows, an archive unpacked without them) their folders are found
beside this one, too.
"""

from pathlib import Path

if not (Path(__file__).parent / "rules").is_dir():
    __path__.append(str(Path(__file__).resolve().parent.parent))
