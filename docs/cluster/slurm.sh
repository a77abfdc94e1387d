#!/usr/bin/env bash
# sbatch docs/cluster/slurm.sh submissions/acme/benchmarks/resnet50/run.sh
# One task per GPU (per socket where there are none); edit the five lines for your cluster.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -euo pipefail

MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" # where the ranks meet
MASTER_PORT="$((10000 + SLURM_JOB_ID % 20000))"                              # another one for each job
export MASTER_ADDR MASTER_PORT

# One rank that dies must end the others, which would wait for it.
exec srun --kill-on-bad-exit=1 "$@"
