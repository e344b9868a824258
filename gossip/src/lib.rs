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
//! The parts: `membership` (who is here), `round`, `schedule` and `pairing` (which fragment, which
//! partner), `initiate` and `answer` (the two ends of an exchange), `contributions`, `has`,
//! `precedence` and `authorship` (rule `delta-set`),
//! `link_codec` (which code), `pace` and `stride` (how much local work), `staleness` (the three
//! bounds), `guard` (whose numbers are mixed), `credible` (which clocks are believed), `catch_up`, `pull` and
//! `recall` (joiners and laggards), `serve` (their donors), `deadlines` and `timers` (everything that expires), `suspicion` (who is silent),
//! `apart` (who was lost and comes back); `shards` (who draws from which part of the data).

mod answer;
mod apart;
mod authorship;
mod catch_up;
mod config;
mod contributions;
mod credible;
mod deadlines;
mod exchange;
mod gossip;
mod guard;
mod has;
mod information;
mod initiate;
mod input;
mod link_codec;
mod membership;
mod output;
mod pace;
mod pairing;
mod precedence;
mod pull;
mod recall;
mod round;
mod schedule;
mod sequences;
mod serve;
mod shards;
mod staleness;
mod stride;
mod stripe;
mod summaries;
mod suspicion;
pub mod testing;
mod timers;
mod window;
mod work;

pub use config::{Bounds, Config, ConfigError, Mixing, Policy, Weighting};
pub use contributions::FETCHES_MAX;
pub use gossip::{Gossip, Start};
pub use guard::{Evidence, Grounds, Tolerance, Trust};
pub use input::{Input, Offence, RefusedMix};
pub use membership::{Member, Standing, VIEW_MAX};
pub use output::{ContributionId, Event, Failure, Output, Reading, Role};
pub use pace::{Balance, Load, Pace};
pub use pull::SnapshotContents;
pub use schedule::Schedule;
pub use shards::{Claim, ShardReview, choose_shard, review_shard};
pub use staleness::{lag_factor, mixing_weight};
pub use stride::{MICRO_STEPS, Stride};
pub use summaries::{Heard, KNOWN_MAX, Summaries};
pub use work::Work;
