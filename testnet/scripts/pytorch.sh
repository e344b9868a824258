#!/usr/bin/env bash
# Has PyTorch compute the held-out losses of dnode's checkpoints, from their metadata alone:
#   testnet/scripts/pytorch.sh [FOLDER]
# Needs a python3 with torch, of which a build for the CPU is enough (Debian: apt-get install python3-torch),
# and safetensors. PYTHON names the interpreter.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/build.sh"

python=
for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    if "$candidate" -c 'import torch, safetensors' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "testnet/scripts/pytorch.sh: no python3 with torch and safetensors; PYTHON names one" >&2
    exit 2
fi
folder=${1:-$(mktemp -d)}
"$python" "$root/testnet/pytorch/check.py" "$target/release/dnode" "$root/trainer/data/digits.bin.gz" "$folder"
