#!/bin/sh
# srun starts the workers itself; byteps.init() finds the others, rank 0 starts the coordinator beside itself, and the
# first task of each node a server. --kill-on-bad-exit: Slurm ends all tasks when one fails.
#
#   sbatch deploy/slurm/tasks.sh python train.py
#SBATCH --job-name=byteps
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
exec srun --kill-on-bad-exit=1 "$@"
