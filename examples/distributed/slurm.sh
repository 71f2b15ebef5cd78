#!/bin/bash
#SBATCH --job-name=vit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue

# The job starts one process for each GPU. A requeued job resumes at the last checkpoint. JAX reads the environment
# variables that SLURM sets. PyTorch reads the ones that torchrun would set, so this script sets them.
export KERAS_BACKEND=${KERAS_BACKEND:-jax}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

train='keras-vit train --recipe finetune --data photos --out "$SLURM_SUBMIT_DIR/run" --distribution data'
if [ "$KERAS_BACKEND" = torch ]; then
    train="RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID WORLD_SIZE=\$SLURM_NTASKS $train"
fi
srun bash -c "$train"
