//! One simulation from start to rest: faults, settling, agreeing, resting.

use std::fmt;
use std::io;
use std::time::Duration;

use dnode_gossip::Policy;
use dnode_protocol::Time;

use super::checks::Violation;
use super::defect::Defect;
use super::invariants::kept::Kept;
use super::invariants::property::Stage;
use super::invariants::within_parts;
use super::trace::Trace;
use super::world::World;
use crate::scenario::Scenario;

/// How much longer than others peers may take to agree where who falls behind is replaced.
const DROP_FACTOR: u32 = 16;

/// What a simulation that broke no invariant did.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Events.
    pub events: u64,
    /// Virtual time at the end.
    pub now: Time,
    /// Peers that live at the end.
    pub alive: usize,
    /// Rounds begun, all peers.
    pub rounds: u64,
    /// Commits, all peers.
    pub commits: u64,
    /// Exchanges that the initiator applied.
    pub applied: u64,
    /// Control messages sent.
    pub messages: u64,
    /// Their bytes, frames and all.
    pub control_bytes: u64,
    /// Tensors sent.
    pub tensors: u64,
    /// Their bytes, frames and all.
    pub tensor_bytes: u64,
    /// Catch-ups begun.
    pub catch_ups: u64,
    /// Squared consensus distance at the end, within connected parts.
    pub distance: f64,
    /// How exactly the rule has kept what it keeps, if that is a number.
    pub kept: Option<Kept>,
    /// Hash of the trace, when there is one.
    pub trace: Option<blake3::Hash>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events in {} of virtual time: {} alive, {} rounds, {} commits, {} exchanges, {} catch-ups, distance {:.3e}; per peer and round {:.1} messages of {:.0} B together and {:.2} tensors of {:.0} B together",
            self.events,
            self.now,
            self.alive,
            self.rounds,
            self.commits,
            self.applied,
            self.catch_ups,
            self.distance.sqrt(),
            self.per_round(self.messages),
            self.per_round(self.control_bytes),
            self.per_round(self.tensors),
            self.per_round(self.tensor_bytes),
        )?;
        if let Some(kept) = &self.kept {
            write!(f, "; {kept}")?;
        }
        self.trace.map_or(Ok(()), |hash| write!(f, ", trace {hash}"))
    }
}

impl Summary {
    /// `total` of all peers divided by the rounds of all peers.
    #[must_use]
    pub fn per_round(&self, total: u64) -> f64 {
        total as f64 / self.rounds.max(1) as f64
    }
}

/// Why a simulation has no summary.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// An invariant was broken.
    #[error("invariant \"{}\" broken after event {} at {}: {}", .0.property, .0.event, .0.now, .0.what)]
    Violated(Violation),
    /// The trace could not be written.
    #[error("write the trace: {0}")]
    Trace(#[from] io::Error),
}

/// Simulates `scenario` with `seed`.
///
/// # Errors
/// [`SimulationError::Violated`] with the first broken invariant.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    trace: Trace,
    defect: Option<Defect>,
) -> Result<Summary, SimulationError> {
    let mut world = World::new(scenario.clone(), seed, trace);
    world.plant(defect);
    if scenario.rounds == 0 {
        faulty_course(&mut world, scenario);
    } else {
        healthy_course(&mut world, scenario);
    }
    rest(&mut world);
    match world.violation() {
        Some(violation) => Err(SimulationError::Violated(violation.clone())),
        None => summarise(world),
    }
}

/// All peers do their rounds, those that come back from the dead included.
fn healthy_course(world: &mut World, scenario: &Scenario) {
    let rounds = u32::try_from(scenario.rounds).unwrap_or(u32::MAX);
    // Nobody is held longer than the slowest needs; ten times that is ample.
    let round = scenario.round_time.mul_f64(scenario.speed.largest()) + scenario.transfer_time();
    let limit = round * rounds * 10 + scenario.settle;
    let mut countdown = 0_u32;
    world.run_until(Time::ZERO + limit, |world| {
        countdown = countdown.checked_sub(1).unwrap_or(10_000);
        countdown == 0 && world.view().peers.iter().all(|peer| !peer.stays() || peer.finished())
    });
    world.calm();
    world.reached(Stage::Calm);
    world.reached(Stage::Settled);
}

