#!/usr/bin/env bash
# Makes the runs of a result again, in the root of a checkout of the commit that the README names.
set -euo pipefail
scale="${2:-mini}"
threads="${3:-}"
[ "$scale" = full ] && threads=1
exec cepheid run galaxy_vae --scale "$scale" ${threads:+--set "threads=$threads"} --submitter cepheid --output "${1:?give an output folder, mini or full, and a number of threads}"
