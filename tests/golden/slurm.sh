#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-2%3
#SBATCH --cpus-per-task=16
#SBATCH --error=<tmp>/out/.sweeps/default/.submitit/%A_%a/%A_%a_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=default
#SBATCH --mem=128GB
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=<tmp>/out/.sweeps/default/.submitit/%A_%a/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=long
#SBATCH --signal=USR2@120
#SBATCH --time=60

# setup
module load cuda

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output <tmp>/out/.sweeps/default/.submitit/%A_%a/%A_%a_%t_log.out --error <tmp>/out/.sweeps/default/.submitit/%A_%a/%A_%a_%t_log.err <python> -u -m submitit.core._submit <tmp>/out/.sweeps/default/.submitit/%j
