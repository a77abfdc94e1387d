#!/usr/bin/env bash
# docs/cluster/hosts.sh "node1 node2" 8 submissions/acme/benchmarks/resnet50/run.sh
# This starts the given number of ranks on each machine of the list. ssh must reach the machines without
# a password, and this checkout must be at the same path on each. The ranks meet on the first machine.
# Ctrl-C here ends them all. BIND=cores gives each rank of a machine its own part of the processors.
set -euo pipefail
read -r -a hosts <<< "$1"
ranks="$2"
shift 2
SSH="${SSH:-ssh -tt -o BatchMode=yes}" # -tt: the ranks end with the connection
MASTER_ADDR="${hosts[0]}"
MASTER_PORT="${MASTER_PORT:-29400}"
command="$(printf '%q ' "$@")"
pids=()
for node in "${!hosts[@]}"; do
  for local in $(seq 0 "$((ranks - 1))"); do
    environment="RANK=$((node * ranks + local)) LOCAL_RANK=$local LOCAL_WORLD_SIZE=$ranks"
    environment+=" WORLD_SIZE=$((${#hosts[@]} * ranks)) MASTER_ADDR=$MASTER_ADDR MASTER_PORT=$MASTER_PORT"
    bound=""
    count="\$(getconf _NPROCESSORS_ONLN)" # of that machine; nproc obeys OMP_NUM_THREADS
    [ "${BIND:-none}" = cores ] && bound="taskset -c \$(($count * $local / $ranks))-\$(($count * ($local + 1) / $ranks - 1))"
    $SSH "${hosts[$node]}" "cd $(printf '%q' "$PWD") && env $environment $bound $command" < /dev/null &
    pids+=("$!")
  done
done
trap 'kill "${pids[@]}" 2> /dev/null || true' INT TERM EXIT
code=0
for _ in "${pids[@]}"; do
  wait -n || { code=$?; break; } # a rank that failed ends the others
done
exit "$code"
