//! Random schedules: one seed draws the peers, their speeds, their lines and every fault.

use std::time::Duration;

use dnode_gossip::{Balance, Budget, Config, FETCHES_MAX, Interval, Pace, Weighting};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::scenario::fault::{Fault, FaultRates, Return, Scripted};
use crate::scenario::link::LinkModel;
use crate::scenario::rules::{MixingRule, RuleSettings};
use crate::scenario::spread::{Class, Spread};
use crate::scenario::{GossipSettings, Scenario};

/// Time without faults in which everybody must recover: this, and so many rounds. The longest chain
/// of waits: a dead connection goes unnoticed (6 s), then the longest back-off (8 s), and leases.
const SETTLE: (Duration, u32) = (Duration::from_secs(60), 20);
/// Commits that wait for news of all neighbours for which a swarm has time to settle beyond that.
const NEWS: u32 = 3;
/// Share of the schedules whose rule is delta-set; one of them takes as long as ten others.
const DELTA_SET: f64 = 0.03;
/// Share of the schedules with exchanges of two fragments and more in which half of them are moments.
const MOMENTS: f64 = 0.3;
/// Longest wait of a trainer before its first step, in the half of the schedules that have such.
const WAIT_MAX: Duration = Duration::from_secs(5);

impl Scenario {
    /// A short random schedule: any number of peers from 2 to 12 under any mix of faults.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let link = random_link(&mut rng);
        let gossip = random_gossip(&mut rng);
        let rule = RuleSettings::random(&mut rng);
        let faults = random_faults(&mut rng);
        let speed = random_spread(&mut rng, 4.0, 0.5);
        let mut scenario = Self {
            peers: rng.random_range(2..13),
            fragments: rng.random_range(1..5),
            neighbours: rng.random_range(1..6),
            faults_for: Duration::from_secs(rng.random_range(10..30)),
            round_time: Duration::from_millis(rng.random_range(40..1500)),
            speed,
            poisson: rng.random_bool(0.3),
            rounds_per_commit: rng.random_range(1..4),
            work: Duration::from_millis(rng.random_range(0..200)),
            rule,
            link,
            gossip,
            faults,
            ..Self::default()
        };
        scenario.lengthen_rounds();
        scenario.draw_lines(&mut rng);
        scenario.draw_split(&mut rng);
        if rng.random_bool(DELTA_SET) {
            scenario.be_delta_set(&mut rng);
        } else if scenario.fragments > 1 {
            scenario.gossip.moments = rng.random_bool(MOMENTS);
        }
        scenario.untrained = rng.random_bool(0.5);
        if rng.random_bool(0.5) {
            scenario.wait = WAIT_MAX.mul_f64(rng.random());
        }
        scenario.draw_interval(&mut rng);
        scenario.lengthen_rounds();
        scenario
    }

    /// A random schedule whose rule is delta-set, with rounds so short that peers have committed often
    /// when they die. Half of the schedules have them back while others keep what they lack.
    #[must_use]
    pub fn random_delta_set(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        scenario.be_delta_set(&mut rng);
        (scenario.work, scenario.link.delay) = (scenario.work / 10, scenario.link.delay / 10);
        scenario.link.bandwidth *= 10.0;
        scenario.round_time = Duration::from_millis(rng.random_range(20..200));
        scenario.lengthen_rounds();
        scenario.faults.crashes = rng.random_range(2.0..20.0);
        scenario.faults.downtime = scenario.round_time * if rng.random_bool(0.5) { 2 } else { 40 };
        scenario
    }

    /// A random schedule whose peers work by their speed, half of them on a global batch, and whose gate
    /// follows the measured step time.
    #[must_use]
    pub fn random_paced(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        let may_weigh = scenario.rule.kind == MixingRule::Exchange;
        let by_samples = rng.random_bool(0.5) && may_weigh;
        let balance = if by_samples { Balance::Batch } else { Balance::Steps };
        let mut pace = Pace { balance, batch: 8, ..Pace::default() };
        if rng.random_bool(0.5) {
            let whole = u64::from(scenario.peers) * pace.reference().samples();
            let part = rng.random_range(0.5..2.0);
            pace.global_batch = (whole as f64 * part) as u64;
            // The slowest may do all of it alone, twice, before it hears of others.
            let alone = scenario.speed.largest() * part * f64::from(scenario.peers);
            scenario.settle += scenario.round_time.mul_f64(2.0 * alone);
        }
        scenario.rule.weighting = match balance {
            Balance::Batch => Weighting::Samples,
            Balance::Off | Balance::Steps => Weighting::Equal,
        };
        scenario.gossip.pace = pace;
        scenario.gossip.gate_timeout = Duration::ZERO;
        scenario
    }

    /// Half of the schedules have an interval between rounds that follows the link, as it does by
    /// default, or a budget: from a hundredth of a whole exchange of 32 bits a step to all of it.
    fn draw_interval(&mut self, rng: &mut ChaCha8Rng) {
        if self.rule.kind != MixingRule::Exchange || rng.random_bool(0.5) {
            return;
        }
        let parameters = self.parameters.max(1_000);
        let bytes = (parameters as f64 * 4.0 * rng.random_range(0.01..1.0)) as u64;
        let bytes_per_step = rng.random_bool(0.5).then_some(bytes);
        let moments = self.gossip.moments;
        let budget = Budget { link_share: 0.5, bytes_per_step, parameters, moments };
        self.gossip.interval = Interval::Follow(budget);
    }

    /// Makes delta-set the rule, whose peers come back with their checkpoints, without, or either; in
    /// a third of the schedules all of them die at one time.
    fn be_delta_set(&mut self, rng: &mut ChaCha8Rng) {
        self.rule.kind = MixingRule::DeltaSet;
        self.gossip.moments = false;
        self.gossip.interval = GossipSettings::default().interval;
        self.faults.resume = [0.0, 0.5, 1.0][rng.random_range(0..3)];
        if !rng.random_bool(1.0 / 3.0) {
            return;
        }
        let length = self.faults_for.as_secs_f64();
        let die = length * rng.random_range(0.2..0.8);
        for peer in 0..self.peers {
            let at = Duration::from_secs_f64(die);
            self.script.push(Scripted { at, fault: Fault::Crash { peer } });
            if peer == 0 || rng.random_bool(0.8) {
                let back = die + (length - die) * rng.random::<f64>();
                let fault = Fault::Restart { peer, with: Return::Checkpoint };
                self.script.push(Scripted { at: Duration::from_secs_f64(back), fault });
            }
        }
    }

    /// Half of the schedules have lines of limited bandwidth: exchanging every fragment once takes
    /// the slowest line that can be drawn between 1 % and all of a round. A round shorter than its
    /// exchanges cannot keep the snapshot bound, whatever the core does.
    fn draw_lines(&mut self, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.5) {
            return;
        }
        self.parameters = rng.random_range(1_000..10_000_000);
        self.codec_bits = [32, 8, 4][rng.random_range(0..3)];
        self.link.spread = random_spread(rng, 4.0, 0.5);
        self.link.uplink = rng.random_range(0.25..1.0);
        let load = 0.01 * 100_f64.powf(rng.random());
        let bits = 2.0 * 8.0 * self.sizes().tensor(self.width) as f64 * f64::from(self.fragments);
        let slowest = bits / (load * self.round_time.as_secs_f64());
        self.link.bandwidth = slowest / (self.link.spread.smallest() * self.link.uplink);
    }

    /// A fifth of the schedules have a partition of a named share that heals.
    fn draw_split(&mut self, rng: &mut ChaCha8Rng) {
        if !rng.random_bool(0.2) {
            return;
        }
        let length = self.faults_for.as_secs_f64();
        let mut times = [rng.random::<f64>(), rng.random()];
        times.sort_by(f64::total_cmp);
        let [begin, end] = times.map(|part| Duration::from_secs_f64(part * length));
        let fault = Fault::Split { percent: rng.random_range(10..91), both: rng.random_bool(0.5) };
        self.script.push(Scripted { at: begin, fault });
        self.script.push(Scripted { at: end, fault: Fault::Heal {} });
    }

    /// Makes rounds long enough for what is drawn so far.
    fn lengthen_rounds(&mut self) {
        self.round_time = self.round_time.max(self.least_round_time());
        self.settle = SETTLE.0 + self.round_time * SETTLE.1;
        // A commit may need news of every fragment from every neighbour (seed 221794).
        let age = u32::try_from(self.gossip.information_age).unwrap_or(u32::MAX);
        let news = (self.fragments * self.neighbours).checked_div(age).unwrap_or(0);
        self.settle += self.exchange_time() * news * NEWS;
    }

    fn mean_delay(&self) -> Duration {
        self.link.delay.mul_f64((self.link.jitter.powi(2) / 2.0).exp())
    }

    /// The time that an exchange takes beside another one on the same lines.
    fn exchange_time(&self) -> Duration {
        (self.mean_delay() * 2 + self.work + self.transfer_time()) * 2
    }

    /// A progress gap that a peer uses up within a round trip cannot be kept: whoever is once
    /// behind hears of the others' clocks too late to come back. And a snapshot that is always too
    /// old when the reply comes is never applied: its exchange, with another one on the same lines,
    /// must fit into the bound at the fastest peer.
    fn least_round_time(&self) -> Duration {
        let bound = self.gossip.progress_gap.min(self.gossip.snapshot_age + 1);
        let fastest = self.speed.smallest() * self.rounds_per_commit as f64;
        let least = self.exchange_time().mul_f64(1.0 / (fastest * bound as f64));
        if self.rule.kind == MixingRule::DeltaSet {
            // Who adds more slowly than others contribute falls behind for ever. Work takes half of
            // `work` on average, so trainers are busy with it for half of their time at most.
            let contribution = self.work + self.transfer_time() / 2;
            let count = self.peers * self.fragments;
            // The same of who asks for so many at a time only: its questions are under way for half
            // of its time at most.
            let turns = count.div_ceil(u32::try_from(FETCHES_MAX).unwrap_or(u32::MAX));
            let asking = (self.mean_delay() * 2 + contribution) * turns * 2;
            return least.max((contribution * count).max(asking).mul_f64(1.0 / fastest));
        }
        least
    }
}

