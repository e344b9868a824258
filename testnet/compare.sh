#!/usr/bin/env bash
# Builds dnode and compares ways to train: testnet/compare.sh [EXPERIMENT.toml] [...]
# Without an experiment file: testnet/comparisons/default.toml, which needs --data FOLDER.
# All further arguments are those of `dnode-testnet compare`; see `testnet/compare.sh --help`.
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
*.toml | --help) exec "$target/release/dnode-testnet" compare "$@" ;;
*) exec "$target/release/dnode-testnet" compare "$root/testnet/comparisons/default.toml" "$@" ;;
esac
