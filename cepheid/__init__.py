"""Cepheid: a benchmark suite for deep learning with rules, reference and compliance tools.

In a checkout each room of this package is a symbolic link to the folder beside this one; in an
installation the rooms lie here.
"""

import sys
from pathlib import Path

if not (Path(__file__).parent / "rules").is_dir():
    print(
        "cepheid: this checkout has no symbolic links, so the rooms under cepheid/ are missing; "
        "`git config core.symlinks true && git checkout -- cepheid` makes them, "
        "and an installed Cepheid needs none",
        file=sys.stderr,
    )
    raise SystemExit(2)
