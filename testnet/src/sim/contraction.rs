//! How much of the consensus distance each exchange leaves, where peers do nothing but mix.

use std::time::Duration;

use dnode_protocol::Time;

use super::checks::Violation;
use super::invariants::distance_squared;
use super::trace::Trace;
use super::world::World;
use crate::scenario::link::LinkModel;
use crate::scenario::{Scenario, Spread};

/// By then the first heartbeats have come, and everybody is an eligible partner.
const FIRST_HEARTBEATS: Time = Time::from_millis(600);
/// The longest wait for an exchange.
const EXCHANGE_MAX: Duration = Duration::from_secs(3600);

/// Peers that only mix, all with all, once in `round_time` on average.
///
/// Nobody commits, so partners are drawn uniformly. Where exchanges are much shorter than
/// `round_time`, a drawn partner is hardly ever busy.
#[must_use]
pub fn mixing_only(peers: u32, round_time: Duration) -> Scenario {
    Scenario {
        peers,
        fragments: 1,
        width: 4,
        neighbours: peers - 1,
        round_time,
        speed: Spread::NONE,
        poisson: true,
        rounds_per_commit: u64::MAX,
        increment: 0.0,
        work: Duration::ZERO,
        link: LinkModel { delay: Duration::from_micros(200), ..LinkModel::default() },
        ..Scenario::default()
    }
}

/// The squared consensus distance of all living peers.
#[must_use]
pub fn distance(world: &World) -> f64 {
    distance_squared(&world.view().hosts().map(|(_, host)| host).collect::<Vec<_>>())
}

/// The ratios of the squared distance after and before each exchange, until only the part `enough`
/// of it is left.
///
/// # Errors
/// The broken invariant, or nothing when an exchange never came.
pub fn ratios(scenario: Scenario, seed: u64, enough: f64) -> Result<Vec<f64>, Option<Violation>> {
    let mut world = World::new(scenario, seed, Trace::off());
    world.run_until(FIRST_HEARTBEATS, |_| false);
    let applied =
        |world: &World| world.view().peers.iter().map(|peer| peer.counts().applied).sum::<u64>();
    let mut before = distance(&world);
    let enough = before * enough;
    let (mut count, mut ratios) = (applied(&world), Vec::new());
    while before > enough {
        let end = world.end_after(EXCHANGE_MAX);
        if !world.run_until(end, |world| applied(world) > count) {
            return Err(world.violation().cloned());
        }
        count = applied(&world);
        let after = distance(&world);
        ratios.push(after / before);
        before = after;
    }
    Ok(ratios)
}
