#!/usr/bin/env bash
# Tokens per second of llamas of 1, 10 and 100 million parameters, embedded engine and PyTorch by turns, one
# thread and two. Usage: testnet/scripts/llama_speed.sh [PYTHON], a Python with torch 2 (python3).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${1:-python3}
cd "$root"
cargo bench --quiet -p dnode-trainer --bench llama --locked --no-run
for size in 1M 10M 100M; do
    cargo bench --quiet -p dnode-trainer --bench llama --locked -- "$size"
    for threads in 1 2; do
        "$python" testnet/pytorch/speed.py "$threads" f32 "$size"
        "$python" testnet/pytorch/speed.py "$threads" bf16 "$size"
    done
done
