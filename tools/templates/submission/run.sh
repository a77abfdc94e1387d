#!/usr/bin/env bash
# The runs of $benchmark at $scale scale; what is given here is given to `cepheid run` too.
# Several processes: torchrun --nproc-per-node 8 --no-python <this file>, or srun, see docs/cluster.
set -euo pipefail
here="$$(cd "$$(dirname "$$0")" && pwd)"
submission="$$(dirname "$$(dirname "$$here")")"
cd "$$submission/../.."
PATH="$$PWD/.venv/bin:$$PATH"
exec cepheid run $benchmark --scale $scale --division $division --task "$$here/task.py" \
  --system "$$submission/systems/$system.json" --output "$$submission" "$$@"
