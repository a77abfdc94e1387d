#!/usr/bin/env bash
# Makes the runs of a result again, in the root of a checkout of the commit that the README names.
set -euo pipefail
exec cepheid run galaxy_shape --scale "${2:-mini}" --submitter cepheid --output "${1:?give an output folder, and mini or full}"
