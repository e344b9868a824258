# Commands of this repository; every recipe is one line that can be pasted into a shell.

# What a change in Rust must pass; writes nothing. `.ci/run` is all.
verify:
    cargo fmt --all --check && cargo clippy --release --workspace --all-targets --locked -- -D warnings && cargo test --release --workspace --locked && RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --locked

# Formats and applies what clippy can repair.
fix:
    cargo fmt --all && cargo clippy --release --workspace --all-targets --fix --allow-dirty

# All tests.
test:
    cargo test --release --workspace --locked

# Replays one seed of the simulator.
sim SEED:
    cargo run --release -p dnode-testnet --bin sim -- --seed {{SEED}}

# Simulates many seeds, one after another.
soak N:
    cargo run --release -p dnode-testnet --bin sim -- --seeds 0..{{N}}

# A swarm of N local processes and its report.
testnet N:
    testnet/scripts/run.sh -n {{N}}

# The program to hand out in target/dist, without symbols, and these in a file beside it.
dist:
    cargo build --release --workspace --locked && mkdir -p target/dist && objcopy --only-keep-debug target/release/dnode target/dist/dnode.debug && strip -o target/dist/dnode target/release/dnode && cd target/dist && objcopy --add-gnu-debuglink=dnode.debug dnode

# Fuzzes a target of testnet/fuzz/fuzz_targets/, guided by coverage, on the stable compiler.
fuzz TARGET:
    mkdir -p testnet/fuzz/target/inputs/{{TARGET}} && RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" cargo run --release --manifest-path testnet/fuzz/Cargo.toml --target x86_64-unknown-linux-gnu --target-dir testnet/fuzz/target --bin {{TARGET}} -- -max_len=4096 testnet/fuzz/target/inputs/{{TARGET}} testnet/fuzz/corpus/{{TARGET}}

# Runs the committed inputs of every fuzz target.
replay:
    cargo test --release --manifest-path testnet/fuzz/Cargo.toml --locked

# Speed of the tensor frames; step times of the models.
bench:
    cargo test --release -p dnode-protocol --test speed -- --nocapture && cargo bench -p dnode-trainer --bench step

# Dependencies, licences, sources: needs `cargo install cargo-deny --version 0.20.2 --locked`.
deny:
    cargo deny --locked check bans licenses sources

# The API documentation.
docs:
    cargo doc --release --workspace --no-deps --open
