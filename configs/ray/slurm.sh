#!/bin/bash
# A run on the nodes of a SLURM job: sbatch slurm.sh
#
# It starts Ray on every node, and the run on the first. If the job is requeued, the same command continues from the last
# whole step, since the folder of the runs is on the shared file system.
#SBATCH --job-name=mcp-rl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{ print $1 }')
port=$((6379 + SLURM_JOB_ID % 1000))
tools='{"mcp_rl_tools": 1}'
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_TMPDIR
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
RAY_TMPDIR=$(mktemp -d /tmp/ray-XXXXXX)

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address "$address" --port "$port" --resources "$tools" --block &
sleep 10
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --nodelist="$node" \
        bash -c 'mkdir -p "$RAY_TMPDIR"; exec ray start --address "$0" --resources "$1" --block' "$address:$port" "$tools" &
done

mcp-rl train --backend ray --ray-address "$address:$port" --server mcp_calculator --output-dir "$SLURM_SUBMIT_DIR/runs" \
    ray.engines=$((${#nodes[@]} - 1)) ray.tool_nodes="${#nodes[@]}" ray.waits_for_nodes=true ray.patience=300
