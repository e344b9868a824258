//! What a peer chooses for itself in a run: the step it ends at, and the shard it draws from.
//! It also reports the settings in which its neighbours differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dnode_gossip::{Claim, ShardReview, choose_shard, review_shard};
use dnode_protocol::{Message, Part, PeerId, RunDifference};

use super::host::Host;
use crate::config::{Config, DATA_DIGEST};

/// Largest number of warnings about differences, one for each peer and field.
const TOLD_MAX: usize = 1024;

/// Shortest time between two changes of this peer's shard.
const MOVE_EVERY: Duration = Duration::from_secs(10);

/// The [`Part`] of this peer, and those that its neighbours have sent.
#[derive(Debug)]
pub(crate) struct Course {
    me: PeerId,
    mine: Part,
    /// The step at which this peer ends, whether a person has set it or not.
    end: u64,
    /// Local steps per commit of a peer of mean speed.
    local_steps: u64,
    /// Parts of connected peers, so there are no more than `network.peers_max`.
    heard: BTreeMap<PeerId, Part>,
    /// Connected peers that train on other data, so that their shards are not those of this peer.
    apart: BTreeSet<PeerId>,
    told: BTreeSet<(PeerId, String)>,
    /// When it last chose another shard.
    moved: Option<Instant>,
}

/// What a peer settles before it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// The step it ends at, where it takes over that of others.
    end: Option<u64>,
    /// The shard it draws from, where nobody has set it.
    shard: Option<u32>,
}

impl Course {
    /// Of a peer that knows no other yet.
    pub(crate) const fn new(me: PeerId, part: Part, config: &Config) -> Self {
        Self {
            me,
            mine: part,
            end: config.run.steps,
            local_steps: config.gossip.local_steps,
            heard: BTreeMap::new(),
            apart: BTreeSet::new(),
            told: BTreeSet::new(),
            moved: None,
        }
    }

    /// What is told to a neighbour.
    const fn message(&self) -> Message {
        Message::Part(self.mine)
    }

    /// A neighbour tells what it does in the run.
    pub(super) fn on_part(&mut self, peer: PeerId, part: Part) {
        self.heard.insert(peer, part);
    }

    /// A neighbour has gone.
    pub(super) fn on_peer_down(&mut self, peer: &PeerId) {
        self.heard.remove(peer);
        self.apart.remove(peer);
    }

    /// Whether this has yet to be reported; it counts as reported from now on.
    fn is_new(&mut self, peer: PeerId, what: &str) -> bool {
        self.told.len() < TOLD_MAX && self.told.insert((peer, what.to_owned()))
    }

    /// Where the swarm ends: the latest of the ends that persons have set, else the latest of all. More than a
    /// third of the neighbours who name one go on until then, so one of three neighbours cannot have this peer train
    /// without end.
    fn swarms_end(&self) -> Option<u64> {
        // Who has just come names none yet.
        let before = self.heard.values().filter(|part| part.steps.is_some()).count() / 3;
        let latest = |given: bool| {
            let parts = self.heard.values().filter(|part| part.steps_given || !given);
            let mut ends: Vec<u64> = parts.filter_map(|part| part.steps).collect();
            ends.sort_unstable_by_key(|end| std::cmp::Reverse(*end));
            ends.get(before).copied()
        };
        latest(true).or_else(|| latest(false))
    }

    /// Chooses end and shard where no person has set them, by what has been heard so far.
    fn settle(&mut self) -> Settled {
        let mut settled = Settled { end: None, shard: None };
        if !self.mine.steps_given {
            settled.end = self.swarms_end().filter(|end| *end != self.end);
            self.end = settled.end.unwrap_or(self.end);
            self.mine.steps = Some(self.end);
        }
        if self.mine.shards > 1 && self.mine.shard.is_none() {
            settled.shard = Some(choose_shard(self.me, self.mine.shards, &self.claims()));
            self.mine.shard = settled.shard;
        }
        settled
    }

    /// The shards of the neighbours that have the same data.
    fn claims(&self) -> BTreeMap<PeerId, Claim> {
        let same = |(peer, part): &(&PeerId, &Part)| {
            part.shards == self.mine.shards && !self.apart.contains(*peer)
        };
        let claim = |(peer, part): (&PeerId, &Part)| (*peer, claim(part));
        self.heard.iter().filter(same).map(claim).collect()
    }

    fn has_just_moved(&self) -> bool {
        self.moved.is_some_and(|moved| moved.elapsed() < MOVE_EVERY)
    }

