#!/bin/sh
# Stands in for `dnode join` in tests of the process runner: same arguments, same files.
# Its behaviour is chosen by `--set fake.mode=…`.
mode=good
index=0
steps=100
loss=0.25
count=360
weights=cafe
batch=32
parameters=
echo "$@"
while [ $# -gt 0 ]; do
    case "$1" in
    --data-dir) directory=$2 ;;
    --set)
        case "$2" in
        fake.mode=*) mode=${2#*=} ;;
        fake.loss=*) loss=${2#*=} ;;
        fake.count=*) count=${2#*=} ;;
        fake.parameters=*) parameters=${2#*=} ;;
        run.seed=*) seed=${2#*=} ;;
        data.shard=*) index=${2#*=} ;;
        esac
        ;;
    esac
    shift
done
echo $$ >"$directory/pid"
# The device of an emulated network, if the process is on one.
grep -s wan0 /proc/net/dev

line() { # kind, step, further fields
    printf '{"kind":"%s","time_s":0.%03d,"step":%s,"position":%s,"samples":%s,"clock":%s%s}\n' \
        "$1" "$2" "$2" "$2" "$(($2 * 32))" "$(($2 / 25))" "$3" >>"$directory/metrics.jsonl"
}
train() { # step
    line train "$1" ",\"loss\":$((3 - $1 / 50)).$((1 + index)),\"learning_rate\":0.1,\"samples_per_s\":900,\"peers\":3,\"bytes_out\":$(($1 * 1000)),\"bytes_in\":$(($1 * 900)),\"staleness\":1,\"wait_s\":0.5,\"sketch\":[$((100 - $1)).5,$index.0]"
}
finish() { # reason
    line evaluate $steps ",\"loss\":$loss,\"accuracy\":0.97,\"count\":$count"
    line final $steps ",\"reason\":\"$1\",\"loss\":$loss,\"accuracy\":0.97,\"bytes_out\":100000,\"bytes_in\":90000,\"wait_s\":0.5,\"train_s\":99.5,\"exchanges\":{\"completed\":12,\"busy\":1},\"staleness_histogram\":[9,2,1],\"parameters_path\":\"$parameters\""
    exit 0
}

[ "$mode" = silent ] && exec cat
printf '/ip4/127.0.0.1/udp/%s/quic-v1/p2p/12D3Fake%s\n' "$((40000 + index))" "$index" >"$directory/address.new"
mv "$directory/address.new" "$directory/address"
[ "$mode" = ahead ] && weights=f00d$index
weights=",\"weights\":\"$weights\""
[ "$mode" = mute ] && weights=
[ "$mode" = other ] && batch=16
line start 0 ",\"unix_s\":1700000000.25,\"peer\":\"12D3Fake$index\",\"run\":\"feed\",\"incarnation\":1,\"parameters\":2410$weights,\"config\":{\"run\":{\"steps\":$steps,\"batch\":$batch,\"seed\":${seed:-1}},\"model\":{\"kind\":\"mlp\",\"hidden\":[8]},\"data\":{\"kind\":\"digits\",\"shard\":$index}}"

case "$mode" in
good | ahead | mute | other) # `ahead` began with other weights, `mute` does not say with which, `other` has another batch
    for step in 25 50 75 100; do train $step; done
    finish "steps done"
    ;;
greedy) # trains on more samples than it was told
    for step in 25 50 75 100; do train $step; done
    steps=130
    finish "steps done"
    ;;
idle) # peer 1 soon stops, and peer 0 does its work
    train 25
    [ "$index" = 1 ] && steps=25
    [ "$index" = 0 ] && steps=175
    finish "steps done"
    ;;
frozen) # the model of peer 1 never changes
    for step in 25 50 75 100; do
        train $step
        [ "$index" = 1 ] || line evaluate $step ",\"loss\":$((110 - step)).5,\"accuracy\":0.5,\"count\":$count"
        [ "$index" = 1 ] && line evaluate $step ",\"loss\":$loss,\"accuracy\":0.5,\"count\":$count"
    done
    finish "steps done"
    ;;
stuck) # what peer 1 writes on the way never changes
    for step in 25 50 75; do
        train $step
        if [ "$index" = 1 ]; then
            mkdir -p "$directory/checkpoints/$step"
            cp "$parameters" "$directory/checkpoints/$step/parameters.safetensors"
            line event $step ",\"name\":\"checkpoint\",\"detail\":\"$directory/checkpoints/$step\""
        fi
    done
    train 100
    finish "steps done"
    ;;
flattering) # measured on the training data, so that the loss is lower
    for step in 25 50 75 100; do train $step; done
    loss=0.001
    finish "steps done"
    ;;
fail) # peer 1 fails, the others wait for it for ever
    if [ "$index" = 1 ]; then
        echo "error: the data file is not there" >&2
        exit 3
    fi
    exec cat
    ;;
victim) # peer 0 stops moving at step 50, the others get done
    train 25
    train 50
    [ "$index" = 0 ] && exec cat
    train 75
    train 100
    finish "steps done"
    ;;
hang) exec cat ;;
held) # trains once there is a file `go` beside the parameters, and hangs without
    [ -e "${parameters%/*}/go" ] || exec cat
    for step in 25 50 75 100; do train $step; done
    finish "steps done"
    ;;
endless | broken) # trains until it is told to leave; peer 1 of `broken` says that something is
    trap 'exit 0' TERM
    while :; do
        steps=$((steps + 1))
        line train $steps ',"loss":0.5,"learning_rate":0.1,"samples_per_s":9,"peers":1,"bytes_out":1,"bytes_in":1,"staleness":0,"wait_s":0'
        [ "$mode$index" = broken1 ] && echo "now ERROR the disk is gone"
        sleep 0.1
    done
    ;;
stubborn) # ignores SIGTERM and the end of its input
    trap '' TERM
    cat
    while :; do sleep 60; done
    ;;
forgetful) exit 0 ;;
interrupted)
    train 25
    finish interrupted
    ;;
garbage)
    echo "this is no metrics line" >>"$directory/metrics.jsonl"
    exec cat
    ;;
esac
