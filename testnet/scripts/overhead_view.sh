#!/usr/bin/env bash
# What page and metrics cost a training step: one peer on one core of its own, in turns with and
# without them; both are asked once a second, as an open page does, from another core.
# Prints the seconds of each run and the quartiles of the ratios of its pairs, and, since those move by
# more than what is looked for, the time that the page's thread computes.
# Usage: testnet/scripts/overhead_view.sh MNIST_FOLDER [RUNS]
set -euo pipefail
. "$(dirname "$0")/timed.sh"
runs=${2:-15}
flags+=(--steps 1000 --set node.linger=\"0s\")
page=127.0.0.1:17878 metrics=127.0.0.1:17879

ask() { curl --silent --fail --max-time 1 "$@" >/dev/null || true; }
watch() { while sleep 1; do ask "http://$page/api/state" "http://$page/api/history" "http://$metrics/metrics"; done; }
# Seconds of training of one run, by its own clock: from its first line of metrics to its last.
run() {
    rm -rf peer
    taskset -c 1 "$dnode" "${flags[@]}" --data-dir peer "$@" >peer.log 2>&1 &
    local peer=$! thread
    while sleep 0.5 && kill -0 $peer 2>/dev/null; do
        thread=$(grep -ls dnode-view /proc/$peer/task/*/comm) && cut -d' ' -f1 "${thread%comm}schedstat" >computed
    done || true
    wait $peer
    grep '"kind":"train"' peer/metrics.jsonl | sed 's/.*"time_s":\([0-9.]*\).*/\1/' |
        awk 'NR == 1 {first = $1} {last = $1} END {printf "%.3f\n", last - first}'
}

taskset -c 0 bash -c "$(declare -f ask watch); page=$page metrics=$metrics; watch" &
for _ in $(seq "$runs"); do
    run >>without
    run --ui "$page" --metrics "$metrics" >>with
    cat computed >>view
done
echo "without, s: $(sort -n without | xargs)"
echo "with, s:    $(sort -n with | xargs)"
paste with without | awk '{print 100 * ($1 / $2 - 1)}' | sort -n | awk '{v[NR] = $1}
    END {printf "with against without, %%: %+.2f (%+.2f, %+.2f)\n", v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 1) / 4)]}'
paste view with | awk '{computed += $1 / 1e9; trained += $2}
    END {printf "the page computes %.3f %% of the time of training\n", 100 * computed / trained}'
