#!/usr/bin/env bash
# All that needs a CUDA GPU: testnet/scripts/gpu.sh [--cpu] [PART ...], all parts where none is named
#   tests       the libtorch backend, and the codecs and the arithmetic of exchanges, on the device
#   throughput  training of a gpt, tokens/s and MFU, beside the same loop in PyTorch
#   peers       samples/s of a peer alone, of two that share the device and gossip, of two that do not gossip
#   nccl        groups over NCCL: tests, then all-reduces of as many ranks as there are devices
#   codecs      the codecs of exchanges on the device and on the host, GB/s
#   python      the tests of the Python package with models on the device (where there is a pytest), and what a
#               joined swarm costs a loop there
#   llama       four peers that share the device and train a llama of 98 million parameters
#   billion     two peers that share the device and train a llama of a billion parameters for some steps
#   compare     testnet/comparisons/wikitext.toml, with TEXT for a text; not among those that run where none is named
# Needs an NVIDIA driver and a python3 with the CUDA build of torch 2.11. --cpu runs the same on the
# processor, small. A part that fails does not keep the others from running.
# TEXT is a file to train on (default: the documentation). OUT is a folder that keeps what parts write.
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
    # With the features of the whole workspace, so that what its build has made serves.
    local all=(--workspace --features dnode/torch)
    program dnode build --release "${all[@]}" --bin dnode
    program dnode-testnet build --release "${all[@]}" --bin dnode-testnet
    program parity-tests test --release --no-run "${all[@]}" --test parity
    program replica-tests test --release --no-run "${all[@]}" --test replica
    program nccl-tests test --release --no-run "${all[@]}" --test form
    program gpt-throughput bench --no-run "${all[@]}" --bench gpt_throughput
    program device-codec bench --no-run "${all[@]}" --bench device_codec
    program codec bench --no-run "${all[@]}" --bench codec
    program collective bench --no-run "${all[@]}" --bench collective
    program torch-tests test --release --no-run -p dnode-torch --features torch --lib
    program cuda-tests test --release --no-run -p dnode-cuda --lib
    # Where the tests of the Python package look for them.
    mkdir -p "$bin/release/examples"
    cargo build --release --locked --workspace --lib --example own_loop
    local made
    for made in libdnode_python.so examples/own_loop; do
        strip -o "$bin/release/$made" "${CARGO_TARGET_DIR:-target}/release/$made"
    done
}

