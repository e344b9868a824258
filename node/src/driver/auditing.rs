//! Records in the audit log what happens in a run: who takes part, and whose numbers moved the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use dnode_audit::{
    Contributed, Denied, End, Entry, Expelled, Figure, Group, Hash, Invited, Joined, Judged, Left,
    Named, Offended, Revoked, Snapshot, Text, Trained, Way,
};
use dnode_gossip::{Event, Failure, Grounds, Input, Output, Trust, Work};
use dnode_network::NetworkEvent;
use dnode_protocol::frame::Leg;
use dnode_protocol::invitation::{Revocation, Target};
use dnode_protocol::{ExchangeId, FragmentId, Fragments, PeerId, Stripe, Summary};
use dnode_trainer::MixReport;

use crate::telemetry::audit::AuditLog;
use crate::telemetry::audit::sums::{Mix, Sums};
use crate::telemetry::caused::Caused;
use crate::training::{Answer, Position};

/// Most names that are remembered, so that each is told once.
const NAMES_MAX: usize = 256;
/// Most snapshots that are on their way: more than the core pulls at a time.
const PULLS_MAX: usize = 256;

/// What is on its way to the audit log.
#[derive(Debug)]
pub(crate) struct Auditing {
    log: AuditLog,
    way: Way,
    me: PeerId,
    sums: Sums,
    names: BTreeMap<PeerId, String>,
    /// Samples of each neighbour, as it said last and as was told last.
    samples: BTreeMap<PeerId, (u64, u64)>,
    /// The last mix, until the core says whose it was.
    mixed: Option<(ExchangeId, MixReport)>,
    /// The norm of what was refused last, likewise.
    refused: Option<(ExchangeId, f64)>,
    /// Donors and contents of snapshots.
    pulls: BTreeMap<ExchangeId, Snapshot>,
    first_of_moments: Option<FragmentId>,
    own: Position,
    /// What was told of it.
    told: Position,
    /// Lines that others cause by coming, going and breaking rules; those that are not written count as lost.
    /// Over the same time the mixes of a neighbour are added up to one line.
    caused: Caused,
}

impl Auditing {
    /// `closed`: whether only members are let in.
    pub(crate) fn new(
        log: AuditLog,
        (me, closed): (PeerId, bool),
        fragments: Fragments,
        own: Position,
    ) -> Self {
        Self {
            log,
            way: if closed { Way::Secret } else { Way::Open },
            me,
            sums: Sums::default(),
            names: BTreeMap::new(),
            samples: BTreeMap::new(),
            mixed: None,
            refused: None,
            pulls: BTreeMap::new(),
            first_of_moments: fragments.first_of_moments(),
            own,
            told: own,
            caused: Caused::new(Instant::now()),
        }
    }

    /// A peer came, went, or broke the rules.
    pub(super) fn network_event(&mut self, event: &NetworkEvent) {
        match event {
            NetworkEvent::PeerUp { peer, address, incarnation, role, invitation, .. } => {
                let by = invitation.map(|by| {
                    let (number, role) = (number_text(by.number), Text::new(role.name()));
                    Invited { issuer: by.issuer, number, uses: by.uses.into(), role }
                });
                let way = if by.is_some() { Way::Invitation } else { self.way };
                let (address, incarnation) = (Text::new(&address.to_string()), *incarnation);
                self.caused(Entry::Joined(Joined { peer: *peer, way, incarnation, address, by }));
            }
            NetworkEvent::Revocations { new, .. } => {
                new.iter().for_each(|statement| self.caused(Entry::Revoked(revoked(statement))));
            }
            NetworkEvent::NoMember { why } => {
                self.log.record(Entry::Expelled(Expelled { why: Text::new(why) }));
            }
            NetworkEvent::PeerDown { peer, reason } => {
                self.tell_of(peer);
                self.samples.remove(peer);
                self.names.remove(peer);
                let reason = Text::new(&reason.to_string());
                self.caused(Entry::Left(Left { peer: *peer, reason }));
            }
            NetworkEvent::Offence { peer, kind, detail } => {
                let what = Text::new(&format!("{kind}: {detail}"));
                self.caused(Entry::Offended(Offended { peer: *peer, what }));
            }
            NetworkEvent::Refused { peer, difference, by_us } => {
                let [field, ours, theirs] =
                    [&difference.field, &difference.ours, &difference.theirs]
                        .map(|text| Text::new(text));
                let (peer, by_us) = (*peer, *by_us);
                self.caused(Entry::Denied(Denied { peer, by_us, field, ours, theirs }));
            }
            // Who relays takes no part in the training.
            NetworkEvent::RelayUp { .. }
            | NetworkEvent::RelayDown { .. }
            | NetworkEvent::Listening { .. }
            | NetworkEvent::NotListening { .. }
            | NetworkEvent::SocketBuffers { .. }
            | NetworkEvent::Channel { .. }
            | NetworkEvent::Found { .. }
            | NetworkEvent::Uses { .. }
            | NetworkEvent::Message { .. }
            | NetworkEvent::Tensor { .. }
            | NetworkEvent::BootstrapReached { .. }
            | NetworkEvent::BootstrapUnreachable { .. }
            | NetworkEvent::NotLetIn { .. }
            | NetworkEvent::Copied { .. }
            | NetworkEvent::CopiedPeer { .. }
            | NetworkEvent::PathLost { .. }
            | NetworkEvent::RoundTrip { .. } => {}
        }
    }

