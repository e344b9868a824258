# Sourced by the scripts that time training steps, with a folder of the MNIST files: builds dnode, goes
# to a folder that is gone at the end, together with what runs then, and says in `flags` what every peer
# is started with.
mnist=$(realpath "${1:?folder with the MNIST files}")
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"
dnode=$target/release/dnode
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT
cd "$work"
flags=(join --open --no-mdns --listen /ip4/127.0.0.1/udp/0/quic-v1 --model cnn --data mnist --data-path "$mnist"
    --set run.batch=64 --set node.evaluate_every=0)
