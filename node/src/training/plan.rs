//! What the training thread trains, where it stands, and how it ends.

use std::path::PathBuf;
use std::time::Duration;

use dnode_gossip::MICRO_STEPS;
use dnode_metrics::Revealed;
use dnode_protocol::{Clock, RunSpec, Versions};
use dnode_trainer::checkpoint::{self, Checkpoint, Saved};
use dnode_trainer::{Description, Evaluation, Source, TailAverage};

use super::privacy::NoiseTerms;
use crate::storage::checkpoint_lag::CheckpointLag;
use crate::storage::kept_snapshots::KeptSnapshots;
use crate::tools::check::FirstStep;

/// How rounds of local steps end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commits {
    /// They do not: there are no commits. Every step is this peer's own, or is taken with the mean
    /// gradient of the ring.
    Never,
    /// By a commit of the peer's own.
    Alone,
    /// By a commit of the mean progress of all peers of the ring.
    Together,
}

/// What the thread trains, and when it reports.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Steps of the run: training ends at this position.
    pub(crate) steps: u64,
    /// Local steps per commit of a peer of mean speed, H.
    pub(crate) local_steps: u64,
    /// Samples per local step of a peer of mean speed.
    pub(crate) batch: u32,
    /// Local steps per exchange round; 0 for rules without exchanges.
    pub(crate) mix_every: u64,
    /// How rounds of local steps end.
    pub(crate) commits: Commits,
    /// Whether a commit is a contribution to everybody's sum.
    pub(crate) contributes: bool,
    /// How the noise of commits is reckoned, if they get any.
    pub(crate) noise: Option<NoiseTerms>,
    /// What is computed before the first step, for those who compare machines.
    pub(crate) first_step: Option<FirstStep>,
    /// Steps in which the learning rate rises.
    pub(crate) warmup: u64,
    /// Steps between progress reports.
    pub(crate) metrics_every: u64,
    /// Whether no step is taken: each model that is taken over is measured and saved instead.
    pub(crate) observes: bool,
    /// Steps between evaluations; 0 is only at the end.
    pub(crate) evaluate_every: u64,
    /// Share of the run, its last part, over which weights are averaged; 0 for none.
    pub(crate) tail_average: f64,
    /// Time between checkpoints; zero is only by steps and at the end.
    pub(crate) checkpoint_interval: Duration,
    /// Steps between checkpoints; 0 is only by time and at the end.
    pub(crate) checkpoint_every: u64,
    /// Checkpoints that are kept.
    pub(crate) checkpoints_kept: usize,
    /// Where checkpoints go.
    pub(crate) checkpoints: PathBuf,
    /// Where a joiner keeps snapshots until it has all of them; `None` for a peer that begins with a
    /// model.
    pub(crate) snapshots: Option<KeptSnapshots>,
    /// The run, for the checkpoints' manifests.
    pub(crate) run: RunSpec,
    /// What the trainer tells of itself, for the checkpoints' metadata.
    pub(crate) description: Description,
}

/// Where a replica stands when the thread takes it over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Local steps done by this peer.
    pub(crate) step: u64,
    /// Where the swarm stands in the run, in units of `1 /` [`MICRO_STEPS`] of a step of the run.
    pub(crate) micro_steps: u64,
    /// Samples processed.
    pub(crate) samples: u64,
    /// Commits done.
    pub(crate) clock: Clock,
}

impl Position {
    /// Whole steps of the run.
    pub(crate) const fn run_steps(&self) -> u64 {
        self.micro_steps / MICRO_STEPS
    }
}

/// Why a checkpoint is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotSaved {
    pub(crate) error: String,
    /// Which part of the training is in no checkpoint, in words.
    pub(crate) lost: String,
}

/// How training ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    pub(crate) position: Position,
    pub(crate) evaluation: Option<Evaluation>,
    /// That of the weights averaged over the last part of the run.
    pub(crate) averaged: Option<Evaluation>,
    pub(crate) train_s: f64,
    pub(crate) wait_s: f64,
    /// What commits with noise have revealed, in this start and before it.
    pub(crate) revealed: Option<Revealed>,
    /// The last checkpoint's parameters.
    pub(crate) parameters: Option<PathBuf>,
    /// Its parameters averaged over the last part of the run.
    pub(crate) tail_average: Option<PathBuf>,
    /// Why there is no last checkpoint, if it could not be written.
    pub(crate) not_saved: Option<NotSaved>,
}

impl Plan {
    /// A short run that saves only at its end.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self {
            steps: 8,
            local_steps: 2,
            batch: 8,
            mix_every: 3,
            warmup: 0,
            commits: Commits::Alone,
            contributes: false,
            noise: None,
            first_step: None,
            metrics_every: 0,
            observes: false,
            evaluate_every: 0,
            tail_average: 0.0,
            checkpoint_interval: Duration::ZERO,
            checkpoint_every: 0,
            checkpoints_kept: 2,
            snapshots: None,
            checkpoints: PathBuf::new(),
            run: RunSpec::default(),
            description: Description::default(),
        }
    }

    /// Writes a checkpoint.
    pub(super) fn save(
        &self,
        lag: &CheckpointLag,
        (at, end): (Position, u64),
        contents: &[Versions],
        (replica, tail_average): (Source<'_>, Option<&TailAverage>),
    ) -> Result<Saved, NotSaved> {
        let Position { step, micro_steps, samples, clock } = at;
        let (run, description) = (self.run.clone(), &self.description);
        let checkpoint = Checkpoint {
            run,
            description,
            step,
            micro_steps,
            end,
            samples,
            clock,
            contents,
            replica,
            tail_average,
        };
        match checkpoint::save(&self.checkpoints, self.checkpoints_kept, &checkpoint) {
            Ok(saved) => {
                lag.saved(step);
                Ok(saved)
            }
            Err(error) => Err(NotSaved { error: error.to_string(), lost: lag.words() }),
        }
    }
}
