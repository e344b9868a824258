//! What two peers of a large model move, and the host memory that this takes beside their parameters.

use std::time::{Duration, Instant};

use crate::swarm::{BACK_TO_BACK, Swarm};
use crate::trainer::Kind;

const PARAMETERS: usize = 1_000_000_000;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(100);
/// How long the exchange runs.
const SPAN: Duration = Duration::from_secs(60);

pub(crate) fn run() {
    let parameters = (PARAMETERS * size_of::<f32>()) as f64;
    println!("large: 2 processes, {PARAMETERS} parameters, rounds back to back");
    let sets = [&BACK_TO_BACK[..], &["gossip.codecs=f32"]].concat();
    let swarm = Swarm::start(Kind::Free, 2, PARAMETERS, &sets);
    // Peers begin when the parameters of both are there.
    while swarm.peers.iter().any(|peer| peer.memory_most() < parameters) {
        std::thread::sleep(LOOK);
    }
    let (began, before) = (Instant::now(), swarm.cpu());
    std::thread::sleep(SPAN);
    let (cpu, seconds) = (swarm.cpu() - before, began.elapsed().as_secs_f64());
    for peer in &swarm.peers {
        let most = peer.memory_most();
        println!(
            "most resident memory {:.2} GB, of it parameters {:.2}, the rest {:.3}",
            most / 1e9,
            parameters / 1e9,
            (most - parameters) / 1e9
        );
    }
    let gb = swarm.end() as f64 / 1e9;
    println!("{gb:.1} GB moved in {seconds:.0} s, {:.2} CPU seconds per GB of both ends", cpu / gb);
}
