#!/usr/bin/env bash
# Builds dnode and compares ways to train: testnet/scripts/compare.sh [EXPERIMENT.toml] [...]
# Without an experiment file: testnet/comparisons/default.toml, which needs --data FOLDER.
# All further arguments are those of `dnode-testnet compare`; see `testnet/scripts/compare.sh --help`.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/build.sh"

case "${1:-}" in
*.toml | --help) exec "$target/release/dnode-testnet" compare "$@" ;;
*) exec "$target/release/dnode-testnet" compare "$root/testnet/comparisons/default.toml" "$@" ;;
esac
