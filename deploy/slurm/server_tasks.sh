#!/bin/sh
# The last SERVERS tasks are servers, all others workers: 32 workers and 2 servers.
#
#   sbatch deploy/slurm/server_tasks.sh python train.py
#   SERVERS=4 sbatch --ntasks=36 deploy/slurm/server_tasks.sh python train.py
#SBATCH --job-name=byteps
#SBATCH --ntasks=34
exec bpslaunch --server-tasks "${SERVERS:-2}" -- "$@"