    fn review(&self) -> ShardReview {
        if self.mine.shards <= 1 {
            return ShardReview::Keep;
        }
        review_shard((self.me, claim(&self.mine)), self.mine.shards, &self.claims())
    }

    /// Peers that end at another step, and that step.
    fn other_ends(&self) -> Vec<(PeerId, u64)> {
        let ends = self.heard.iter().filter_map(|(peer, part)| Some((*peer, part.steps?)));
        ends.filter(|(_, end)| *end != self.end).collect()
    }

    /// Why there is nothing left to train, if so. `clock` is that of the most advanced neighbour.
    fn nothing_left(&self, clock: u64) -> Option<String> {
        let (at, end) = (clock.saturating_mul(self.local_steps), self.end);
        let swarm = self.swarms_end().filter(|swarm| *swarm > end);
        if at < end || at == end && swarm.is_none() {
            return None;
        }
        let advice = swarm.map_or_else(
            || "a larger --steps, at every peer, goes on".to_owned(),
            |swarm| format!("leave out --steps, or use --steps {swarm}, where the swarm ends"),
        );
        Some(format!(
            "the swarm is at step {at} and this peer ends at step {end}: nothing is left for it to train, so it only mixes; {advice}"
        ))
    }
}

const fn claim(part: &Part) -> Claim {
    Claim { shard: part.shard, given: part.shard_given }
}

impl Course {
    /// A peer has connected; `differences` are the settings in which it differs.
    pub(super) fn on_peer_up(
        &mut self,
        peer: PeerId,
        differences: &[RunDifference],
        host: &mut Host,
    ) {
        for RunDifference { field, ours, theirs } in differences {
            if field == DATA_DIGEST {
                self.apart.insert(peer);
            }
            if self.is_new(peer, field) {
                tracing::warn!("{} uses {field} {theirs}, you {ours}", peer.short());
                let detail = format!("{peer}: {field}: {theirs}, here {ours}");
                host.telemetry.event("differs", &detail);
            }
        }
        self.greet(peer, host);
    }

    /// Tells a peer that has connected what this one does in the run.
    pub(super) fn greet(&self, peer: PeerId, host: &Host) {
        host.tell(peer, &self.message());
    }

    /// Chooses end and shard before training begins, and tells all neighbours.
    pub(super) fn settle_part(&mut self, host: &mut Host) {
        let Settled { end, shard } = self.settle();
        if let Some(end) = end {
            tracing::info!("ends at step {end}, as the swarm does; --steps chooses another end");
            host.training.end_at(end);
            host.telemetry.ends_at(end);
        }
        if let Some(shard) = shard {
            self.draw_from(shard, host);
        }
        let clocks = host.core().members().filter_map(|(_, member)| member.clock);
        let clock = clocks.max().map_or(0, |clock| clock.0);
        if let Some(line) = self.nothing_left(clock) {
            tracing::warn!("{line}");
            host.telemetry.event("nothing-left", &line);
        }
        self.tell_all(host);
    }

    fn draw_from(&self, shard: u32, host: &mut Host) {
        let shards = self.mine.shards;
        tracing::info!("draws from shard {shard} of {shards}; --shard I/{shards} chooses another");
        host.training.draw_from(shard);
        host.telemetry.event("shard", &format!("{shard}/{shards}"));
    }

    fn tell_all(&self, host: &Host) {
        let message = self.message();
        host.core().members().for_each(|(peer, _)| host.tell(*peer, &message));
    }

    /// Warns of neighbours that end at another step, and reviews the shard. Called at every tick once
    /// this peer trains.
    pub(super) fn look_at_parts(&mut self, host: &mut Host) {
        if self.mine.steps.is_none() {
            return;
        }
        for (peer, end) in self.other_ends() {
            if self.is_new(peer, &format!("run.steps {end}")) {
                let ours = self.end;
                tracing::warn!("{} uses run.steps {end}, you {ours}", peer.short());
                let detail = format!("{peer}: run.steps: {end}, here {ours}");
                host.telemetry.event("differs", &detail);
            }
        }
        match self.review() {
            ShardReview::Keep => {}
            // The first move comes at once, later ones are rare: a neighbour with changing claims must
            // not keep this peer busy.
            ShardReview::Move(_) if self.has_just_moved() => {}
            ShardReview::Move(shard) => {
                self.mine.shard = Some(shard);
                self.moved = Some(Instant::now());
                self.draw_from(shard, host);
                self.tell_all(host);
            }
            ShardReview::Shared(peers) => self.tell_shared(&peers, host),
        }
    }

