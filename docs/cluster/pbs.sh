#!/usr/bin/env bash
# qsub -v RUN=submissions/acme/benchmarks/resnet50/run.sh docs/cluster/pbs.sh
# This starts one rank per GPU, or per socket without GPUs, by Open MPI, and binds each to a NUMA node
# (BIND=core, socket, none: -v RUN=…,BIND=core). Edit the three lines for your cluster. With MPICH or
# Intel MPI the last line is: exec mpiexec -n "$ranks" -ppn "$((ranks / nodes))" -bind-to "${BIND:-numa}" "${command[@]}"
#PBS -l select=2:ncpus=64:mpiprocs=8:ngpus=8
#PBS -l place=scatter:excl
#PBS -l walltime=04:00:00
set -euo pipefail
cd "$PBS_O_WORKDIR"

MASTER_ADDR="$(head -n 1 "$PBS_NODEFILE")" # the ranks meet where the first one runs
number="${PBS_JOBID%%[!0-9]*}"             # of 1234.server and of 1234[5].server
MASTER_PORT="$((10000 + number % 20000))"  # each job has its own
export MASTER_ADDR MASTER_PORT

# The file has a line for each rank. Every node gets as many ranks, one after the other.
ranks="$(wc -l < "$PBS_NODEFILE")"
nodes="$(sort -u "$PBS_NODEFILE" | wc -l)"
read -r -a command <<< "$RUN"
exec mpirun -np "$ranks" --map-by "ppr:$((ranks / nodes)):node" --bind-to "${BIND:-numa}" \
  -x MASTER_ADDR -x MASTER_PORT "${command[@]}"
