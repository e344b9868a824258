//! Who exchanges which fragment with whom, when, and with which weight: a pure state machine.
//!
//! No clock, no socket, no thread, no global randomness: time and seed are arguments.
//! The driver feeds [`Input`]s to [`Gossip::handle`] and carries out the [`Output`]s.
//!
//! ```text
//!  transport ──▶ Received, TensorReceived ─┐                 ┌─▶ Send, SendTensor, Expect ──▶ transport
//!  trainer  ──▶ RoundDue, Committed, Mixed ├─▶ Gossip::handle ├─▶ Read, Mix, Undo, Adopt ────▶ trainer
//!  clock    ──▶ Deadline ──────────────────┘                 └─▶ Event ────────────────────▶ metrics
//! ```
//!
//! The parts of [`Gossip`], each of which owns its state: `membership` (who is here, who lives, whose
//! clock is believed), `staleness` (the three bounds), `rounds` (which fragment, which partner),
//! `exchange` (the two ends of an exchange), `state_transfer` (joiners and their donors), `delta_set`
//! (rule `delta-set`), `guard` (whose numbers are mixed). They work with a `context`, and `core` leads
//! from one to the next.

mod config;
mod context;
mod core;
mod delta_set;
mod exchange;
mod guard;
mod input;
mod membership;
mod output;
mod rounds;
mod staleness;
mod state_transfer;
pub mod testing;
mod watchers;

pub use self::core::{Gossip, Start};
pub use config::{Bounds, Config, ConfigError, Mixing, Policy, Weighting};
pub use delta_set::FETCHES_MAX;
pub use dnode_protocol::Reading;
pub use guard::{Evidence, Grounds, Tolerance, Trust, VERDICTS_MAX, Verdict, Verdicts};
pub use input::{Input, Offence, RefusedMix};
pub use membership::{Claim, ShardReview, choose_shard, is_absurd, review_shard};
pub use membership::{Heard, KNOWN_MAX, Member, Standing, Summaries, VIEW_MAX};
pub use output::{
    ContributionId, Event, Failure, IntervalCause, Output, Role, SnapshotContents, Work,
};
pub use rounds::{Budget, Interval, MICRO_STEPS, Schedule, Stride, first_interval};
pub use staleness::{Balance, Load, Pace, lag_factor, mixing_weight};