/// Exchanges that may be open at a time; the last is the product's.
const OPEN_MAX: [usize; 5] = [1, 2, 3, 4, 16];

fn random_gossip(rng: &mut ChaCha8Rng) -> GossipSettings {
    GossipSettings {
        progress_gap: rng.random_range(1..6),
        snapshot_age: rng.random_range(0..3),
        information_age: if rng.random_bool(0.3) { rng.random_range(1..10) } else { 0 },
        gate_timeout: Duration::from_secs(rng.random_range(1..8)),
        journal_window: Duration::from_secs(rng.random_range(31..60)),
        back_off_max: Duration::from_secs(8),
        pace: Pace::default(),
        interval: Config::default().interval,
        moments: false,
        heartbeat: Duration::from_millis([500, 1000, 2000][rng.random_range(0..3)]),
        own_max: OPEN_MAX[rng.random_range(0..OPEN_MAX.len())],
        answered_max: OPEN_MAX[rng.random_range(0..OPEN_MAX.len())],
    }
}

fn random_faults(rng: &mut ChaCha8Rng) -> FaultRates {
    let mut rate = |chance: f64, most: f64| {
        if rng.random_bool(chance) { rng.random_range(0.0..most) } else { 0.0 }
    };
    FaultRates {
        crashes: rate(0.5, 8.0),
        leaves: rate(0.3, 2.0),
        pauses: rate(0.5, 8.0),
        cuts: rate(0.5, 6.0),
        restart: 0.8,
        ..FaultRates::default()
    }
}

