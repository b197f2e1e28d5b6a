#!/bin/sh
# A job of eight workers on each of four nodes, and a server beside the workers of each.
#
#   sbatch deploy/slurm/job.sh python train.py
#
# A job that Slurm requeues (a lost node, preemption) starts anew and adds to the same output; SLURM_RESTART_COUNT tells
# the trainer, which has its checkpoints.
#SBATCH --job-name=byteps
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
exec bpslaunch -- "$@"
