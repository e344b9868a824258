//! Links: how long exchanges with each neighbour take, and what follows for leases and back-offs.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::frame::Codec;
use dnode_protocol::{PeerId, Time};

use super::estimate::{Estimate, LONGEST, at_least};
use super::history::doubling;
use crate::{Config, Mixing};

/// A lease lasts this many average exchange durations: four messages and two tensors of one exchange.
const LEASE_DURATIONS: f64 = 4.0;

/// Proposals in a row that a neighbour may decline before it is asked more and more seldom. Neighbours that
/// are busy every other time decline so often in 1 of 256 cases.
const DECLINES_FREE: u32 = 8;
/// The first wait of those, as a part of a heartbeat; it doubles with each further decline. With the
/// default, a neighbour that only declines is asked for the sixteenth time after 16 s. Where no other
/// neighbour mixes the wait is no longer than a heartbeat for each neighbour: there are no rounds to save.
const DECLINED_WAIT_DIVISOR: u32 = 8;
/// Declines in a row after which a neighbour does no work, and loses its place where it has also declined for
/// long.
const DECLINES_MAX: u32 = 16;

/// New neighbours that are a crowd where most neighbours are new. Honest ones that come together are fewer, or
/// soon mix (guess).
const CROWD_MIN: usize = 8;

/// What is known of the link to one neighbour.
#[derive(Clone, Debug, Default)]
struct Link {
    /// How long exchanges take.
    duration: Estimate,
    /// Exchanges that have run out since one was measured.
    stalls: u32,
    back_off_until: Time,
    /// Until when its proposals are declined, because it let one run out.
    declined_until: Time,
    /// Whether an exchange with it was ever applied.
    has_mixed: bool,
    /// Whether one with another neighbour had been applied when it came.
    came_late: bool,
    /// Proposals that it has declined since it came or last mixed.
    declines: u32,
    /// When the first of these was declined.
    declines_since: Time,
    /// When it may be proposed to again after these.
    proposed_from: Time,
    /// Index of the chosen codec.
    codec: Option<usize>,
}

impl Link {
    /// Whether it has declined so often that it does nothing else.
    const fn only_declines(&self) -> bool {
        self.declines >= DECLINES_MAX
    }

    /// Whether an exchange with it was measured, and it has not declined many since.
    fn mixes(&self) -> bool {
        self.declines < DECLINES_FREE && self.duration.mean().is_some()
    }

    /// Whether it came while others mixed, and has not mixed itself.
    const fn is_new(&self) -> bool {
        self.came_late && !self.has_mixed
    }
}

/// The links to all neighbours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    map: BTreeMap<PeerId, Link>,
}

impl Links {
    pub(super) fn open(&mut self, peer: PeerId) {
        let came_late = self.map.values().any(|link| link.has_mixed);
        self.map.insert(peer, Link { came_late, ..Link::default() });
    }

    pub(super) fn close(&mut self, peer: &PeerId) {
        self.map.remove(peer);
    }

    /// Seconds that an exchange with `peer` takes on average, once one was measured.
    pub(crate) fn mean(&self, peer: &PeerId) -> Option<f64> {
        self.map.get(peer)?.duration.mean()
    }

    /// Whether `peer` may be asked for something: it is here and not left alone for a while.
    pub(crate) fn is_ready(&self, peer: &PeerId, now: Time) -> bool {
        self.map.get(peer).is_some_and(|link| now >= link.back_off_until)
    }

    /// Whether an exchange may be proposed to `peer`: it is ready, and has not declined too often.
    pub(crate) fn may_propose(&self, peer: &PeerId, now: Time) -> bool {
        let wanted = |link: &Link| now >= link.proposed_from;
        self.is_ready(peer, now) && self.map.get(peer).is_some_and(wanted)
    }

