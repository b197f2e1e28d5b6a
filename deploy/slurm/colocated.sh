#!/bin/sh
# Servers on nodes of their own, and one more beside the workers of each node: the links of all nodes carry a part. The
# shares are the optimum for links of the same rate (docs/running.md, "Servers on worker hosts").
#
#   sbatch deploy/slurm/colocated.sh python train.py
#SBATCH --job-name=byteps
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH hetjob
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
exec bpslaunch --colocate -- "$@"
