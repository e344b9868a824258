#!/usr/bin/env bash
# What gossip costs a training step: one peer trains alone, then with a second one that joins it,
# then beside a process that trains without gossip (what sharing the machine costs by itself).
# Prints the median samples/s of the first peer in each phase. Usage: testnet/scripts/overhead.sh MNIST_FOLDER
set -euo pipefail
. "$(dirname "$0")/timed.sh"
flags+=(--set node.linger=\"1s\")

# The values of samples_per_s in the train lines of a peer that match a pattern.
rates() { grep '"kind":"train"' "$1/metrics.jsonl" | grep "$2" | sed 's/.*"samples_per_s":\([0-9.]*\).*/\1/'; }
median() { sort -n | awk '{v[NR]=$1} END {printf "%.0f (of %d)", v[int((NR+1)/2)], NR}'; }
reached() { [ -s "$1/metrics.jsonl" ] && [ "$(rates "$1" "$2" | wc -l)" -ge "$3" ]; }
await() { for _ in $(seq 1200); do "$@" && return; read -rt 0.1 <> <(:) || true; done; echo "timed out: $*" >&2; exit 1; }

"$dnode" "${flags[@]}" --data-dir a --steps 1000000 >a.log 2>&1 &
first=$!
await reached a '"peers":0' 40
"$dnode" "${flags[@]}" --data-dir b --steps 1000000 --bootstrap "$(head -1 a/address)" >b.log 2>&1 &
await reached a '"peers":1' 60
kill -TERM $first %2; wait $first %2 || true

"$dnode" "${flags[@]}" --data-dir c --steps 1000000 --rule none >c.log 2>&1 &
await reached c '"peers":0' 10
"$dnode" "${flags[@]}" --data-dir d --steps 1000000 --rule none >d.log 2>&1 &
await reached d '"peers":0' 60

echo "alone:                         $(rates a '"peers":0' | median) samples/s"
echo "with gossip, two peers:        $(rates a '"peers":1' | median) samples/s"
echo "without gossip, two processes: $(rates d '"peers":0' | median) samples/s"
