#!/usr/bin/env bash
# Makes the runs of a result again, in the root of a checkout of the commit that the README names.
set -euo pipefail
scale="${2:-mini}"
exec cepheid run galaxy_generation --scale "$scale" --submitter cepheid --output "${1:?give an output folder, and mini or full}"