    /// A neighbour says on how many samples it has trained.
    pub(super) fn heartbeat(&mut self, from: PeerId, samples: u64) {
        // Bounded: who is no longer connected is not in it.
        self.samples.entry(from).or_default().0 = samples;
    }

    /// A neighbour has sent summaries; what it says of itself names it.
    pub(super) fn summaries(&mut self, from: &PeerId, summaries: &[Summary]) {
        let own = summaries.iter().find(|summary| summary.peer == *from);
        let Some(name) = own.map(|summary| &summary.about.name) else { return };
        let known = self.names.get(from);
        let room = self.names.len() < NAMES_MAX || known.is_some();
        if name.is_empty() || known == Some(name) || !room {
            return;
        }
        self.names.insert(*from, name.clone());
        self.caused(Entry::Named(Named { peer: *from, name: Text::new(name) }));
    }

    /// The mixing thread has done a piece of work. Before the core hears of it.
    pub(super) fn answered(&mut self, answer: &Answer) {
        let exchange = answer.exchange;
        self.mixed = answer.mixed.map(|report| (exchange, report));
        let refused = answer.evidence.filter(|evidence| evidence.refused);
        self.refused = refused.map(|evidence| (exchange, evidence.difference));
        if matches!(answer.input, Input::Adopted { .. })
            && let Some(snapshot) = self.pulls.remove(&exchange)
        {
            self.log.record(Entry::Snapshot(snapshot));
        }
    }

    /// The core has said something. Before it is carried out.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other outputs concern no snapshot")]
    pub(super) fn output(&mut self, output: &Output) {
        match output {
            Output::Event(event) => self.event(event),
            Output::Expect { exchange, from, leg: Leg::Snapshot, fragment } => {
                self.pulls(*exchange, *from, *fragment);
            }
            Output::Work(Work::Adopt { exchange, fragment, contents }) => {
                self.pulled(*exchange, *fragment, contents);
            }
            Output::Work(Work::Recall { exchange, fragment, contents }) => {
                self.pulls(*exchange, self.me, *fragment);
                self.pulled(*exchange, *fragment, contents);
            }
            Output::Forget { exchange } => {
                self.pulls.remove(exchange);
            }
            _ => {}
        }
    }

    fn pulls(&mut self, exchange: ExchangeId, donor: PeerId, fragment: FragmentId) {
        if self.log.is_on() && self.pulls.len() < PULLS_MAX {
            let (fragment, clock, content) = (fragment.0, 0, Hash::NONE);
            self.pulls.insert(exchange, Snapshot { donor, fragment, clock, content });
        }
    }

