#!/bin/sh
# Train on one machine with plain torchrun. Usage: examples/torchrun.sh [WORKERS]
set -eu
workers=${1:-8}
here=$(dirname "$0")
partreduce design "2x$((workers / 2))" --build allreduce -o /tmp/schedule-$$.json
trap 'rm -f /tmp/schedule-$$.json' EXIT
partreduce verify /tmp/schedule-$$.json
OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node "$workers" "$here/train_digits.py" /tmp/schedule-$$.json
