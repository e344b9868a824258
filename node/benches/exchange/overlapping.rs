//! Exchanges that overlap. What one takes when its parts run one after the other, `dnode bench exchange`
//! says.

use std::time::Duration;

use dnode_protocol::frame::Codec;
use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;

use crate::swarm::{BACK_TO_BACK, Swarm};
use crate::trainer::Kind;

/// Fragments of the largest size that the exchanges move in turns.
const FRAGMENTS: usize = 8;
/// How long they go on.
const SPAN: Duration = Duration::from_secs(6);

pub(crate) fn run() {
    println!("overlapping: one exchange of {FRAGMENT_ELEMENTS_MAX} parameters among many, ms");
    for codec in [Codec::F32, Codec::Int4] {
        let codecs = format!("gossip.codecs={codec}");
        let sets = [&BACK_TO_BACK[..], &[&codecs]].concat();
        let swarm = Swarm::start(Kind::Free, 2, FRAGMENTS * FRAGMENT_ELEMENTS_MAX, &sets);
        std::thread::sleep(SPAN);
        let bytes: usize = [codec.of_offer(), codec]
            .map(|it| it.payload_bytes(FRAGMENT_ELEMENTS_MAX))
            .iter()
            .sum();
        let exchanges = swarm.end() as f64 / bytes as f64;
        println!("{codec:>6}  {:.2}", 1e3 * SPAN.as_secs_f64() / exchanges);
    }
}
