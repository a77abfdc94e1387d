#!/usr/bin/env bash
# Makes the runs of this result again, in the root of a checkout of the commit that the README names.
set -euo pipefail
exec cepheid run resnet50 --scale mini --submitter cepheid --output "${1:?give an output folder}"