fn random_link(rng: &mut ChaCha8Rng) -> LinkModel {
    let mut chance = |chance: f64, most: f64| {
        if rng.random_bool(chance) { rng.random_range(0.0..most) } else { 0.0 }
    };
    let (loss, duplicate, jitter) = (chance(0.5, 0.3), chance(0.5, 0.2), chance(0.7, 1.2));
    LinkModel {
        delay: Duration::from_millis(rng.random_range(1..150)),
        jitter,
        loss,
        duplicate,
        reorder: rng.random_bool(0.5),
        ..LinkModel::default()
    }
}

/// Any kind of distribution: a ratio up to `ratio`, a log-normal deviation up to `sigma`, or one
/// class of peers.
fn random_spread(rng: &mut ChaCha8Rng, ratio: f64, sigma: f64) -> Spread {
    match rng.random_range(0..3) {
        0 => Spread::Uniform { ratio: rng.random_range(1.0..ratio) },
        1 => Spread::LogNormal { sigma: rng.random_range(0.0..sigma) },
        _ => {
            let (share, factor) = (rng.random_range(0.1..0.6), rng.random_range(0.4..ratio));
            Spread::Classes { classes: vec![Class { share, factor }] }
        }
    }
}

#[cfg(test)]
mod tests {
    use dnode_gossip::{Policy, Schedule};

    use super::*;

    #[test]
    fn random_scenarios_are_legal() {
        for seed in 0..2000 {
            Scenario::random(seed).check().unwrap();
            Scenario::random_paced(seed).check().unwrap();
        }
    }

    #[test]
    fn random_scenarios_draw_every_dimension() {
        let drawn: Vec<Scenario> = (0..200).map(Scenario::random).collect();
        let share = |has: fn(&Scenario) -> bool| drawn.iter().filter(|s| has(s)).count();
        for (what, count) in [
            ("bandwidth", share(|s| s.link.bandwidth > 0.0)),
            ("log-normal speed", share(|s| matches!(s.speed, Spread::LogNormal { .. }))),
            ("classes of speed", share(|s| matches!(s.speed, Spread::Classes { .. }))),
            ("split", share(|s| !s.script.is_empty())),
            ("cuts", share(|s| s.faults.cuts > 0.0)),
            ("crashes", share(|s| s.faults.crashes > 0.0)),
            ("ring", share(|s| s.rule.schedule == Schedule::Ring)),
            ("drop", share(|s| s.rule.policy == Policy::Drop)),
            ("block", share(|s| s.rule.policy == Policy::Block)),
            ("codes", share(|s| s.rule.codecs.len() > 1)),
            ("moments", share(|s| s.gossip.moments)),
            ("untrained", share(|s| s.untrained)),
            ("waits", share(|s| !s.wait.is_zero())),
            ("samples", share(|s| s.rule.weighting == Weighting::Samples)),
            ("loss", share(|s| s.link.loss > 0.0)),
        ] {
            assert!((15..185).contains(&count), "{what}: {count} of 200");
        }
    }
}
