#!/usr/bin/env bash
# All that needs a CUDA GPU: testnet/scripts/gpu.sh [--cpu] [PART ...], all parts where none is named
#   tests       the libtorch backend, and the codecs and the arithmetic of exchanges, on the device
#   throughput  training of a gpt, tokens/s and MFU, beside the same loop in PyTorch
#   peers       samples/s of a peer alone, of two that share the device and gossip, of two that do not gossip
#   nccl        groups over NCCL: tests, then all-reduces of as many ranks as there are devices
#   codecs      the codecs of exchanges on the device and on the host, GB/s
# Needs an NVIDIA driver and a python3 with the CUDA build of torch 2.11. --cpu runs the same on the
# processor, small. A part that fails does not keep the others from running.
# PEAK_TFLOPS and PEAK_TFLOPS_F32 are the device's dense peaks in bf16 and in f32 without TF32 (default: 989
# and 67, of an H100 SXM or H200).
#
# testnet/scripts/gpu.sh pack FOLDER builds what the parts run into FOLDER, for a machine that has no Rust or no
# network: take it there and start FOLDER/gpu.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() { echo "error: $*" >&2 && exit 2; }

# Builds one target and puts its program into $bin: program NAME cargo arguments.
program() {
    local name=$1 built
    shift
    built=$(cargo "$@" --locked --message-format=json-render-diagnostics | python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin]
print(*[line["executable"] for line in lines if line.get("executable")], sep="\n")' | tail -1)
    strip -o "$bin/$name" "$built"
}

build() {
    cd "$here/../.."
    bin=$1
    mkdir -p "$bin"
    LIBTORCH=${LIBTORCH:-$(testnet/scripts/torch.sh fetch)}
    export LIBTORCH
    program dnode build --release -p dnode --features torch --bin dnode
    program torch-tests test --release --no-run -p dnode-torch --features torch --lib
    program parity-tests test --release --no-run -p dnode-torch --features torch --test parity
    program replica-tests test --release --no-run -p dnode-torch --features torch --test replica
    program cuda-tests test --release --no-run -p dnode-cuda --lib
    program nccl-tests test --release --no-run -p dnode-collective --test form
    program gpt-throughput bench --no-run -p dnode-torch --features torch --bench gpt_throughput
    program device-codec bench --no-run -p dnode-cuda --bench device_codec
    program codec bench --no-run -p dnode-trainer --bench codec
    program collective bench --no-run -p dnode-collective --bench collective
}

if [ "${1:-}" = pack ]; then
    folder=${2:?folder to build into}
    mkdir -p "$folder"
    folder=$(realpath "$folder")
    build "$folder/bin"
    cat docs/*.md >"$folder/text"
    cp testnet/scripts/gpu.sh testnet/scripts/gpu_loop.py "$folder/"
    du -sh "$folder"
    exit
fi

if [ "${1:-}" = --cpu ]; then
    shift
    device=cpu peak=(0 0) precisions=(f32 bf16) shape=(2 2 64 64 2) lines=(20 30)
else
    device=cuda:0 peak=("${PEAK_TFLOPS:-989}" "${PEAK_TFLOPS_F32:-67}") precisions=(bf16 f32 fp16)
    shape=(12 12 768 1024 16) lines=(40 60)
    nvidia-smi -L >/dev/null 2>&1 || fail "no NVIDIA driver answers (nvidia-smi -L); --cpu runs the same on the processor"
    python3 -c 'import sys, torch
sys.exit(not (torch.__version__.startswith("2.11.") and torch.cuda.is_available()))' 2>/dev/null ||
        fail "python3 has no torch 2.11 that sees a GPU: pip install torch==2.11.0; CUDA 13 wants a driver of version 580 or later (nvidia-smi)"
    nvidia-smi -L
fi
for part in "$@"; do
    case $part in tests | throughput | peers | nccl | codecs) ;; *) fail "no part is called $part: tests, throughput, peers, nccl, codecs" ;; esac
done

# A packed folder has its programs; libtorch is then that of python3.
if [ -d "$here/bin" ]; then
    bin=$here/bin text=$here/text
else
    build "${CARGO_TARGET_DIR:-$here/../../target}/gpu"
    bin=$(realpath "$bin")
fi
torch=$(python3 -c 'import os, torch
print(os.path.dirname(torch.__file__))' 2>/dev/null) || torch=
# A libtorch of its own, NVRTC and NCCL lie in folders of Python's packages that nobody looks into.
libraries=${LIBTORCH:+$LIBTORCH/lib}
if [ -n "$torch" ] && [ "$device" != cpu ]; then libraries=$torch/lib; fi
libraries=${libraries:-$torch/lib}
if [ -n "$torch" ]; then
    for folder in "$torch"/../nvidia/*/lib; do libraries=$libraries:$folder; done
