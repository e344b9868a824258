//! Accounts: what a log says of each peer, added up.

use std::collections::BTreeMap;

use dnode_protocol::PeerId;
use serde::{Deserialize, Serialize};

use crate::entry::is_zero;
use crate::{ACCOUNTS_MAX, Carried, Contributed, Entry, Figure, Invited, Record, Text, Trust, Way};

/// What a log says of a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// What it calls itself.
    #[serde(default, skip_serializing_if = "Text::is_empty")]
    pub name: Text,
    /// How it was let in the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// By which invitation, in a run with owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Invited>,
    /// When it was first heard of.
    pub first_ms: u64,
    /// When it was last heard of.
    pub last_ms: u64,
    /// Whether it is connected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub here: bool,
    /// The most samples that it has said it has trained on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub samples: u64,
    /// Differences of it that were mixed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub contributions: u64,
    /// Sum of weight times norm of them: its influence on this peer's weights.
    #[serde(default, skip_serializing_if = "Figure::is_zero")]
    pub moved: Figure,
    /// How many of them were shortened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shortened: u64,
    /// Differences of it that were refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Fragments that were replaced by a snapshot of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub snapshots: u64,
    /// How much its numbers count.
    #[serde(default, skip_serializing_if = "Trust::is_trusted")]
    pub trust: Trust,
    /// How often it was weighed down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub weighed_down: u64,
    /// How often it was left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// How often it broke the rules.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offences: u64,
    /// How often it was refused, or has refused this peer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: u64,
}

impl Account {
    fn contributed(&mut self, more: &Contributed) {
        self.samples = self.samples.max(more.samples);
        self.contributions = self.contributions.saturating_add(more.count);
        self.moved = Figure::new(self.moved.get() + more.moved.get());
        self.shortened = self.shortened.saturating_add(more.shortened);
        self.refused = self.refused.saturating_add(more.refused);
    }

    /// Adds what is known of another peer.
    fn join(&mut self, other: &Self) {
        self.first_ms = self.first_ms.min(other.first_ms);
        self.last_ms = self.last_ms.max(other.last_ms);
        self.moved = Figure::new(self.moved.get() + other.moved.get());
        let pairs = [
            (&mut self.samples, other.samples),
            (&mut self.contributions, other.contributions),
            (&mut self.shortened, other.shortened),
            (&mut self.refused, other.refused),
            (&mut self.snapshots, other.snapshots),
            (&mut self.weighed_down, other.weighed_down),
            (&mut self.left_out, other.left_out),
            (&mut self.offences, other.offences),
            (&mut self.denied, other.denied),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

/// One more of them.
const fn count(of: &mut u64) {
    *of = of.saturating_add(1);
}

/// What a log says of each peer; bounded by [`ACCOUNTS_MAX`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accounts {
    /// The peer whose log it is.
    own: Option<PeerId>,
    peers: BTreeMap<PeerId, Account>,
    /// All for which there was no place.
    others: Option<Account>,
}

impl Accounts {
    /// The account of the peer whose log it is, and its name.
    #[must_use]
    pub fn own(&self) -> Option<(&PeerId, &Account)> {
        self.peers.get_key_value(self.own.as_ref()?)
    }

    /// The accounts of all others.
    pub fn peers(&self) -> impl Iterator<Item = (&PeerId, &Account)> {
        self.peers.iter().filter(|(peer, _)| Some(*peer) != self.own.as_ref())
    }

    /// The sum of all for which there was no place.
    #[must_use]
    pub const fn others(&self) -> Option<&Account> {
        self.others.as_ref()
    }

    /// The lines that carry all of them into the next file.
    pub(crate) fn carried(&self) -> Vec<Entry> {
        let one = |(peer, account): (Option<PeerId>, &Account)| {
            Entry::Carried(Carried { peer, account: account.clone() })
        };
        let peers = self.peers.iter().map(|(peer, account)| (Some(*peer), account));
        peers.chain(self.others.iter().map(|account| (None, account))).map(one).collect()
    }

    /// Adds what a line says.
    pub(crate) fn add(&mut self, record: &Record) {
        let at = record.unix_ms;
        match &record.entry {
            Entry::File(head) => {
                self.own = Some(head.peer);
                // All that was known follows; a reader of this file alone begins here.
                self.peers.clear();
                self.others = None;
                self.of(head.peer, at);
            }
            Entry::Carried(Carried { peer: Some(peer), account }) => {
                if self.peers.len() < ACCOUNTS_MAX || self.peers.contains_key(peer) {
                    self.peers.insert(*peer, account.clone());
                }
            }
            Entry::Carried(Carried { peer: None, account }) => self.others = Some(account.clone()),
            Entry::Opened(_) => self.peers.values_mut().for_each(|account| account.here = false),
            Entry::Start(start) => self.own_trained(at, start.samples),
            Entry::Trained(trained) => self.own_trained(at, trained.samples),
            Entry::End(end) => {
                self.own_trained(at, end.samples);
                for account in self.peers.values_mut().filter(|account| account.here) {
                    (account.here, account.last_ms) = (false, at.max(account.last_ms));
                }
            }
            Entry::Joined(joined) => {
                let account = self.of(joined.peer, at);
                (account.way, account.here) = (Some(joined.way), true);
                account.by.clone_from(&joined.by);
            }
            Entry::Named(named) => self.of(named.peer, at).name = named.name.clone(),
            Entry::Left(left) => self.of(left.peer, at).here = false,
            Entry::Contributed(more) => self.of(more.peer, at).contributed(more),
            Entry::Judged(judged) => {
                let account = self.of(judged.peer, at);
                account.trust = judged.trust;
                match judged.trust {
                    Trust::Trusted => {}
                    Trust::WeighedDown => count(&mut account.weighed_down),
                    Trust::LeftOut => count(&mut account.left_out),
                }
            }
            Entry::Offended(offended) => count(&mut self.of(offended.peer, at).offences),
            Entry::Denied(denied) => count(&mut self.of(denied.peer, at).denied),
            Entry::Snapshot(snapshot) => count(&mut self.of(snapshot.donor, at).snapshots),
            Entry::Revoked(_)
            | Entry::Expelled(_)
            | Entry::Local(_)
            | Entry::Agreed(_)
            | Entry::Group(_)
            | Entry::Lost(_)
            | Entry::Seal(_) => {}
        }
    }

    fn own_trained(&mut self, at: u64, samples: u64) {
        if let Some(own) = self.own {
            let account = self.of(own, at);
            account.samples = account.samples.max(samples);
        }
    }

    /// The account of a peer that was heard of at `at`.
    fn of(&mut self, peer: PeerId, at: u64) -> &mut Account {
        if self.peers.len() >= ACCOUNTS_MAX && !self.peers.contains_key(&peer) {
            self.make_room();
        }
        let new = Account { first_ms: at, ..Account::default() };
        let account = self.peers.entry(peer).or_insert(new);
        account.last_ms = account.last_ms.max(at);
        account
    }

    /// Adds the account of whoever was heard of longest ago to that of all others.
    fn make_room(&mut self) {
        let gone = self.peers.iter().filter(|(peer, _)| Some(**peer) != self.own);
        let oldest = gone.min_by_key(|(_, account)| (account.here, account.last_ms));
        let Some((oldest, _)) = oldest.map(|(peer, account)| (*peer, account.last_ms)) else {
            return;
        };
        let Some(account) = self.peers.remove(&oldest) else { return };
        let first_ms = account.first_ms;
        let others = self.others.get_or_insert_with(|| Account { first_ms, ..Account::default() });
        others.join(&account);
    }
}
