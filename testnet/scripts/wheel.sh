#!/usr/bin/env bash
# Builds the wheel of the Python package, module and command, for every Python from 3.9 on:
#   testnet/scripts/wheel.sh [FOLDER]        puts it there, else into dist/
# Its tag says the oldest glibc whose symbols it needs; a build on an older system is for more systems.
# PYTHON is the interpreter; maturin must be on the PATH (pip install maturin).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-$root/dist}
if ! command -v maturin >/dev/null; then
    echo "error: maturin is not on the PATH: pip install maturin" >&2
    exit 1
fi
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
maturin build --release --locked --interpreter "${PYTHON:-python3}" \
    --manifest-path "$root/node/python/Cargo.toml" --out "$built"
mkdir -p "$folder"
for wheel in "$built"/*.whl; do
    mv "$wheel" "$folder"
    echo "$folder/${wheel##*/}: $(stat -c %s "$folder/${wheel##*/}") bytes"
done