fi
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT
[ -n "${text:-}" ] || { text=$work/text && cat "$here"/../../docs/*.md >"$text"; }

# Becomes a program of ours, with its own libraries, not those of the Python beside it.
become() {
    exec env LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" DNODE_TEST_DEVICE="$device" "$bin/$@"
}
ours() { (become "$@"); }

failed=()
# Runs a command; what fails is told at the end.
try() { "$@" || { echo "FAILED: $*" >&2 && failed+=("$*"); }; }

part_tests() {
    try ours torch-tests --test-threads 1
    try ours parity-tests --test-threads 1
    try ours replica-tests --test-threads 1
    # They look for programs that are theirs alone: the compiler, and libraries made by it.
    if command -v c++ >/dev/null; then try ours cuda-tests --test-threads 1; else echo "not tested: the kernels, there is no c++"; fi
}

part_throughput() {
    echo "gpt, layers heads width context batch = ${shape[*]}"
    local precision most
    for precision in "${precisions[@]}"; do
        most=${peak[0]}
        [ "$precision" != f32 ] || most=${peak[1]}
        try ours gpt-throughput "$device" "$precision" "${shape[@]}" "$most"
        if [ -n "$torch" ]; then
            try python3 "$here/gpu_loop.py" "$device" "$precision" "${shape[@]}" "$most"
        else
            echo "PyTorch  not measured: python3 has no torch"
        fi
    done
}

# The values of samples_per_s in the train lines of a peer that match a pattern; what the first ten were is
# not counted.
rates() {
    grep '"kind":"train"' "$work/$1/metrics.jsonl" 2>/dev/null | grep "$2" | tail -n +11 |
        sed 's/.*"samples_per_s":\([0-9.]*\).*/\1/'
}
# Median and quartiles.
middle() { sort -n | awk '{v[NR]=$1} END {printf "%.1f (%.1f to %.1f, of %d)", v[int((NR+1)/2)], v[int((NR+3)/4)], v[int((3*NR+3)/4)], NR}'; }
# Waits until a peer has so many of those values.
await() {
    local name=$1
    for _ in $(seq 3000); do
        if [ "$(rates "$name" "$2" | wc -l)" -ge "$3" ]; then return; fi
        kill -0 "${peers[$name]}" 2>/dev/null || break
        read -rt 0.1 <> <(:) || true
    done
    echo "$name did not train as expected:" >&2
    tail -5 "$work/$name.log" >&2
    return 1
}
declare -A peers
peer() {
    local name=$1 model=()
    shift
    if [ "$device" != cpu ]; then
        model=(--set model.layers=12 --set model.heads=12 --set model.width=768 --set model.context=512)
    fi
    # By `become` its number is that of the process.
    become dnode join --open --no-mdns --listen /ip4/127.0.0.1/udp/0/quic-v1 --data-dir "$work/$name" \
        --model gpt --data text --data-path "$text" --steps 1000000 --device "$device" "${model[@]}" \
        --set node.backend=libtorch --set node.precision=bf16 --set run.batch=16 \
        --set node.evaluate_every=0 "$@" >"$work/$name.out" 2>"$work/$name.log" &
    peers[$name]=$!
}
end() {
    for name in "$@"; do kill -TERM "${peers[$name]}" 2>/dev/null || true; done
    for name in "$@"; do wait "${peers[$name]}" || true; done
}
compare_peers() {
    peer a
    await a '"peers":0' "${lines[0]}" || return
    peer b --bootstrap "$(head -1 "$work/a/address")"
    await a '"peers":1' "${lines[1]}" || return
    end a b
    peer c --rule none
    peer d --rule none
    await d '"peers":0' "${lines[0]}" || return
    end c d
    echo "alone:                         $(rates a '"peers":0' | middle) samples/s"
    echo "with gossip, two peers:        $(rates a '"peers":1' | middle) samples/s each"
    echo "without gossip, two processes: $(rates d '"peers":0' | middle) samples/s each"
    local where='weights are mixed on the device'
    if [ "$device" != cpu ] && ! grep -q "$where" "$work/a.log"; then
        grep 'weights cross to the host' "$work/a.log" >&2 || true
        return 1
    fi
}
part_peers() {
    try compare_peers
    end "${!peers[@]}"
}

part_nccl() {
    try ours nccl-tests --test-threads 1 --nocapture
    try ours collective nccl
}

part_codecs() {
    [ "$device" = cpu ] || try ours device-codec "$device"
    echo "on the host:"
    try ours codec
}

[ $# -gt 0 ] || set -- tests throughput peers nccl codecs
for part in "$@"; do
    echo "== $part, on $device"
    "part_$part"
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "all parts ran"