    fn pulled(
        &mut self,
        exchange: ExchangeId,
        fragment: FragmentId,
        contents: &dnode_gossip::SnapshotContents,
    ) {
        if let Some(pull) = self.pulls.get_mut(&exchange) {
            pull.fragment = fragment.0;
            pull.clock = contents.clock.0;
            pull.content = Hash::from_bytes(contents.hash.to_bytes());
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events concern no contribution")]
    fn event(&mut self, event: &Event) {
        match event {
            Event::Applied { exchange, fragment, peer, weight, .. } => {
                self.applied((*exchange, *peer, *fragment), f64::from(*weight));
            }
            Event::Included { contribution, .. } => {
                let peer = contribution.origin.peer;
                if let Some((exchange, _)) = self.mixed {
                    self.applied((exchange, peer, contribution.fragment), 1.0);
                }
            }
            Event::Failed { exchange, peer, failure } if is_refusal(*failure) => {
                let refused = self.refused.take().filter(|(refused, _)| refused == exchange);
                self.make_room(peer);
                self.sums.refused(*peer, refused.map(|(_, norm)| norm));
            }
            Event::Undone { exchange } => self.sums.undone(exchange),
            Event::Guarded { peer, trust, grounds } => {
                // What led to it comes before it.
                self.tell_of(peer);
                self.log.record(Entry::Judged(judged(*peer, *trust, *grounds)));
            }
            Event::Offended { peer, back_off } => {
                let what = Text::new(&format!("left alone for {back_off:?}"));
                self.caused(Entry::Offended(Offended { peer: *peer, what }));
            }
            _ => {}
        }
    }

    fn applied(
        &mut self,
        (exchange, peer, fragment): (ExchangeId, PeerId, FragmentId),
        weight: f64,
    ) {
        let Some((_, report)) = self.mixed.take().filter(|(mixed, _)| *mixed == exchange) else {
            return;
        };
        // Moments of optimizers are no weights of the model.
        if !self.log.is_on() || self.first_of_moments.is_some_and(|first| fragment >= first) {
            return;
        }
        self.make_room(&peer);
        let (fragment, clock) = (fragment.0, self.own.clock.0);
        self.sums.mixed(&Mix { exchange, peer, fragment, weight, clock, report });
    }

    fn make_room(&mut self, peer: &PeerId) {
        if self.sums.is_full(peer) {
            self.tell();
        }
    }

    /// How far this peer is.
    pub(super) const fn progress(&mut self, position: Position) {
        self.own = position;
    }

    /// This peer averages gradients with others, or trains alone.
    pub(super) fn rack(&self, stripe: Stripe) {
        let (size, rank) = if stripe.is_part() { (stripe.size, stripe.rank) } else { (1, 0) };
        self.log.record(Entry::Group(Group { size: size.into(), rank: rank.into() }));
    }

    /// Tells the sums when it is time.
    pub(super) fn tick(&mut self) {
        if self.caused.end(Instant::now()).is_some() {
            self.tell();
        }
    }

    /// Tells all sums, and how far this peer is.
    fn tell(&mut self) {
        let neighbours = self.samples.keys().copied();
        let peers: BTreeSet<PeerId> = neighbours.chain(self.sums.peers()).collect();
        peers.iter().for_each(|peer| self.tell_of(peer));
        if self.told != self.own {
            let Position { step, samples, clock, .. } = self.own;
            self.log.record(Entry::Trained(Trained { step, samples, clock: clock.0 }));
            self.told = self.own;
        }
    }

    fn tell_of(&mut self, peer: &PeerId) {
        let nobody = &mut (0, 0);
        let (said, told) = self.samples.get_mut(peer).unwrap_or(nobody);
        let trains = said != told;
        *told = *said;
        match self.sums.take(peer, *said, trains) {
            // Nothing but words: whoever comes again and again has as many lines as it likes.
            Some(
                entry @ Entry::Contributed(Contributed { count: 0, undone: 0, refused: 0, .. }),
            ) => {
                self.caused(entry);
            }
            Some(entry) => self.log.record(entry),
            None => {}
        }
    }

    /// Records what others may cause as often as they like.
    fn caused(&mut self, entry: Entry) {
        if self.caused.one_more() {
            self.log.record(entry);
        } else {
            self.log.lose();
        }
    }

    /// The run ends.
    pub(super) fn close(&mut self, reason: &str) {
        self.tell();
        let Position { step, samples, clock, .. } = self.own;
        let reason = Text::new(reason);
        self.log.close(Entry::End(End { reason, step, samples, clock: clock.0 }));
    }
}

/// The number of an invitation, as `dnode invite` and `dnode revoke` write it.
fn number_text(number: u64) -> Text {
    Text::new(&format!("{number:016x}"))
}

fn revoked(statement: &Revocation) -> Revoked {
    let (peer, invitation) = match statement.target() {
        Target::Holder(holder) => (Some(holder), Text::default()),
        Target::Number(number) => (None, number_text(number)),
    };
    Revoked { issuer: *statement.issuer(), peer, invitation, until_s: statement.until_s() }
}

/// Whether numbers were refused, rather than came too late.
const fn is_refusal(failure: Failure) -> bool {
    match failure {
        Failure::BadParameters | Failure::Outlier => true,
        Failure::Busy
        | Failure::Stale { .. }
        | Failure::Expired
        | Failure::TooOld
        | Failure::Lost => false,
    }
}

fn judged(peer: PeerId, trust: Trust, grounds: Grounds) -> Judged {
    let trust = match trust {
        Trust::Trusted => dnode_audit::Trust::Trusted,
        Trust::WeighedDown => dnode_audit::Trust::WeighedDown,
        Trust::LeftOut => dnode_audit::Trust::LeftOut,
    };
    let (why, length, most) = match grounds {
        Grounds::Outlier { length, most } => ("too far away", length, most),
        Grounds::Unsound => ("not finite, or out of all proportion", 0.0, 0.0),
        Grounds::Unlike { times } => ("differences longer than those of others", times, 0.0),
        Grounds::AsUsual => ("differences as those of others", 0.0, 0.0),
        Grounds::BadSnapshot => ("nearly all are far from what was taken over", 0.0, 0.0),
        Grounds::Misled => ("mixed with this peer when nearly all left it out", 0.0, 0.0),
        Grounds::Exiled => ("nearly all leave this peer out", 0.0, 0.0),
        Grounds::FellBehind => ("nearly all are far away: this slow peer fell behind", 0.0, 0.0),
    };
    let (length, most) = (Figure::new(length), Figure::new(most));
    Judged { peer, trust, why: Text::new(why), length, most }
}
