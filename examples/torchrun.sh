#!/bin/sh
# Train on one machine with plain torchrun. Usage: examples/torchrun.sh [WORKERS]
set -eu
workers=${1:-8}
schedule=$(mktemp)
trap 'rm -f "$schedule"' EXIT
partreduce design "2x$((workers / 2))" --build allreduce -o "$schedule"
partreduce verify "$schedule"
OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node "$workers" "$(dirname "$0")/train_digits.py" "$schedule"
