#!/usr/bin/env bash
# sbatch docs/cluster/slurm.sh submissions/acme/benchmarks/resnet50/run.sh
# This starts one task per GPU, or per socket without GPUs, and binds each to a NUMA node (BIND=cores, sockets,
# none: sbatch --export=ALL,BIND=cores …). Edit the five lines for your cluster.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -euo pipefail

MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" # the ranks meet there
MASTER_PORT="$((10000 + SLURM_JOB_ID % 20000))"                              # each job has its own
export MASTER_ADDR MASTER_PORT

# A rank that dies must end the others, because they would wait for it.
exec srun --kill-on-bad-exit=1 --cpu-bind="${BIND:-ldoms}" "$@"
