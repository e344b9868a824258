#!/usr/bin/env bash
# The libtorch backend (docs/adr/0013): testnet/scripts/torch.sh fetch|build|test|bench
#   fetch  gets libtorch 2.11.0 for CPUs into target/ (544 MB download, 0.5 GB on disk)
#   build  fetches and builds target/release/dnode with libtorch
#   test   fetches and runs the tests of the libtorch backend
#   bench  fetches and measures milliseconds per step beside the embedded engine
# LIBTORCH names a libtorch 2.11 that is there already; a Python with torch 2.11 is found by itself.
# The first build takes about five CPU-minutes more than dnode's own.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
version=2.11.0
cd "$root"

# The installed torch of a Python, when it is of this version.
installed() {
    python3 -c 'import os, sys, torch
if torch.__version__.split("+")[0] != sys.argv[1]: sys.exit(1)
print(os.path.dirname(torch.__file__))' "$version" 2>/dev/null
}

# A view of libtorch with its CPU half alone: the binding would link the CUDA half, which the
# program loads by itself, wherever it saw one.
fetch() {
    if [ -n "${LIBTORCH:-}" ]; then return; fi
    export LIBTORCH=$target/libtorch-$version
    if [ -e "$LIBTORCH/build-version" ]; then return; fi
    local new=$LIBTORCH.new torch
    rm -rf "$new" && mkdir -p "$new/lib"
    if torch=$(installed); then
        ln -s "$torch/include" "$new/include"
        local library
        # The last two are what the CPU half of a CUDA build needs to load, and are found beside its own
        # folder, not beside a link to it.
        for library in "$torch"/lib/libtorch_cpu.so "$torch"/lib/libc10.so "$torch"/lib/libgomp* \
            "$torch"/../nvidia/*/lib/libcudart.so.* "$torch"/../nvidia/*/lib/libcupti.so.*; do
            if [ -e "$library" ]; then ln -s "$(realpath "$library")" "$new/lib/"; fi
        done
    else
        download "$new"
    fi
    ln -s libtorch_cpu.so "$new/lib/libtorch.so"
    echo "$version" >"$new/build-version"
    mv "$new" "$LIBTORCH"
}

# PyPI's wheel is a CUDA build whose CPU half needs two small CUDA libraries to load.
download() {
    if [ "$(uname -sm)" != "Linux x86_64" ]; then
        echo "error: libtorch $version is fetched for Linux x86_64 alone; set LIBTORCH to another one" >&2
        exit 2
    fi
    if ! python3 -m pip --version >/dev/null 2>&1; then
        echo "error: python3 with pip is missing, which fetches libtorch: install it, or set LIBTORCH to a libtorch $version" >&2
        exit 2
    fi
    echo "fetching libtorch $version (544 MB)" >&2
    local new=$1 get=$1/get
    if ! python3 -m pip download -q --no-deps -d "$get" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_x86_64 "torch==$version" 2>"$new/said" ||
        ! python3 -m pip download -q -d "$get" "cuda-toolkit[cudart,cupti]==13.0.2" 2>"$new/said"; then
        echo "error: libtorch $version cannot be fetched ($(grep ERROR "$new/said" | tail -1)): is there a network, and room? or set LIBTORCH to a libtorch $version" >&2
        exit 2
    fi
    rm "$new/said"
    python3 - "$get" "$new" <<'PYTHON'
import os, re, sys, zipfile
get, new = sys.argv[1:]
wanted = re.compile(
    r"torch/(lib/(libtorch_cpu|libc10)\.so|lib/libgomp[^/]*|include/.*)$"
    r"|nvidia/.*/lib/(libcudart|libcupti)\.so\.\d+$")
for wheel in os.listdir(get):
    with zipfile.ZipFile(os.path.join(get, wheel)) as files:
        for name in files.namelist():
            if not wanted.match(name) or name.endswith("/"):
                continue
            include = name.startswith("torch/include/")
            path = name[len("torch/"):] if include else "lib/" + name.rsplit("/", 1)[1]
            path = os.path.join(new, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with files.open(name) as source, open(path, "wb") as to:
                while block := source.read(1 << 20):
                    to.write(block)
PYTHON
    rm -rf "$get"
}

case "${1:-}" in
fetch) fetch && echo "$LIBTORCH" ;;
build) fetch && cargo build --release --locked -p dnode --features torch ;;
test)
    fetch
    export LD_LIBRARY_PATH=$LIBTORCH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    cargo test --release --locked -p dnode-torch --features torch
    cargo test --release --locked -p dnode --features torch --test config --test torch
    ;;
bench)
    fetch
    export LD_LIBRARY_PATH=$LIBTORCH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    shift
    cargo bench --locked -p dnode-torch --features torch --bench torch_step -- "$@"
    ;;
*)
    sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
