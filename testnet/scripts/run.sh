#!/usr/bin/env bash
# Builds dnode and runs a swarm of real processes on this machine: testnet/scripts/run.sh [-n 4] [...]
# All arguments are those of `dnode-testnet run`; see `testnet/scripts/run.sh --help`.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/build.sh"

case "${1:-}" in
report) exec "$target/release/dnode-testnet" "$@" ;;
*) exec "$target/release/dnode-testnet" run "$@" ;;
esac
