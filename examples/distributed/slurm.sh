#!/bin/bash
# A run on four hosts of a Slurm cluster, one process on each, which computes on all GPUs of its host:
#
#   sbatch examples/distributed/slurm.sh run.yaml
#
# The program, the run file, the model, the data and output_dir are on a file system that all hosts share.
#SBATCH --job-name=millrace
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=1
#SBATCH --mem=0
#SBATCH --time=24:00:00
# Slurm sends SIGUSR1 to the ranks 10 minutes before the time is up: they save a checkpoint and end. Submitted again, the
# job continues from it. The time is more than a step and a save take.
#SBATCH --signal=USR1@600
#SBATCH --requeue
set -eu

# Open MPI: --mpi=pmix. MPICH: --mpi=pmi2. `srun --mpi=list` prints what the cluster has. --kill-on-bad-exit ends the
# other ranks as soon as one fails.
srun --mpi=pmix --cpu-bind=none --kill-on-bad-exit=1 millrace train "$@"
