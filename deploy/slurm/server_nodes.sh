#!/bin/sh
# A heterogeneous job: the first component has the workers, the second the servers, on nodes with CPUs alone.
#
#   sbatch deploy/slurm/server_nodes.sh python train.py
#SBATCH --job-name=byteps
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH hetjob
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
exec bpslaunch -- "$@"
