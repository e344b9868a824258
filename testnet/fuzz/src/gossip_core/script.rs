//! Choices of messages and names, read from bytes.

use std::collections::BTreeMap;

use dnode_gossip::testing::peer;
use dnode_protocol::frame::Codec;
use dnode_protocol::{
    Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Information, Message, Origin, PeerId,
    Phase, Stripe, Terms, Versions,
};

use super::{ME, OWN_AUTHOR, PEERS, SEQUENCES};

/// Reads choices from bytes; zeros when they are used up.
pub(super) struct Script<'a> {
    pub(super) bytes: &'a [u8],
}

impl Script<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    pub(super) fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub(super) fn peer(&mut self) -> PeerId {
        peer(u32::from(self.below(PEERS)))
    }

    pub(super) fn clock(&mut self) -> Clock {
        match self.byte() {
            255 => Clock(u64::MAX),
            254 => Clock(u64::MAX - 1),
            near => Clock(u64::from(near % 32)),
        }
    }

    pub(super) fn fragment(&mut self) -> FragmentId {
        match self.byte() {
            255 => FragmentId(u32::MAX),
            near => FragmentId(u32::from(near % 4)),
        }
    }

    pub(super) fn exchange(&mut self) -> ExchangeId {
        ExchangeId {
            initiator: self.peer(),
            incarnation: u64::from(self.below(8) / 3),
            sequence: u64::from(self.below(SEQUENCES)),
        }
    }

    pub(super) fn information(&mut self) -> Information {
        let mut entries = BTreeMap::new();
        for _ in 0..self.below(4) {
            entries.insert(self.peer(), self.clock());
        }
        Information { entries: entries.into_iter().collect() }
    }

    pub(super) fn message(&mut self) -> Message {
        let kind = self.byte();
        match kind % 16 {
            0 => Message::Heartbeat(Heartbeat {
                clock: self.clock(),
                samples: u64::from(self.byte()),
                position: 0,
                step_micros: u32::from(self.byte()),
                batch: u32::from(self.byte()),
                phase: [Phase::Joining, Phase::Training, Phase::Finished]
                    [usize::from(self.below(3))],
            }),
            1 => Message::Goodbye,
            2 => Message::Propose {
                exchange: self.exchange(),
                fragment: self.fragment(),
                terms: self.terms(),
            },
            3 => Message::Accept { exchange: self.exchange(), terms: self.terms() },
            4 if kind >= 128 => Message::LeftOut { exchange: self.exchange() },
            4 => Message::Busy { exchange: self.exchange() },
            5 => Message::Stale { exchange: self.exchange(), clock: self.clock() },
            6 => Message::Ack { exchange: self.exchange() },
            7 => Message::Abort { exchange: self.exchange() },
            8 => Message::Aborted { exchange: self.exchange() },
            9 => Message::Pull { exchange: self.exchange(), fragment: self.fragment() },
            10 => Message::Snapshot {
                exchange: self.exchange(),
                clock: self.clock(),
                hash: ContentHash::of(&[]),
                information: self.information(),
                versions: self.versions(),
            },
            11 => Message::Have {
                first: self.fragment(),
                count: 1 + u32::from(self.below(3)),
                versions: self.versions(),
            },
            12 => Message::Probe { number: u64::from(self.byte()), target: self.peer() },
            13 => Message::Alive { number: u64::from(self.byte()), target: self.peer() },
            14 => Message::Rack { name: 1, stripe: self.stripe() },
            _ => Message::Fetch {
                exchange: self.exchange(),
                fragment: self.fragment(),
                origin: self.origin(),
                number: 1 + u64::from(self.below(8)),
            },
        }
    }

    pub(super) fn terms(&mut self) -> Terms {
        Terms {
            clock: self.clock(),
            mass: 1 + u32::from(self.byte()),
            work: 1 + u32::from(self.byte()),
            merges: self.below(4) == 0,
            codec: [Codec::F32, Codec::Int4][usize::from(self.below(2))],
            information: self.information(),
        }
    }

    pub(super) fn stripe(&mut self) -> Stripe {
        let size = 1 + u16::from(self.below(4));
        let rank = u16::from(self.byte()) % size;
        let group = if size == 1 { 0 } else { 1 + u64::from(self.below(2)) };
        Stripe { group, rank, size }
    }

    /// An author. The lives of the own name are those that the core gives it.
    pub(super) fn origin(&mut self) -> Origin {
        let author = self.peer();
        let first = if author == peer(ME) { OWN_AUTHOR } else { 0 };
        Origin { peer: author, incarnation: first + u64::from(self.below(3)) }
    }

    pub(super) fn versions(&mut self) -> Versions {
        let mut entries = BTreeMap::new();
        for _ in 0..self.below(4) {
            entries.insert(self.origin(), u64::from(self.below(8)));
        }
        Versions { entries: entries.into_iter().collect() }
    }
}
