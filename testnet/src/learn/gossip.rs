//! The variants that gossip: the product's cores in the simulator, with real replicas.

use std::time::Duration;

use dnode_gossip::testing::{Bytes, Effect, Replica};
use dnode_gossip::{Budget, Config, Interval, Mixing, Pace};
use dnode_protocol::frame::TENSOR_HEADER_BYTES;
use dnode_protocol::limits::TENSOR_PAYLOAD_BYTES_MAX;
use dnode_protocol::{Fragments, Time};

use super::case::{LearnError, MixingName, SimulatedCase, SimulatedVariant};
use super::misbehaviour::{Mask, forge};
use super::outcome::{Healed, Joined, Outcome, Point, Quality, mean};
use super::replica::{ModelReplica, OfferBlocks, payload_bytes};
use super::swarm::{Evaluator, fragments, replica};
use super::tail::Tails;
use crate::experiment::{Newcomer, Split};
use crate::sim::peer::SimPeer;
use crate::sim::{Fleet, Learning, Trace, World};

/// Longest virtual time, times the slowest peer's steps at the run's number of steps.
const PATIENCE: u32 = 20;
/// Rounds after the last step, a few times what the product settles by.
const SETTLE_ROUNDS: u32 = 12;
/// Within this time everybody has been told of the last commit, and has asked for what it lacks.
const NEWS_TIME: Duration = Duration::from_secs(2);
/// Longest time that open exchanges are waited for.
const REST_MAX: Duration = Duration::from_secs(60);

/// Replicas that were built beforehand, so that a file that is missing is found early, and those of
/// peers that start again.
#[derive(Debug)]
struct Built {
    case: SimulatedCase,
    variant: SimulatedVariant,
    seed: u64,
    replicas: Vec<Option<ModelReplica>>,
    blocks: OfferBlocks,
}

impl Fleet for Built {
    fn replica(&mut self, peer: u32) -> Box<dyn Replica> {
        let built = self.replicas.get_mut(peer as usize).and_then(Option::take);
        let again = || {
            let replica = replica(&self.case, &self.variant, self.seed, peer);
            replica.map(|replica| masked(&self.case, (replica, &self.blocks), peer))
        };
        Box::new(built.unwrap_or_else(|| again().expect("the files were read before")))
    }

    fn leaves(&self, peer: u32, effect: Effect) -> Option<Effect> {
        match self.case.wrong(peer) {
            Some(wrong) => forge(&wrong, effect),
            None => Some(effect),
        }
    }

    fn tensor_bytes(&self, numbers: &Bytes) -> u64 {
        let payload = payload_bytes(numbers);
        let frames = payload.div_ceil(TENSOR_PAYLOAD_BYTES_MAX).max(1);
        (payload + frames * TENSOR_HEADER_BYTES) as u64
    }
}

/// Part of the link's time that exchanges may take, as by default.
const LINK_SHARE: f64 = 0.5;

/// The gossip configuration of a variant.
#[must_use]
fn config(case: &SimulatedCase, variant: &SimulatedVariant, fragments: Fragments) -> Config {
    let mixing = match variant.rule {
        MixingName::AllReduce | MixingName::GossipOuter | MixingName::Pairwise => Mixing::Exchange,
        MixingName::DeltaSet => Mixing::Set,
    };
    let batch = u32::try_from(case.batch).unwrap_or(u32::MAX);
    let (local_steps, balance) = (variant.local_steps, variant.balance);
    Config {
        mixing,
        schedule: variant.schedule,
        policy: variant.staleness,
        codecs: variant.codecs.clone(),
        guard: variant.guard,
        pace: Pace { local_steps, batch, balance, global_batch: 0 },
        interval: match variant.mix_every {
            Some(steps) => Interval::Fixed(steps),
            None => Interval::Follow(Budget {
                link_share: LINK_SHARE,
                bytes_per_step: variant.budget,
                parameters: fragments.parameters() as u64,
                moments: variant.moments,
            }),
        },
        first_of_moments: fragments.first_of_moments(),
        ..Config::default()
    }
}

