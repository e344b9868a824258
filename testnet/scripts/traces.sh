#!/usr/bin/env bash
# Prints the hash of the trace of some three hundred simulations, a line each: what has changed no
# decision of the core has changed no line.
#
#     testnet/scripts/traces.sh > before.txt   # at one commit, after `cargo build --release --bin sim`
#     testnet/scripts/traces.sh > after.txt    # at another
#     diff before.txt after.txt
set -euo pipefail
cd "$(dirname "$0")/../.."
sim=${SIM:-target/release/sim}

hashes() { # what to call it, arguments of sim...
  local name=$1
  shift
  "$sim" "$@" --hash --jobs 2 --keep-going | sed -nE "s|^(seed [0-9]+): .*trace ([0-9a-f]+).*|$name \1 \2|p" | sort -V
}

hashes random --seeds 0..200
hashes delta-set --delta-set --seeds 0..40
hashes paced --paced --seeds 0..60
for scenario in testnet/scenarios/*.toml; do
  case $scenario in *ten-thousand*) continue ;; esac # takes minutes
  hashes "$(basename "$scenario" .toml)" --scenario "$scenario" --seeds 0..3
done
