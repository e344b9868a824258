//! Whether a run fits into the memory of this machine, told before any of it is taken.

use std::fmt;

use dnode_protocol::Fragments;
use dnode_trainer::{ConfigError, LocalConfig, Memory, MomentFormat, SampleShape};

use super::backend::BackendError;
use super::rules::replica_config;
use crate::config::{Gossip, Rule};

/// What a process takes beside the model: threads, network, buffers of exchanges, the data of this
/// repository's examples (measured: docs/measurements.md, "Memory that a run takes").
const PROCESS: u64 = 64 << 20;

/// A run that takes more memory than there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryError {
    needed: Memory,
    free: u64,
    /// A setting with which it would fit, and what it takes then.
    option: Option<(String, u64)>,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, free, option } = self;
        let giga = |bytes: u64| bytes as f64 / 1e9;
        write!(f, "this run takes {needed} of memory, and {:.2} GB are free; ", giga(*free))?;
        match option {
            Some((setting, takes)) => {
                write!(f, "with --set {setting} it takes {:.2} GB", giga(*takes))
            }
            None => f.write_str("take a smaller model, or a machine with more memory"),
        }
    }
}

impl std::error::Error for MemoryError {}

/// A run, as far as its memory depends on it.
#[derive(Clone)]
struct Asked {
    gossip: Gossip,
    local: LocalConfig,
    shape: SampleShape,
}

impl Asked {
    /// What it takes, the process not included.
    fn memory(&self) -> Result<Memory, ConfigError> {
        Ok(with_mixing(Memory::of_training(&self.local, self.shape)?, &self.gossip))
    }

    /// The setting, or several, that changes least of those with which it takes at most `most` bytes.
    fn option(&self, most: u64) -> Option<(String, u64)> {
        let fits = |(setting, asked): (String, Self)| {
            let takes = asked.memory().ok()?.total();
            (takes <= most).then_some((setting, takes))
        };
        let mut again = self.clone();
        again.local.recompute = true;
        let mut eight = self.clone();
        eight.local.optimizer.moments = MomentFormat::F8;
        let parts = (self.local.optimizer.accumulate + 1..=self.local.batch)
            .filter(|parts| self.local.batch.is_multiple_of(*parts))
            .map(|parts| {
                let mut asked = self.clone();
                asked.local.optimizer.accumulate = parts;
                (format!("optimizer.accumulate={parts}"), asked)
            });
        let mut least = again.clone();
        least.local.optimizer.moments = MomentFormat::F8;
        least.local.optimizer.accumulate = self.local.batch;
        let all = format!(
            "node.recompute=true --set optimizer.moments=f8 --set optimizer.accumulate={}",
            self.local.batch
        );
        let mut pairwise = self.clone();
        pairwise.gossip.rule = Rule::Pairwise;
        let mut smallest = least.clone();
        smallest.gossip.rule = Rule::Pairwise;
        let first = [("node.recompute=true".to_owned(), again)].into_iter();
        let others = [
            ("optimizer.moments=f8".to_owned(), eight),
            (all.clone(), least),
            ("gossip.rule=pairwise".to_owned(), pairwise),
            (format!("gossip.rule=pairwise --set {all}"), smallest),
        ];
        first.chain(parts).chain(others).find_map(fits)
    }
}

/// The memory of training, with what mixing takes in such a run.
pub(crate) fn with_mixing(training: Memory, gossip: &Gossip) -> Memory {
    let parameters = usize::try_from(training.parameters()).unwrap_or(usize::MAX);
    let fragments = if gossip.moments {
        Fragments::with_moments(parameters, gossip.fragments)
    } else {
        Fragments::new(parameters, gossip.fragments)
    };
    // A model of too many parameters is refused later, by that.
    match fragments {
        Some(fragments) => training.with_mixing(&replica_config(gossip, fragments)),
        None => training,
    }
}

/// Refuses a run of the embedded engine that takes more than `free` bytes.
pub(super) fn check(
    (gossip, local, shape): (&Gossip, &LocalConfig, SampleShape),
    free: Option<u64>,
) -> Result<(), BackendError> {
    let Some(free) = free else { return Ok(()) };
    let asked = Asked { gossip: gossip.clone(), local: local.clone(), shape };
    let (needed, most) = (asked.memory()?, free.saturating_sub(PROCESS));
    if needed.total() <= most {
        return Ok(());
    }
    Err(MemoryError { needed, free, option: asked.option(most) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::peer::backend;

    const SHAPE: SampleShape = SampleShape::Text { context: 64, vocabulary: 65 };

    fn refused(free: u64) -> Result<(), String> {
        let mut config = Config::default();
        config.model.kind = dnode_trainer::ModelKind::Gpt;
        config.run.batch = 64;
        let local = backend::local_config(&config);
        let checked = check((&config.gossip, &local, SHAPE), Some(free));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_the_setting_that_makes_it_fit() {
        assert_eq!(refused(1 << 30), Ok(()));
        for (mebibytes, setting) in [
            (110, "with --set node.recompute=true it takes "),
            (60, "with --set optimizer.accumulate="),
            (
                18,
                "with --set node.recompute=true --set optimizer.moments=f8 --set optimizer.accumulate=64 it",
            ),
        ] {
            let error = refused(PROCESS + (mebibytes << 20)).unwrap_err();
            assert!(error.contains(setting), "{error}");
        }
        let error = refused(PROCESS + (1 << 20)).unwrap_err();
        assert!(error.ends_with("take a smaller model, or a machine with more memory"), "{error}");
    }
}