/// Runs the variant with the seed.
///
/// # Errors
/// [`LearnError`].
pub(super) fn run(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
) -> Result<Outcome, LearnError> {
    let mut evaluator = Evaluator::new(case, seed)?;
    let parameters = evaluator.parameters();
    let config = config(case, variant, fragments(variant, parameters)?);
    config.check()?;
    let blocks = OfferBlocks::default();
    let mut world = world(case, variant, seed, config.clone(), &blocks)?;
    let mut measured = Measured { case, variant, seed, parameters, outcome: Outcome::default() };
    let peers = u64::from(case.peers);
    let (every, total) = (case.evaluate_every, case.steps);
    let steps = u32::try_from(total).unwrap_or(u32::MAX);
    let end = Time::ZERO + case.slowest() * steps * PATIENCE;
    if let Some(split) = case.condition.split {
        measured.heal(&mut world, &mut evaluator, split)?;
    }
    if let Some(newcomer) = &case.condition.newcomer {
        // As before, but nobody joins.
        let mut without = case.clone();
        let at = end.since(Time::ZERO) + Duration::from_secs(1);
        without.condition.newcomer = Some(Newcomer { at, ..newcomer.clone() });
        let uncounted = OfferBlocks::default();
        let mut alone = self::world(&without, variant, seed, config, &uncounted)?;
        measured.outcome.joined = Some(Joined {
            alone: measured.beside(&mut alone, &mut evaluator, newcomer)?,
            beside: measured.beside(&mut world, &mut evaluator, newcomer)?,
        });
    }
    let mut next = (steps_of(world.view().peers) / peers / every + 1) * every;
    let mut tails = Tails::new(&case.simulation.tails, total);
    while let Some(due) =
        [Some(next).filter(|next| *next < total), tails.next()].into_iter().flatten().min()
    {
        let enough = |peers_of: &[SimPeer]| steps_of(peers_of) >= due * peers || all_done(peers_of);
        world.run_until(end, |world| broken(world) || enough(world.view().peers));
        measured.check(&world)?;
        if all_done(world.view().peers) {
            break;
        }
        if tails.next() == Some(due) {
            tails.take(due, &mean(&replicas(&world, parameters)));
        }
        if due == next {
            measured.point(&world, &mut evaluator, false)?;
            next += every;
        }
    }
    let done = world.run_until(end, |world| broken(world) || all_done(world.view().peers));
    measured.check(&world)?;
    if !done {
        return Err(measured.fail(format!("not all peers had finished at {}", world.now())));
    }
    let finished = world.now();
    rest(&mut world);
    measured.point_at(&world, &mut evaluator, finished)?;
    measured.end(&world, &mut evaluator, finished)?;
    let last = mean(&replicas(&world, parameters));
    measured.outcome.tails =
        tails.losses(&last, &mut evaluator).map_err(|what| measured.fail(what))?;
    [measured.outcome.blocks, measured.outcome.blocks_unread] = blocks.counts();
    for _ in 0..SETTLE_ROUNDS {
        world.exchange_once();
        rest(&mut world);
    }
    measured.outcome.settled = Some(measured.quality(&world, &mut evaluator, false)?);
    Ok(measured.outcome)
}

/// What is under way arrives.
fn rest(world: &mut World) {
    let first = world.end_after(NEWS_TIME);
    world.run_until(first, |_| false);
    let end = world.end_after(REST_MAX);
    world.run_until(end, |world| (0..world.view().scenario.peers).all(|peer| world.rests(peer)));
}

