#!/usr/bin/env bash
# All that needs a CUDA GPU, in one command: testnet/gpu.sh [--cpu]
#   1. the tests of the libtorch backend on the device
#   2. training throughput of a gpt, tokens/s and MFU, beside the same loop in PyTorch
#   3. two peers that share the device and gossip
#   4. the codecs and the arithmetic of exchanges on the device, beside the host's: equal bits, then speed
# Needs an NVIDIA driver and a python3 with the CUDA build of torch 2.11. PEAK_TFLOPS is the device's
# dense bf16 peak (default 989: H100, H200). --cpu runs the same on the processor, small.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}

fail() { echo "error: $*" >&2 && exit 2; }

if [ "${1:-}" = --cpu ]; then
    device=cpu peak=0 precisions=(f32 bf16) shape=(2 2 64 64 2) steps=100
else
    device=cuda:0 peak=${PEAK_TFLOPS:-989} precisions=(bf16 f32 fp16) shape=(12 12 768 1024 16) steps=1000
    nvidia-smi -L >/dev/null 2>&1 || fail "no NVIDIA driver answers (nvidia-smi -L); --cpu runs the same on the processor"
    torch=$(python3 -c 'import os, sys, torch
if not torch.__version__.startswith("2.11.") or not torch.cuda.is_available(): sys.exit(1)
print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
        fail "python3 has no torch 2.11 that sees a GPU: pip install torch==2.11.0"
    export LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    nvidia-smi -L
fi

LIBTORCH=${LIBTORCH:-$(testnet/torch.sh fetch)}
export LIBTORCH LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-$LIBTORCH/lib}
testnet/torch.sh build

echo "== tests on $device"
DNODE_TEST_DEVICE=$device cargo test --release --locked -p dnode-torch --features torch -- --test-threads 1

echo "== throughput: gpt, layers heads width context batch = ${shape[*]}"
for precision in "${precisions[@]}"; do
    cargo bench --quiet --locked -p dnode-torch --features torch --bench gpt_throughput -- \
        "$device" "$precision" "${shape[@]}" "$peak"
    if python3 -c 'import torch' 2>/dev/null; then
        # Its own libraries, not those that the program was linked with.
        env -u LD_LIBRARY_PATH python3 testnet/gpu_loop.py "$device" "$precision" "${shape[@]}" "$peak"
    else
        echo "PyTorch  not measured: python3 has no torch"
    fi
done

echo "== two peers on $device"
work=$(mktemp -d)
peers=()
stop() { [ ${#peers[@]} -eq 0 ] || kill "${peers[@]}" 2>/dev/null || true; wait; rm -rf "$work"; }
trap stop EXIT
cat docs/*.md >"$work/text"
peer() {
    local name=$1
    shift
    "$target/release/dnode" join --no-mdns --listen /ip4/127.0.0.1/udp/0/quic-v1 --data-dir "$work/$name" \
        --model gpt --data text --data-path "$work/text" --steps "$steps" --device "$device" \
        --set node.backend=libtorch --set node.precision=bf16 --set run.batch=16 \
        --require-peers 1 "$@" >"$work/$name.out" 2>"$work/$name.log" &
    peers+=($!)
}
peer a
for _ in $(seq 600); do
    [ -s "$work/a/address" ] && break
    kill -0 "${peers[0]}" 2>/dev/null || break
    sleep 0.1
done
[ -s "$work/a/address" ] || { cat "$work/a.log" >&2 && exit 1; }
peer b --bootstrap "$(head -1 "$work/a/address")"
for index in 0 1; do
    wait "${peers[$index]}" || { cat "$work"/*.log >&2 && exit 1; }
done
peers=()
cat "$work/a.out" "$work/b.out"
for name in a b; do
    echo "$name: median samples/s with a neighbour: $(grep '"kind":"train"' "$work/$name/metrics.jsonl" |
        grep '"peers":1' | sed 's/.*"samples_per_s":\([0-9.]*\).*/\1/' | sort -n | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}')"
done

if [ "$device" = cpu ]; then
    echo "== codecs, on the processor"
    cargo bench --quiet --locked -p dnode-trainer --bench codec
else
    echo "== codecs, on $device"
    DNODE_TEST_DEVICE=$device cargo test --release --locked -p dnode-cuda -- --test-threads 1
    cargo bench --quiet --locked -p dnode-cuda --bench device_codec -- "$device"
fi
