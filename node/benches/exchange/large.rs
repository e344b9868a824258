//! Host memory that an exchange of a large model takes beside its parameters.

use std::time::Duration;

use crate::swarm::Swarm;
use crate::trainer::Kind;

const PARAMETERS: usize = 1_000_000_000;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(100);
/// How long the exchange runs.
const SPAN: Duration = Duration::from_secs(20);

pub(crate) fn run() {
    let parameters = (PARAMETERS * size_of::<f32>()) as f64;
    println!("large: 2 processes, {PARAMETERS} parameters, rounds back to back");
    let sets = [
        "gossip.rule=pairwise",
        "gossip.mix_every=1",
        "gossip.local_steps=1000000",
        "gossip.balance=off",
        "gossip.codecs=f32",
    ];
    let swarm = Swarm::start(Kind::Free, 2, PARAMETERS, &sets);
    // Peers begin when the parameters of both are there.
    while swarm.peers.iter().any(|peer| peer.memory_most() < parameters) {
        std::thread::sleep(LOOK);
    }
    let before = swarm.cpu();
    std::thread::sleep(SPAN);
    for peer in &swarm.peers {
        let most = peer.memory_most();
        println!(
            "most resident memory {:.2} GB, of it parameters {:.2}, the rest {:.3}",
            most / 1e9,
            parameters / 1e9,
            (most - parameters) / 1e9
        );
    }
    println!("CPU seconds of both meanwhile: {:.1}", swarm.cpu() - before);
}