    /// `peer` has declined a proposal. After some in a row it is asked ever more seldom, so that who only
    /// declines costs no rounds.
    pub(crate) fn declined(&mut self, config: &Config, peer: &PeerId, now: Time) {
        let alone = !self.map.iter().any(|(other, link)| other != peer && link.mixes());
        let in_turn =
            config.heartbeat.saturating_mul(u32::try_from(self.map.len()).unwrap_or(u32::MAX));
        let most = if alone { in_turn.min(config.lease_max) } else { config.lease_max };
        let Some(link) = self.map.get_mut(peer) else { return };
        if link.declines == 0 {
            link.declines_since = now;
        }
        link.declines = link.declines.saturating_add(1);
        if let Some(further) = link.declines.checked_sub(DECLINES_FREE) {
            let first = config.heartbeat / DECLINED_WAIT_DIVISOR;
            let wait = first.saturating_mul(doubling(further)).min(most);
            link.proposed_from = now + wait;
        }
    }

    /// An exchange with `peer` was applied: it does more than to decline.
    pub(crate) fn mixed(&mut self, peer: &PeerId) {
        if let Some(link) = self.map.get_mut(peer) {
            (link.declines, link.proposed_from, link.has_mixed) = (0, Time::ZERO, true);
        }
    }

    /// Whether an exchange with `peer` was applied since it came.
    pub(super) fn has_mixed(&self, peer: &PeerId) -> bool {
        self.map.get(peer).is_some_and(|link| link.has_mixed)
    }

    /// Whether `peer` does no work although others have: it declines again and again, or is one of a crowd of
    /// names that came while others mixed and have not mixed.
    ///
    /// Without the others, nothing tells whether the fault is its own.
    pub(crate) fn is_idle(&self, peer: &PeerId) -> bool {
        let declines = |link: &Link| {
            let mut others = self.map.iter().filter(|(other, _)| *other != peer);
            link.only_declines() && others.any(|(_, link)| link.has_mixed)
        };
        let link = self.map.get(peer);
        link.is_some_and(|link| declines(link) || (link.is_new() && self.is_crowded()))
    }

    /// Whether `peer` came while others mixed, and has not mixed itself.
    pub(super) fn is_new(&self, peer: &PeerId) -> bool {
        self.map.get(peer).is_some_and(Link::is_new)
    }

    /// Whether most neighbours came while others mixed and have not mixed, and they are many.
    pub(super) fn is_crowded(&self) -> bool {
        let new = self.map.values().filter(|link| link.is_new()).count();
        new >= CROWD_MIN && 2 * new > self.map.len()
    }

    /// Whether `peer` has declined so often that it does nothing else.
    pub(crate) fn only_declines(&self, peer: &PeerId) -> bool {
        self.map.get(peer).is_some_and(Link::only_declines)
    }

    /// Whether `peer` does nothing but decline, and has for twice the longest lease, while others mix.
    pub(crate) fn is_useless(&self, config: &Config, peer: &PeerId, now: Time) -> bool {
        let declines = |link: &Link| {
            link.only_declines() && now.since(link.declines_since) >= 2 * config.lease_max
        };
        self.map.get(peer).is_some_and(declines) && self.map.values().any(Link::mixes)
    }

    /// Whether proposals of `peer` are declined for now.
    pub(crate) fn declines(&self, peer: &PeerId, now: Time) -> bool {
        self.map.get(peer).is_some_and(|link| now < link.declined_until)
    }

    /// Lease for an exchange with `peer`: four times the measured duration of one, twice as long for
    /// each that has run out since one was measured, within limits.
    ///
    /// Without doubling, exchanges that take longer than the first lease would run out for ever
    /// (RFC 6298 §5.5: the same of retransmission timers).
    pub(crate) fn lease(&self, config: &Config, peer: &PeerId) -> Duration {
        self.explained_lease(config, peer).0
    }

    /// Lease for a whole fragment of `peer`: what is measured of contributions, which are coded, says
    /// little of how long it takes.
    pub(crate) fn snapshot_lease(&self, config: &Config, peer: &PeerId) -> Duration {
        let lease = self.lease(config, peer);
        if config.mixing == Mixing::Set { lease.max(config.lease_initial) } else { lease }
    }

