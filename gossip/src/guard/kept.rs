//! What the guard holds against neighbours, as the next life of this peer takes it over.
//!
//! A restart is like a time in which all neighbours were gone, after which what was usual of them is forgotten, and so
//! is what has led to no verdict: the rounds that would have been in that time have passed. Decision: docs/adr/0052.

mod text;

use std::cmp::Reverse;
use std::time::Duration;

use dnode_protocol::PeerId;

use super::allowance::Allowance;
use super::{Guard, PASSES, PAUSE_DOUBLINGS_MAX, PAUSE_ROUNDS, Record, Trust};
use crate::VIEW_MAX;
use crate::config::STRANGERS_MAX;

/// Most neighbours against which something is held from one life to the next, the worst ones (guess: four
/// times as many as a peer has neighbours).
pub const VERDICTS_MAX: usize = 256;

// A full view of neighbours fits as often.
const _: () = assert!(VERDICTS_MAX >= 4 * VIEW_MAX);

/// What is held against one neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The neighbour.
    pub peer: PeerId,
    /// How much its numbers count.
    pub trust: Trust,
    /// Sum of what its differences exceeded the usual ones by; unitless, never below zero.
    pub evidence: f64,
    /// Running mean of its differences, multiple of the usual ones; 0 where none was compared.
    pub times: f64,
    /// Differences refused since it was trusted.
    pub outliers: u32,
    /// How often it was left out.
    pub left_out: u32,
    /// Own rounds until one that is left out is tried again.
    pub rounds: u64,
    /// Differences in turn that were as usual, of one that is left out.
    pub passes: u32,
    /// How often it was tried at once because it had taken over a replica.
    pub joined: u32,
    /// The start of its process that was here last; 0 where none was. Who has started again is tried at once.
    pub life: u64,
}

/// What is held against all neighbours, and how fast it decays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdicts {
    /// Time from one own round to the next; zero where it is not known, and then no time that passes between
    /// two lives counts.
    pub round_time: Duration,
    /// At most [`VERDICTS_MAX`], the worst first.
    pub held: Vec<Verdict>,
}

impl Verdicts {
    /// Rounds in so much time.
    fn rounds_in(&self, time: Duration) -> u64 {
        let rounds = time.as_nanos().checked_div(self.round_time.as_nanos());
        rounds.map_or(0, |rounds| u64::try_from(rounds).unwrap_or(u64::MAX))
    }
}

impl Guard {
    /// What is held against neighbours before the next of so many rounds, the worst first. `life`: the start
    /// of a neighbour's process that was here last.
    pub(crate) fn held(&self, round: u64, life: impl Fn(&PeerId) -> u64) -> Vec<Verdict> {
        let held = self.peers.iter().filter(|(_, record)| record.is_held());
        let mut held: Vec<(&PeerId, &Record)> = held.collect();
        held.sort_by(|(_, a), (_, b)| {
            let worse = |it: &Record| Reverse(it.gravity(round));
            worse(a).cmp(&worse(b)).then(b.evidence.total_cmp(&a.evidence))
        });
        held.into_iter()
            .take(VERDICTS_MAX)
            .map(|(peer, record)| Verdict {
                peer: *peer,
                trust: record.trust,
                evidence: record.evidence,
                times: record.times,
                outliers: record.outliers,
                left_out: record.left_out,
                rounds: record.rounds_left(round),
                passes: record.passes,
                joined: record.joined.used(),
                life: life(peer),
            })
            .collect()
    }

    /// Where there are more neighbours than [`STRANGERS_MAX`], forgets those who are gone and against whom least
    /// is held, the longest ago first: names that cost nothing put out no verdict on one that was left out more
    /// often. What is usual of those who are gone is kept of the last [`VIEW_MAX`] alone.
    pub(super) fn forget_the_least(&mut self) {
        let mut usual_of_gone: Vec<&mut Record> =
            self.peers.values_mut().filter(|it| it.gone && !it.fragments.is_empty()).collect();
        usual_of_gone.sort_by_key(|record| Reverse(record.met));
        for record in usual_of_gone.into_iter().skip(VIEW_MAX) {
            record.fragments.clear();
        }
        while self.peers.len() > STRANGERS_MAX {
            let held = |record: &Record| (!record.gone, record.gravity(0), record.met);
            let least = self.peers.iter().min_by_key(|(_, record)| held(record));
            let Some(peer) = least.map(|(peer, _)| *peer) else { break };
            self.peers.remove(&peer);
        }
    }

    /// Holds what an earlier life held, `passed` after that was noted. To be called before the first round.
    ///
    /// What no guard says of a neighbour (a file may be damaged) is brought within what one says.
    pub(crate) fn take_over(&mut self, verdicts: &Verdicts, passed: Duration) {
        let passed = verdicts.rounds_in(passed);
        let number = |number: f64, most: f64| if number >= 0.0 { number.min(most) } else { 0.0 };
        for verdict in verdicts.held.iter().take(VERDICTS_MAX) {
            let rounds = verdict.rounds.min(PAUSE_ROUNDS << PAUSE_DOUBLINGS_MAX);
            let record = Record {
                trust: verdict.trust,
                outliers: verdict.outliers,
                evidence: number(verdict.evidence, self.bar.left_out_at),
                times: number(verdict.times, super::EXCESS_MAX),
                left_out: verdict.left_out,
                trial_at: rounds.saturating_sub(passed),
                passes: verdict.passes.min(PASSES),
                joined: Allowance::after(verdict.joined),
                gone: true,
                ..Record::default()
            };
            if record.is_held() {
                self.peers.insert(verdict.peer, record);
            }
        }
    }
}

impl Record {
    /// Whether something speaks against the neighbour that is remembered when it is gone.
    pub(super) fn is_held(&self) -> bool {
        self.trust != Trust::Trusted || self.left_out > 0
    }

    /// Own rounds, after so many, until a neighbour that is left out is tried again.
    const fn rounds_left(&self, round: u64) -> u64 {
        self.trial_at.saturating_sub(round)
    }

    /// By what the worse of two neighbours is told, after so many rounds.
    const fn gravity(&self, round: u64) -> (u8, u32, u64) {
        (self.trust as u8, self.left_out, self.rounds_left(round))
    }
}

#[cfg(test)]
mod tests;
