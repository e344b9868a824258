# Sourced by the scripts beside it: builds dnode and its testnet, and says in `target` where they are.
# With DNODE_BUILT set, what was built before is used.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

if [ -z "${DNODE_BUILT:-}" ]; then
    echo "building dnode (the first time takes a few minutes)"
    if ! output=$(cargo build --manifest-path "$root/Cargo.toml" --release --quiet \
        -p dnode -p dnode-testnet 2>&1); then
        printf '%s\n' "$output" >&2
        exit 1
    fi
fi