    /// [`Links::lease`], and where it comes from.
    pub(crate) fn explained_lease(
        &self,
        config: &Config,
        peer: &PeerId,
    ) -> (Duration, &'static str) {
        let (base, why) = match self.mean(peer) {
            None => (config.lease_initial, "nothing is measured yet"),
            Some(seconds) => {
                let seconds = (LEASE_DURATIONS * seconds).min(config.lease_max.as_secs_f64());
                at_least(
                    config.lease_min,
                    Duration::from_secs_f64(seconds),
                    "four times a measured exchange",
                )
            }
        };
        let stalls = self.map.get(peer).map_or(0, |link| link.stalls);
        let doubled = base.saturating_mul(doubling(stalls));
        match stalls {
            _ if doubled >= config.lease_max => (config.lease_max, LONGEST),
            0 => (doubled, why),
            1.. => (doubled, "doubled for each that has run out since one was measured"),
        }
    }

    /// Records how long an exchange in `codec` took from proposal to application.
    pub(crate) fn measured(
        &mut self,
        peer: &PeerId,
        duration: Duration,
        codecs: &[Codec],
        codec: Codec,
    ) {
        let used = codecs.iter().position(|allowed| *allowed == codec);
        if let Some(link) = self.map.get_mut(peer)
            && link.codec.is_some()
            && link.codec != used
        {
            // Another codec was chosen meanwhile: what it takes is not measured yet.
            link.duration = Estimate::default();
        }
        self.took(peer, duration);
    }

    /// Records how long it took from asking `peer` for numbers until they were here.
    pub(crate) fn took(&mut self, peer: &PeerId, duration: Duration) {
        if let Some(link) = self.map.get_mut(peer) {
            link.duration.add(duration);
            link.stalls = 0;
        }
        self.mixed(peer);
    }

    /// The partner stalled in mid-exchange: leave it alone for a while, longer each time. What stalls
    /// during that while had begun before, and counts as the same.
    pub(crate) fn stalled(&mut self, config: &Config, peer: PeerId, now: Time) {
        let (least, most) = (config.back_off_min, config.back_off_max);
        if let Some(link) = self.map.get_mut(&peer)
            && now >= link.back_off_until
        {
            let times = doubling(link.stalls);
            link.stalls = link.stalls.saturating_add(1);
            link.back_off_until = now + least.saturating_mul(times).min(most);
        }
    }

    /// An initiator let an exchange run out that held a fragment for a lease: its proposals are
    /// declined for as long, so that nobody holds fragments for more than half of the time.
    pub(crate) fn decline_for_a_lease(&mut self, config: &Config, peer: PeerId, now: Time) {
        let lease = self.lease(config, &peer);
        if let Some(link) = self.map.get_mut(&peer)
            && now >= link.declined_until
        {
            link.declined_until = now + lease;
        }
    }

    /// The codec that was chosen for the link, by its index; `None` before.
    pub(crate) fn codec(&self, peer: &PeerId) -> Option<usize> {
        self.map.get(peer)?.codec
    }