fn world(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    config: Config,
    blocks: &OfferBlocks,
) -> Result<World, LearnError> {
    let peers = 0..case.peers;
    let mut scenario = case.scenario(variant);
    let build = |peer| Ok(Some(masked(case, (replica(case, variant, seed, peer)?, blocks), peer)));
    let replicas = peers.map(build).collect::<Result<Vec<_>, LearnError>>()?;
    // A small model may have fewer fragments than the variant asks for.
    let count = replicas.iter().flatten().map(|it| it.fragments().count()).max().unwrap_or(1);
    scenario.fragments = u32::try_from(count).unwrap_or(u32::MAX);
    let learning = Learning {
        fleet: Box::new(Built {
            case: case.clone(),
            variant: variant.clone(),
            seed,
            replicas,
            blocks: blocks.clone(),
        }),
        step_times: (0..case.peers as usize).map(|p| case.step_time(p)).collect(),
        steps: case.steps,
        local_steps: variant.local_steps,
        mix_every: variant.first_interval(),
        contributes: variant.rule == MixingName::DeltaSet,
        together: case.simulation.together,
        seen: crate::sim::Seen::default(),
    };
    Ok(World::with(scenario, config, Some(learning), seed, Trace::off()))
}

/// A replica as its peer shows it.
fn masked(
    case: &SimulatedCase,
    (replica, blocks): (dnode_trainer::Replica, &OfferBlocks),
    peer: u32,
) -> ModelReplica {
    let honest = ModelReplica::new(replica, blocks.clone());
    let mask = Mask::of(case.wrong(peer), || honest.weights());
    honest.behind(mask)
}

fn steps_of(peers: &[SimPeer]) -> u64 {
    peers.iter().map(|peer| peer.counts().steps).sum()
}

/// The weights of every peer, each `[P]`, without moments.
fn replicas(world: &World, parameters: usize) -> Vec<Vec<f32>> {
    let hosts = world.view().peers.iter().filter_map(|peer| peer.host());
    let weights =
        |values: Vec<f64>| values.into_iter().take(parameters).map(|value| value as f32).collect();
    hosts.map(|host| weights(host.values())).collect()
}

/// The mean of two sides, each as much as the steps that it did.
fn weighted(sides: [&[Vec<f32>]; 2], steps: [u64; 2]) -> Vec<f32> {
    let total = (steps[0] + steps[1]).max(1) as f64;
    let mut sum = vec![0.0_f64; sides[0].first().map_or(0, Vec::len)];
    for (side, steps) in sides.into_iter().zip(steps) {
        let share = steps as f64 / total / side.len().max(1) as f64;
        for replica in side {
            sum.iter_mut().zip(replica).for_each(|(s, value)| *s += share * f64::from(*value));
        }
    }
    sum.into_iter().map(|value| value as f32).collect()
}

/// Whether all but the dead have finished; who has not started yet is waited for.
fn all_done(peers: &[SimPeer]) -> bool {
    let dead = |peer: &SimPeer| peer.host().is_none() && peer.incarnation() > 0;
    peers.iter().any(|peer| peer.finished())
        && peers.iter().all(|peer| peer.finished() || dead(peer))
}

fn broken(world: &World) -> bool {
    world.learning().is_some_and(|learning| learning.seen.broken.is_some())
}

struct Measured<'a> {
    case: &'a SimulatedCase,
    variant: &'a SimulatedVariant,
    seed: u64,
    /// Parameters of the model.
    parameters: usize,
    outcome: Outcome,
}

