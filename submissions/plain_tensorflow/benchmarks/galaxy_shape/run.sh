#!/usr/bin/env bash
# The five runs, each in a process of its own:  run.sh DATA [OUTPUT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
output=${2:-$here/../..}
for run in 0 1 2 3 4; do
    [ -e "$output/results/2x-amd-epyc-plain-tensorflow/galaxy_shape-mini-closed/result_$run.txt" ] && continue
    python3 -B "$here/train.py" --data "$1" --system 2x-amd-epyc-plain-tensorflow --output "$output" --run "$run"
done
