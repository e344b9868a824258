#!/usr/bin/env bash
# Builds dnode and runs a swarm of real processes on this machine: testnet/run.sh [-n 4] [...]
# All arguments are those of `dnode-testnet run`; see `testnet/run.sh --help`.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

echo "building dnode (the first time takes a few minutes)"
if ! output=$(cargo build --manifest-path "$root/Cargo.toml" --release --quiet \
    -p dnode -p dnode-testnet 2>&1); then
    printf '%s\n' "$output" >&2
    exit 1
fi

case "${1:-}" in
report) exec "$target/release/dnode-testnet" "$@" ;;
*) exec "$target/release/dnode-testnet" run "$@" ;;
esac