/// Faults, then calm in which everybody must recover, then commits of zero until all agree.
fn faulty_course(world: &mut World, scenario: &Scenario) {
    world.run_until(Time::ZERO + scenario.faults_for, |_| false);
    world.calm();
    world.reached(Stage::Calm);
    let end = world.end_after(scenario.settle);
    world.run_until(end, |_| false);
    world.reached(Stage::Settled);
    world.make_still();
    world.reached(Stage::Still);
    let end = world.end_after(agreement_time(scenario));
    let start = within_parts(&world.view());
    let mut countdown = 0_u32;
    world.run_until(end, |world| {
        countdown = countdown.checked_sub(1).unwrap_or(500);
        countdown == 0 && within_parts(&world.view()) <= 1e-7 * start
    });
    world.reached(Stage::Agreed);
}

/// Time after which even a ring of all peers must agree.
///
/// On a line of `n`, what is left of a ring when one peer dies, the slowest mode shrinks by about
/// `2 − 2·cos(π/n) ≈ (π/n)²` per round, so a factor of 10⁻⁷ takes `16·n²/9.9` rounds. Twenty times
/// that is ample: partners are busy, samples weigh unequally, and near partners are preferred to far
/// ones. Who agrees sooner stops sooner, so only a schedule that never agrees pays for it.
///
/// Under policy drop that is no bound: a slow peer is replaced by the replica of a fast neighbour
/// again and again, and what it carried goes with it, so a chain of slow peers passes on only what
/// outlives the replacing. The slowest known, seven in a row (seed 63779), takes five times as long.
///
/// A round takes at least as long as one exchange of each fragment: four messages and three pieces
/// of trainer work; twice, because partners are often busy.
fn agreement_time(scenario: &Scenario) -> Duration {
    let replacing = if scenario.rule.policy == Policy::Drop { DROP_FACTOR } else { 1 };
    let rounds = (32 * scenario.peers * scenario.peers + 800) * replacing;
    let mean_delay = scenario.link.delay.mul_f64((scenario.link.jitter.powi(2) / 2.0).exp());
    let exchange = mean_delay * 4 + scenario.work * 3 + scenario.transfer_time();
    let round = scenario.round_time.mul_f64(scenario.speed.largest() / scenario.speed.smallest());
    round.max(exchange * 2 * scenario.fragments) * rounds
}

/// Trainers stop; every open exchange ends by agreement or by the end of its journal window.
fn rest(world: &mut World) {
    world.stop();
    let view = world.view();
    let config = view.config;
    let limit = config.journal_window * 2 + config.lease_max * 4 + config.forget_after;
    let end = world.end_after(limit);
    // Whatever still travels must arrive: one more second after the last exchange ended.
    world.run_until(end, all_at_rest(world.view().scenario.peers));
    let last = world.end_after(Duration::from_secs(1));
    world.run_until(last, |_| false);
    world.run_until(end, all_at_rest(world.view().scenario.peers));
    if world.view().config.mixing == dnode_gossip::Mixing::Set {
        // What is lacking is asked for as often as it is told, and no exchange is open meanwhile.
        // Contributions of zero may still be lacking when the values are equal.
        world.run_until(end, |world| within_parts(&world.view()) <= 0.0);
        world.run_until(end, all_at_rest(world.view().scenario.peers));
    }
    world.reached(Stage::Rest);
}

/// Whether every peer rests; looks at one that does not first, so that asking is cheap.
fn all_at_rest(peers: u32) -> impl FnMut(&World) -> bool {
    let mut first = 0;
    move |world| {
        let busy =
            (0..peers).map(|offset| (first + offset) % peers).find(|peer| !world.rests(*peer));
        first = busy.unwrap_or(first);
        busy.is_none()
    }
}

fn summarise(world: World) -> Result<Summary, SimulationError> {
    let peers = world.view().peers;
    let total = |count: fn(&super::counts::Counts) -> u64| -> u64 {
        peers.iter().map(|peer| count(peer.counts())).sum()
    };
    let mut summary = Summary {
        events: world.events(),
        now: world.now(),
        alive: peers.iter().filter(|peer| peer.host().is_some()).count(),
        rounds: total(|counts| counts.rounds),
        commits: total(|counts| counts.commits),
        applied: total(|counts| counts.applied),
        messages: total(|counts| counts.messages),
        control_bytes: total(|counts| counts.control_bytes),
        tensors: total(|counts| counts.tensors),
        tensor_bytes: total(|counts| counts.tensor_bytes),
        catch_ups: total(|counts| counts.catch_ups),
        distance: within_parts(&world.view()),
        kept: world.kept(),
        trace: None,
    };
    summary.trace = world.into_trace().finish()?;
    Ok(summary)
}