    /// Chooses a codec for the link.
    pub(crate) fn set_codec(&mut self, peer: &PeerId, index: usize) {
        if let Some(link) = self.map.get_mut(peer) {
            link.codec = Some(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trust;
    use crate::context::{Context, Step};
    use crate::membership::{ClockNews, Membership};
    use crate::testing::peer;
    use dnode_protocol::Phase;

    #[test]
    fn a_lease_follows_what_exchanges_take_and_doubles_when_they_run_out() {
        let config = Config::default();
        let mut links = Links::default();
        links.open(peer(1));
        assert_eq!(links.lease(&config, &peer(1)), config.lease_initial);
        links.took(&peer(1), Duration::from_secs(1));
        assert_eq!(links.lease(&config, &peer(1)), Duration::from_secs(4));
        links.stalled(&config, peer(1), Time::ZERO);
        assert_eq!(links.lease(&config, &peer(1)), Duration::from_secs(8));
        assert!(!links.is_ready(&peer(1), Time::ZERO));
        assert!(links.is_ready(&peer(1), Time::ZERO + config.back_off_min));
    }

    #[test]
    fn who_only_declines_is_asked_ever_more_seldom_and_becomes_useless_beside_one_that_mixes() {
        let config = Config::default();
        let mut links = Links::default();
        let (false_name, honest) = (peer(1), peer(2));
        links.open(false_name);
        links.open(honest);
        let mut now = Time::ZERO;
        for _ in 1..DECLINES_FREE {
            links.declined(&config, &false_name, now);
            assert!(links.may_propose(&false_name, now), "some declines are nothing unusual");
        }
        // It is asked whenever it may be, at every millisecond.
        let asked = |links: &mut Links, now: &mut Time| {
            let (mut asked, end) = (0, *now + 4 * config.lease_max);
            while *now < end {
                if links.may_propose(&false_name, *now) {
                    links.declined(&config, &false_name, *now);
                    asked += 1;
                }
                *now = *now + Duration::from_millis(1);
            }
            asked
        };
        let in_turn = asked(&mut links, &mut now);
        let heartbeats = 4 * config.lease_max.as_millis() / config.heartbeat.as_millis();
        assert!(in_turn >= heartbeats / 2, "two neighbours, none of which mixes: {in_turn}");
        assert!(!links.is_useless(&config, &false_name, now), "nobody else mixes");
        links.mixed(&false_name);
        links.took(&honest, Duration::from_millis(5));
        for _ in 0..DECLINES_FREE {
            links.declined(&config, &false_name, now);
        }
        let seldom = asked(&mut links, &mut now);
        assert!((10..20).contains(&seldom), "{seldom}");
        assert!(links.is_useless(&config, &false_name, now));
        assert!(!links.is_useless(&config, &honest, now));
        links.mixed(&false_name);
        assert!(links.may_propose(&false_name, now));
        assert!(!links.is_useless(&config, &false_name, now));
    }

    #[test]
    fn who_does_no_work_counts_for_no_bound_until_it_mixes() {
        let mut context = Context::alone(Config::default());
        let mut membership = Membership::new(&context);
        let mut heartbeat = context.progress.heartbeat();
        heartbeat.phase = Phase::Training;
        let greet = |membership: &mut Membership, context: &mut Context, name| {
            membership.on_peer_up(context, (peer(name), 1), Trust::Trusted);
            membership.on_heartbeat(&peer(name), &heartbeat);
            membership.on_clock(context, (peer(name), heartbeat.clock), false)
        };
        let counts =
            |it: &Membership, name| it.get(&peer(name)).is_some_and(|member| member.counts());
        for name in [1, 2] {
            greet(&mut membership, &mut context, name);
        }
        for _ in 0..2 * DECLINES_FREE {
            membership.on_declined(&mut context, peer(1));
        }
        assert!(counts(&membership, 1), "nobody mixes, so the fault may be this peer's");
        membership.links_mut().took(&peer(2), Duration::from_millis(5));
        membership.on_declined(&mut context, peer(1));
        assert!(!counts(&membership, 1) && counts(&membership, 2));
        assert!(matches!(context.take_steps()[..], [Step::Limit]), "a commit may wait for it");
        let ahead = heartbeat.clock.plus(1);
        membership.on_clock(&mut context, (peer(1), ahead), false);
        assert!(!counts(&membership, 1), "a clock is no work");
        membership.links_mut().mixed(&peer(1));
        assert!(!counts(&membership, 1), "its clock may be far behind");
        let news = membership.on_clock(&mut context, (peer(1), ahead), false);
        assert!(counts(&membership, 1) && news == ClockNews::Begins(ahead));
        for name in 3..2 + CROWD_MIN as u32 {
            greet(&mut membership, &mut context, name);
            assert!(counts(&membership, name), "some newcomers are nothing unusual");
        }
        for name in 2 + CROWD_MIN as u32..5 + CROWD_MIN as u32 {
            greet(&mut membership, &mut context, name);
        }
        let mut crowd = 3..5 + CROWD_MIN as u32;
        assert!(crowd.all(|name| !counts(&membership, name)), "of a crowd each has to mix");
        assert!(counts(&membership, 1) && counts(&membership, 2));
    }

    #[test]
    fn whoever_lets_a_lease_run_out_is_declined_for_as_long() {
        let config = Config::default();
        let mut links = Links::default();
        links.open(peer(1));
        links.decline_for_a_lease(&config, peer(1), Time::ZERO);
        assert!(links.declines(&peer(1), Time::from_millis(4999)));
        assert!(!links.declines(&peer(1), Time::from_millis(5000)));
        assert!(!links.declines(&peer(2), Time::ZERO));
    }
}
