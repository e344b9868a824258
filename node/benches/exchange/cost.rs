//! What bytes cost: two peers that exchange without a pause, and the processor time of both.

use std::time::{Duration, Instant};

use crate::averaging::PATHS;
use crate::swarm::{BACK_TO_BACK, Swarm};
use crate::trainer::Kind;

const PARAMETERS: usize = 10_000_000;
/// How long the exchange runs.
const SPAN: Duration = Duration::from_secs(6);

pub(crate) fn run() {
    println!("cost: 2 processes, {PARAMETERS} parameters, rounds back to back");
    let codecs = ["f32", "int4"].into_iter();
    for (codec, (path, direct)) in codecs.flat_map(|codec| PATHS.map(|path| (codec, path))) {
        let codecs = format!("gossip.codecs={codec}");
        let sets = [&BACK_TO_BACK[..], &[&codecs, direct]].concat();
        let swarm = Swarm::start(Kind::Free, 2, PARAMETERS, &sets);
        let (began, before) = (Instant::now(), swarm.cpu());
        std::thread::sleep(SPAN);
        let (cpu, seconds) = (swarm.cpu() - before, began.elapsed().as_secs_f64());
        let bytes = swarm.end();
        let gb = bytes as f64 / 1e9;
        println!(
            "{codec:>6} {path:<6} {gb:.2} GB moved, {:.3} GB/s, {:.2} CPU seconds per GB of both ends",
            gb / seconds,
            cpu / gb
        );
    }
}
