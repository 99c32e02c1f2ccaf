#!/bin/bash

# Parameters
#SBATCH --error=<tmp>/out/.sweeps/default/.submitit/%j/%j_0_log.err
#SBATCH --job-name=default
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=<tmp>/out/.sweeps/default/.submitit/%j/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --time=720

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output <tmp>/out/.sweeps/default/.submitit/%j/%j_%t_log.out --error <tmp>/out/.sweeps/default/.submitit/%j/%j_%t_log.err <python> -u -m submitit.core._submit <tmp>/out/.sweeps/default/.submitit/%j
