#!/usr/bin/env bash
# The runs of $benchmark at $scale scale; what is given here is given to `cepheid run` too.
# Several processes: start this line of several ranks instead, see docs/cluster in the repository.
set -euo pipefail
here="$$(cd "$$(dirname "$$0")" && pwd)"
submission="$$(dirname "$$(dirname "$$here")")"
cd "$$submission/../.."
PATH="$$PWD/.venv/bin:$$PATH"
exec cepheid run $benchmark --scale $scale --division $division --task "$$here/task.py" \
  --system "$$submission/systems/$system.json" --output "$$submission" "$$@"
