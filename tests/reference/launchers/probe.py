"""A small program that launchers start: each rank prints where it is, as one line of JSON.

With ``--meet`` the ranks meet first, and the first rank prints for all.
"""

import json
import os
import sys
from dataclasses import asdict

from cepheid.reference.machine.placement import end_rank, find_address, find_placement
from cepheid.tools.console.program import run_tool


def main(argv: object = None) -> int:
    """Print the place of this rank, or those of all ranks after they have met."""
    place = find_placement()
    if "--meet" not in sys.argv:
        line = {**asdict(place), "address": find_address(place, os.environ)}
        os.write(1, f"{json.dumps(line)}\n".encode())  # in one piece, beside the other ranks
        return 0
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as ranks:
        for line in ranks.all_gather_object({**asdict(place), "node_size": ranks.ranks_per_node}):
            if ranks.is_first:
                print(json.dumps(line), flush=True)
    return end_rank(0)


if __name__ == "__main__":
    run_tool(main)
