"""What only `cepheid run` needs: its console, its live check, and the plan of `--dry-run`."""