    /// Warns of peers that draw from the same shard.
    fn tell_shared(&mut self, peers: &[PeerId], host: &mut Host) {
        let Part { shards, shard, .. } = self.mine;
        let shard = shard.unwrap_or_default();
        for peer in peers {
            if self.is_new(*peer, &format!("shard {shard}")) {
                let name = peer.short();
                tracing::warn!(
                    "{name} draws from shard {shard} of {shards}, as you do: give each peer another --shard, or none and as many data.shards as peers"
                );
                host.telemetry.event("shard-shared", &format!("{peer}: {shard}/{shards}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    const fn part(steps: Option<u64>, steps_given: bool) -> Part {
        Part { steps, steps_given, shards: 3, shard: None, shard_given: false }
    }

    fn course(mine: Part, end: u64) -> Course {
        let mut config = Config::default();
        config.run.steps = end;
        Course::new(peer(1), mine, &config)
    }

    #[test]
    fn an_end_that_nobody_set_is_that_of_the_swarm() {
        let mut joiner = course(part(None, false), 2000);
        joiner.on_part(peer(2), part(Some(5000), false));
        joiner.on_part(peer(3), part(Some(500), true));
        assert_eq!(joiner.settle().end, Some(500));
        assert_eq!((joiner.mine.steps, joiner.other_ends()), (Some(500), vec![(peer(2), 5000)]));
        let mut joiner = course(part(None, false), 2000);
        joiner.on_part(peer(2), part(None, false));
        assert_eq!((joiner.settle().end, joiner.mine.steps), (None, Some(2000)));
        let mut told = course(part(Some(300), true), 300);
        told.on_part(peer(2), part(Some(5000), true));
        assert_eq!((told.settle().end, told.end), (None, 300));
    }

    #[test]
    fn no_neighbour_alone_says_where_the_swarm_ends() {
        let mut joiner = course(part(None, false), 2000);
        joiner.on_part(peer(2), part(Some(u64::MAX), true));
        assert_eq!(joiner.swarms_end(), Some(u64::MAX), "there is nobody else");
        joiner.on_part(peer(3), part(Some(500), false));
        joiner.on_part(peer(4), part(Some(500), false));
        assert_eq!(joiner.swarms_end(), Some(500));
        joiner.on_part(peer(5), part(Some(900), true));
        assert_eq!(joiner.swarms_end(), Some(900));
        // Who has just come says nothing yet.
        (6..10).for_each(|number| joiner.on_part(peer(number), part(None, false)));
        assert_eq!(joiner.settle().end, Some(900));
    }

    #[test]
    fn a_peer_whose_end_lies_behind_the_swarm_says_so_and_what_to_do() {
        let mut told = course(part(Some(300), true), 300);
        told.on_part(peer(2), part(Some(5000), true));
        let line = told.nothing_left(40).unwrap();
        assert!(line.contains("is at step 1000 and this peer ends at step 300"), "{line}");
        assert!(line.contains("--steps 5000"), "{line}");
        assert_eq!(told.nothing_left(11), None);
        assert!(told.nothing_left(12).is_some());
        // A swarm that ends there too has only come to its end.
        told.on_part(peer(2), part(Some(300), true));
        assert_eq!(told.nothing_left(12), None);
    }

    #[test]
    fn shards_of_other_data_are_not_shared() {
        let mut mine = course(Part { shard: Some(0), ..part(Some(1), true) }, 1);
        mine.on_part(peer(2), Part { shard: Some(0), shard_given: true, ..part(Some(1), true) });
        assert_eq!(mine.review(), ShardReview::Move(1));
        mine.apart.insert(peer(2));
        assert_eq!(mine.review(), ShardReview::Keep);
        mine.apart.clear();
        mine.mine.shard_given = true;
        assert_eq!(mine.review(), ShardReview::Shared(vec![peer(2)]));
    }

    #[test]
    fn what_is_told_is_bounded_and_told_once() {
        let mut course = course(part(None, false), 1);
        assert!(course.is_new(peer(2), "run.batch") && !course.is_new(peer(2), "run.batch"));
        for number in 0..2 * TOLD_MAX {
            course.is_new(peer(2), &number.to_string());
        }
        assert_eq!(course.told.len(), TOLD_MAX);
    }
}
