//! The messages that one peer sends are bounded by its rounds, commits, neighbours and time.

use dnode_gossip::{Gossip, Mixing};

use super::super::view::View;
use super::property::{Moment, Property};

/// Compares what each peer has sent with the bound of [`most_messages`].
#[derive(Debug)]
pub(super) struct Traffic;

/// What there is is said again after this time.
const REPEAT_SECONDS: f64 = 5.0;
/// Probes because of one silent neighbour, and the time that they take.
const DOUBT_PROBES: f64 = 4.0;
const DOUBT_SECONDS: f64 = 0.3;
/// Contributions asked for at a time, in advance or not.
const FETCHES: f64 = 16.0 + 64.0;

/// Most control messages and tensors a peer may have sent.
///
/// Every message is one of these: at most two answers to one that it received; part of an own
/// exchange (proposal, offer, acknowledgement or abort: 3) or pull (2), of which a round has at most
/// `fragments · (1 + redraws)`; an announcement to each neighbour after a commit, a change of phase
/// or a connection (1); under rule delta-set what each fragment contains, to each neighbour after a
/// commit, a connection and every contribution, and every 5 s, and a fetch for everything received
/// or expired; a heartbeat to each neighbour per half heartbeat; a probe per heartbeat and one to each
/// neighbour that comes up; for each neighbour that is silent a probe and those of three helpers,
/// which take a third of a second together; or the repetition of an open exchange, at most four per
/// shortest lease.
fn most_messages(peer: u32, view: &View<'_>) -> f64 {
    let (counts, config) = (view.peers[peer as usize].counts(), view.config);
    let fragments = f64::from(view.scenario.fragments);
    let neighbours = view.neighbours(peer).len() as f64;
    let elapsed = view.now.as_secs_f64();
    let exchanges = fragments * (1 + config.redraws_max) as f64 * (counts.rounds + 1) as f64;
    let pulls = fragments * (counts.catch_ups + counts.ups + 1) as f64;
    let phases = 2 * (counts.catch_ups + counts.merges) + counts.commits + counts.ups + 2;
    let beats = elapsed / (config.heartbeat.as_secs_f64() / 2.0) + 1.0;
    let probes = beats + counts.ups as f64 + neighbours * DOUBT_PROBES * elapsed / DOUBT_SECONDS;
    let open = Gossip::open_max(config) as f64;
    let repeats = open * 4.0 * elapsed / config.lease_min.as_secs_f64();
    let set = if config.mixing == Mixing::Set {
        let told = phases + counts.halves;
        neighbours * fragments * (told as f64 + elapsed / REPEAT_SECONDS + 1.0)
            + FETCHES * (counts.received + counts.halves + counts.commits) as f64
            + FETCHES * elapsed
    } else {
        0.0
    };
    set + 2.0 * counts.received as f64
        + 3.0 * exchanges
        + 2.0 * pulls
        + neighbours * (phases as f64 + beats)
        + probes
        + repeats
}

impl Property for Traffic {
    fn name(&self) -> &'static str {
        "traffic"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        let Moment::Handled { peer } = moment else {
            return Ok(());
        };
        let sim = &view.peers[*peer as usize];
        let sent = sim.counts().messages + sim.counts().tensors;
        let most = most_messages(*peer, view);
        if sent as f64 > most {
            return Err(format!("p{peer} has sent {sent} messages, bound {most:.0}"));
        }
        Ok(())
    }
}
