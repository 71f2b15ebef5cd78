#!/bin/bash
#SBATCH --job-name=vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue

# One process for each GPU; a job that is requeued goes on at the last checkpoint.
export KERAS_BACKEND=${KERAS_BACKEND:-jax}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

srun keras-vit train --recipe finetune --data photos --out "$SLURM_SUBMIT_DIR/run" --distribution data
