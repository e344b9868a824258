//! Time in which four peers average their parameters, beside gloo and hivemind: from the moment when
//! the last has begun to that when the last is done.

use crate::reference;
use crate::spread;
use crate::swarm::Swarm;
use crate::trainer::Kind;

const PEERS: usize = 4;
/// Parameters of a model, with the averagings that are measured.
const SIZES: [(usize, usize); 2] = [(1_000_000, 40), (10_000_000, 20)];
/// Averagings before.
const WARM: usize = 3;

/// Rounds back to back, of whole f32, with nothing that stops or weighs an exchange.
const GOSSIP: [&str; 8] = [
    "gossip.rule=pairwise",
    "gossip.schedule=exponential",
    "gossip.codecs=f32",
    "gossip.mix_every=1",
    "gossip.local_steps=1000000",
    "gossip.balance=off",
    "gossip.clip=0",
    "gossip.guard=false",
];
/// What carries tensors between processes of one machine.
pub(crate) const PATHS: [(&str, &str); 2] =
    [("memory", "network.direct=auto"), ("QUIC", "network.direct=off")];
const RING: [&str; 2] = ["gossip.rule=all-reduce", "gossip.world=4"];

pub(crate) fn run() {
    println!("averaging: {PEERS} processes, f32, seconds (median, tenth, ninth tenth)");
    for (parameters, turns) in SIZES {
        let ways: [(Kind, &[&str]); 2] = [(Kind::Ring, &RING), (Kind::Gossip, &GOSSIP)];
        for ((kind, sets), (path, direct)) in
            ways.into_iter().flat_map(|way| PATHS.map(|path| (way, path)))
        {
            let sets = [sets, &[direct]].concat();
            let (times, error) = average(kind, parameters, turns, &sets);
            let (median, low, high) = spread(&times);
            println!(
                "{parameters:>10}  dnode {} {path:<6} {median:.4} {low:.4} {high:.4}  largest error {error:.3}",
                kind.name()
            );
        }
        for (name, times) in reference::averagings(PEERS, parameters, turns) {
            let (median, low, high) = spread(&times);
            println!("{parameters:>10}  {name:<13} {median:.4} {low:.4} {high:.4}");
        }
    }
}

fn average(kind: Kind, parameters: usize, turns: usize, sets: &[&str]) -> (Vec<f64>, f64) {
    let mut swarm = Swarm::start(kind, PEERS, parameters, sets);
    for peer in &mut swarm.peers {
        peer.averaged();
    }
    for _ in 0..WARM {
        swarm.turn();
    }
    let measured: Vec<(f64, f64)> = (0..turns).map(|_| swarm.turn()).collect();
    let error = measured.iter().map(|(_, error)| *error).fold(0.0, f64::max);
    (measured.into_iter().map(|(seconds, _)| seconds).collect(), error)
}