impl Measured<'_> {
    fn fail(&self, what: String) -> LearnError {
        LearnError::Training { variant: self.variant.name.clone(), seed: self.seed, what }
    }

    fn check(&self, world: &World) -> Result<(), LearnError> {
        let broken = world.learning().and_then(|learning| learning.seen.broken.clone());
        broken.map_or(Ok(()), |what| Err(self.fail(what)))
    }

    /// Lets the peers train in two parts, heals, and measures what has become of both.
    fn heal(
        &mut self,
        world: &mut World,
        evaluator: &mut Evaluator,
        split: Split,
    ) -> Result<(), LearnError> {
        let side = split.peers as usize;
        let steps = |world: &World| {
            let (one, other) = world.view().peers.split_at(side);
            [steps_of(one), steps_of(other)]
        };
        let run = |world: &mut World, at: Duration| {
            world.run_until(Time::ZERO + at, broken);
        };
        run(world, split.at);
        let before = steps(world);
        let end = split.at + split.time;
        run(world, end);
        let mut healed = Healed::default();
        for (index, after) in steps(world).into_iter().enumerate() {
            healed.steps[index] = after - before[index];
        }
        let replicas = replicas(world, self.parameters);
        let (one, other) = replicas.split_at(side);
        let of = |evaluator: &mut Evaluator, replicas: &[Vec<f32>]| {
            Quality::measure(evaluator, replicas, true).map_err(|what| self.fail(what))
        };
        healed.sides = [of(evaluator, one)?, of(evaluator, other)?];
        healed.weighted = of(evaluator, &[weighted([one, other], healed.steps)])?;
        let steps = u32::try_from(self.variant.first_interval()).unwrap_or(u32::MAX);
        run(world, end + self.case.slowest() * steps * split.rounds);
        self.check(world)?;
        healed.merged = self.quality(world, evaluator, true)?;
        self.outcome.healed = Some(healed);
        Ok(())
    }

    /// The mean loss of all but the newcomer after each number of rounds.
    fn beside(
        &self,
        world: &mut World,
        evaluator: &mut Evaluator,
        newcomer: &Newcomer,
    ) -> Result<Vec<f64>, LearnError> {
        let others = self.case.peers as usize - 1;
        let round = self.case.simulation.step_time.mul_f64(self.variant.first_interval() as f64);
        let mut losses = Vec::new();
        for rounds in &newcomer.rounds {
            let at = newcomer.at + round * *rounds;
            world.run_until(Time::ZERO + at, broken);
            self.check(world)?;
            let quality =
                Quality::measure(evaluator, &replicas(world, self.parameters)[..others], true);
            let quality = quality.map_err(|what| self.fail(what))?;
            losses.push(quality.peers.iter().sum::<f64>() / others as f64);
        }
        Ok(losses)
    }

    fn quality(
        &self,
        world: &World,
        evaluator: &mut Evaluator,
        all: bool,
    ) -> Result<Quality, LearnError> {
        Quality::measure(evaluator, &replicas(world, self.parameters), all)
            .map_err(|what| self.fail(what))
    }

    fn point(
        &mut self,
        world: &World,
        evaluator: &mut Evaluator,
        all: bool,
    ) -> Result<(), LearnError> {
        let quality = self.quality(world, evaluator, all)?;
        let samples = steps_of(world.view().peers) * self.case.batch as u64;
        self.outcome.points.push(Point { samples, seconds: seconds(world.now()), quality });
        Ok(())
    }

    fn point_at(
        &mut self,
        world: &World,
        evaluator: &mut Evaluator,
        at: Time,
    ) -> Result<(), LearnError> {
        self.point(world, evaluator, false)?;
        if let Some(point) = self.outcome.points.last_mut() {
            point.seconds = seconds(at);
        }
        Ok(())
    }

    fn end(
        &mut self,
        world: &World,
        evaluator: &mut Evaluator,
        finished: Time,
    ) -> Result<(), LearnError> {
        let last = self.quality(world, evaluator, true)?;
        let view = world.view();
        let counts = view.peers.iter().map(|peer| peer.counts());
        let outcome = &mut self.outcome;
        outcome.last = last;
        outcome.tensor_bytes = counts.clone().map(|counts| counts.tensor_bytes).collect();
        outcome.control_bytes = counts.clone().map(|counts| counts.control_bytes).collect();
        outcome.steps = counts.clone().map(|counts| counts.steps).collect();
        outcome.commits = counts.map(|counts| counts.commits).collect();
        outcome.seconds = seconds(finished);
        outcome.parameters = self.parameters;
        (outcome.variant, outcome.seed) = (self.variant.name.clone(), self.seed);
        if let Some(learning) = world.learning() {
            let seen = &learning.seen;
            (outcome.lags, outcome.ages) = (seen.lags.clone(), seen.ages.clone());
            (outcome.applied, outcome.failed) = (seen.applied, seen.failed);
            outcome.guarded.clone_from(&seen.guarded);
            outcome.left_out_by.clone_from(&seen.left_out_by);
        }
        Ok(())
    }
}

fn seconds(time: Time) -> f64 {
    time.as_micros() as f64 * 1e-6
}