if [ "${1:-}" = pack ]; then
    folder=${2:?folder to build into}
    mkdir -p "$folder"
    folder=$(realpath "$folder")
    build "$folder/bin"
    if [ -n "${TEXT:-}" ]; then cat "$TEXT" >"$folder/text"; else cat docs/*.md >"$folder/text"; fi
    cp testnet/scripts/gpu.sh testnet/scripts/gpu_loop.py "$folder/"
    # Where the programs look for them, from here.
    mkdir -p "$folder/testnet" "$folder/node/python"
    cp -r testnet/comparisons "$folder/testnet/"
    for part in python tests benches; do cp -r "node/python/$part" "$folder/node/python/"; done
    du -sh "$folder"
    exit
fi

parts=(tests throughput peers nccl codecs python llama billion compare)
if [ "${1:-}" = --cpu ]; then
    shift
    device=cpu peak=(0 0) precisions=(f32 bf16) shape=(2 2 64 64 2) lines=(20 30)
    loops=(cnn) llama=(4 2 2 2 64 192 64 200) billion=(2 2 2 1 128 384 64 20)
else
    device=cuda:0 peak=("${PEAK_TFLOPS:-989}" "${PEAK_TFLOPS_F32:-67}") precisions=(bf16 f32 fp16)
    shape=(12 12 768 1024 16) lines=(20 30)
    loops=(gpt large) llama=(4 12 12 12 768 2048 512 1050) billion=(2 16 32 8 2048 8192 512 30)
    nvidia-smi -L >/dev/null 2>&1 || fail "no NVIDIA driver answers (nvidia-smi -L); --cpu runs the same on the processor"
    python3 -c 'import sys, torch
sys.exit(not (torch.__version__.startswith("2.11.") and torch.cuda.is_available()))' 2>/dev/null ||
        fail "python3 has no torch 2.11 that sees a GPU: pip install torch==2.11.0; CUDA 13 wants a driver of version 580 or later (nvidia-smi)"
    nvidia-smi -L
fi
for part in "$@"; do
    case " ${parts[*]} " in *" $part "*) ;; *) fail "no part is called $part: ${parts[*]}" ;; esac
done

# A packed folder has its programs; libtorch is then that of python3.
if [ -d "$here/bin" ]; then
    bin=$here/bin text=${TEXT:-$here/text} root=$here
else
    build "${CARGO_TARGET_DIR:-$here/../../target}/gpu"
    bin=$(realpath "$bin") text=${TEXT:-} root=$here/../..
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
    # The driver that is made there serves machines that have none.
    if command -v c++ >/dev/null; then
        try ours cuda-tests --test-threads 1 --skip streams_events_and_copies_keep_their_order_with_a_driver
    else
        echo "not tested: the kernels, there is no c++"
    fi
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
# Whether a peer is running; one that has ended and was not waited for is not.
runs() { grep -qs '^State:[[:space:]]*[^Z]' "/proc/${peers[$1]}/status"; }
# Waits until a peer has so many of those values.
await() {
    local name=$1
    for _ in $(seq 3000); do
        if [ "$(rates "$name" "$2" | wc -l)" -ge "$3" ]; then return; fi
        runs "$name" || break
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
        --set node.evaluate_every=0 --set node.metrics_every=5 "$@" >"$work/$name.out" 2>"$work/$name.log" &
    peers[$name]=$!
}
end() {
    for name in "$@"; do kill -TERM "${peers[$name]}" 2>/dev/null || true; done
    for name in "$@"; do wait "${peers[$name]}" || true; done
}
compare_peers() {
    peer a
    await a '"peers":0' "${lines[0]}" || return
    echo "alone:                         $(rates a '"peers":0' | middle) samples/s"
    peer b --bootstrap "$(head -1 "$work/a/address")"
    await a '"peers":1' "${lines[1]}" || return
    echo "with gossip, two peers:        $(rates a '"peers":1' | middle) samples/s each"
    end a b
    peer c --rule none
    peer d --rule none
    await d '"peers":0' "${lines[0]}" || return
    end c d
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

part_python() {
    if [ -z "$torch" ]; then echo "not run: python3 has no torch" && return; fi
    local package=$work/package model
    mkdir -p "$package"
    cp -r "$root/node/python/python/dnode" "$package/"
    cp "$bin/release/libdnode_python.so" "$package/dnode/_native.abi3.so"
    if python3 -c 'import pytest' 2>/dev/null; then
        # Each as it ends, so that a machine that is short of time has told which failed.
        local several=()
        if python3 -c 'import xdist' 2>/dev/null; then several=(-n 4); fi
        (cd "$root/node/python/tests" && DNODE_TEST_DEVICE=$device CARGO_TARGET_DIR=$bin \
            try python3 -m pytest -v --tb short -p no:cacheprovider "${several[@]}" \
            test_{vector,loops,state,swarm,tensors}.py)
    else
        echo "not tested: python3 has no pytest"
    fi
    for model in "${loops[@]}"; do
        PYTHONPATH=$package try python3 "$root/node/python/benches/step.py" --peers 4 --model "$model" \
            --device "$device" --seconds 8 --turns 1
    done
}

# Peers that share the device and train a llama: llamas PEERS LAYERS HEADS KEY_VALUE_HEADS WIDTH INNER CONTEXT STEPS
llamas() {
    local count=$1 layers=$2 heads=$3 shared=$4 width=$5 inner=$6 context=$7 steps=$8 name names=() first=() words begun
    [ -e "$work/tokenizer.json" ] ||
        try ours dnode tokenizer train --data "$text" --vocabulary 8192 --out "$work/tokenizer.json"
    words=(--open --no-mdns --listen /ip4/127.0.0.1/udp/0/quic-v1 --require-peers $((count - 1)) --model llama
        --data text --data-path "$text" --tokenizer "$work/tokenizer.json" --steps "$steps" --device "$device"
        --set node.backend=libtorch --set node.precision=bf16 --set run.batch=8 --set node.evaluate_every=250
        --set node.metrics_every=5
        --set model.layers="$layers" --set model.heads="$heads" --set model.key_value_heads="$shared"
        --set model.width="$width" --set model.inner="$inner" --set model.context="$context"
        --set model.vocabulary=16384 --set gossip.local_steps=5 --set data.shards="$count")
    begun=$SECONDS
    for name in $(seq -f "llama-$width-%g" "$count"); do
        names+=("$name")
        become dnode join "${words[@]}" "${first[@]}" --data-dir "$work/$name" \
            >"$work/$name.out" 2>"$work/$name.log" &
        peers[$name]=$!
        if [ ${#first[@]} = 0 ]; then
            for _ in $(seq 1200); do
                if [ -s "$work/$name/address" ] || ! runs "$name"; then break; fi
                read -rt 0.1 <> <(:) || true
            done
            [ -s "$work/$name/address" ] || { tail -n 5 "$work/$name.log" >&2 && return 1; }
            first=(--bootstrap "$(head -1 "$work/$name/address")")
        fi
    done
    if [ "$device" != cpu ]; then
        nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits -l 1 >"$work/smi" 2>&1 &
        peers[smi]=$!
    fi
    for name in "${names[@]}"; do
        wait "${peers[$name]}" || failed+=("peer $name")
        tail -n 2 "$work/$name.out"
        grep -h "mixed" "$work/$name.log" || true
    done
    if [ -n "${peers[smi]:-}" ]; then end smi; fi
    name=${names[0]}
    echo "$count peers took $((SECONDS - begun)) s, with the start"
    grep -h '"kind":"evaluate"' "$work/$name/metrics.jsonl" || true
    echo "samples/s of a peer: $(rates "$name" . | middle)"
    if [ -s "$work/smi" ]; then
        echo "utilisation of the device, %: $(cut -d, -f1 "$work/smi" | middle)"
        echo "memory of the device, MiB: $(cut -d, -f2 "$work/smi" | middle)"
    fi
    if [ -n "${OUT:-}" ]; then
        (cd "$work" && touch smi && tar czf "$OUT/llama-$width.tgz" smi llama-"$width"-*.out \
            llama-"$width"-*.log llama-"$width"-*/metrics.jsonl)
    fi
}

part_llama() {
    try llamas "${llama[@]}"
    try ours dnode generate "$work/llama-${llama[4]}-1" --prompt " The " --length 60 --seed 1
}

part_billion() { try llamas "${billion[@]}"; }

part_compare() {
    local data=$work/data
    mkdir -p "$data/text"
    cp "$text" "$data/text/wikitext2.txt"
    try ours dnode tokenizer train --data "$text" --vocabulary 4096 --out "$data/text/tokenizer.json"
    try ours dnode-testnet compare "$root/testnet/comparisons/wikitext.toml" --data "$data" --out "$work/compare"
    if [ -f "$work/compare/report.md" ]; then cat "$work/compare/report.md"; fi
    if [ -n "${OUT:-}" ]; then (cd "$work" && tar czf "$OUT/compare.tgz" --exclude='*.safetensors' compare); fi
}

[ $# -gt 0 ] || set -- tests throughput peers nccl codecs python llama billion
for part in "$@"; do
    echo "== $part, on $device"
    "part_$part"
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
echo "all parts ran"
