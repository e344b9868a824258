//! What an exchange without a pause takes from training: the training thread has a core of its own,
//! everything else the other one.

use std::time::Duration;

use crate::swarm::{BACK_TO_BACK, Swarm};
use crate::trainer::Kind;

const PARAMETERS: usize = 10_000_000;
/// How long each phase lasts.
const SPAN: Duration = Duration::from_secs(8);

pub(crate) fn run() {
    println!("training: steps of about 10 ms alone, then beside an exchange without a pause");
    for codec in ["f32", "int4"] {
        let codecs = format!("gossip.codecs={codec}");
        let sets = [&BACK_TO_BACK[..], &[&codecs]].concat();
        let mut swarm = Swarm::alone(Kind::Busy, PARAMETERS, &sets);
        swarm.peers[0].count();
        swarm.pin();
        let alone = phase(&mut swarm);
        swarm.join(Kind::Free, PARAMETERS, &sets);
        swarm.pin();
        let (beside, sent) = (phase(&mut swarm), swarm.end());
        println!(
            "{codec:>6}  {:.1} steps/s alone, {:.1} beside: {:.1} %; per second of the thread {:.1} and {:.1}: {:.1} %; {:.2} GB moved",
            alone[0],
            beside[0],
            100.0 * beside[0] / alone[0],
            alone[1],
            beside[1],
            100.0 * beside[1] / alone[1],
            sent as f64 / 1e9
        );
    }
}

/// Steps in a second, and in a second of the training thread's processor time.
fn phase(swarm: &mut Swarm) -> [f64; 2] {
    let mark = swarm.peers[0].mark();
    std::thread::sleep(SPAN);
    swarm.peers[0].rates(mark)
}
