//! Whether a run fits into the memory of this machine, told before any of it is taken.

use std::fmt;

use dnode_protocol::Fragments;
use dnode_trainer::{ConfigError, LocalConfig, Memory, MomentFormat, SampleShape};

use super::backend::BackendError;
use super::rules::{replica_config, slow_in_file};
use crate::config::{Config, Gossip, Rule};

/// What a process takes beside the model: threads, network, buffers of exchanges, the data of this
/// repository's examples (measured: docs/measurements.md, "Memory that a run takes").
const PROCESS: u64 = 64 << 20;

/// A run that takes more memory than there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryError {
    needed: Memory,
    free: u64,
    /// Settings with which it would fit, and what it takes then.
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
    /// As `node.tail_average`.
    tail_average: f64,
    local: LocalConfig,
    shape: SampleShape,
}

impl Asked {
    /// What it takes, the process not included.
    fn memory(&self) -> Result<Memory, ConfigError> {
        let training = Memory::of_training(&self.local, self.shape)?;
        Ok(with_mixing(training, &self.gossip, self.tail_average))
    }

    /// The settings with which it takes at most `most` bytes, and what it takes then. Those come first that
    /// change no result, then those that change least.
    fn option(&self, most: u64) -> Option<(String, u64)> {
        let (batch, own) = (self.local.batch, self.local.optimizer.accumulate);
        let numbers = [(true, false), (false, false), (false, true)];
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        for rule in [self.gossip.rule, Rule::Pairwise] {
            for (numbers, way) in numbers.into_iter().flat_map(|it| ways.map(|way| (it, way))) {
                for accumulate in (own..=batch).filter(|parts| batch.is_multiple_of(*parts)) {
                    let asked = self.with(rule, numbers, way, accumulate);
                    let takes = asked.memory().ok()?.total();
                    if takes <= most {
                        return Some((asked.settings_beside(self), takes));
                    }
                }
            }
        }
        None
    }

    fn with(
        &self,
        rule: Rule,
        (averages, eight): (bool, bool),
        (recompute, slow_in_file): (bool, bool),
        accumulate: usize,
    ) -> Self {
        let mut asked = self.clone();
        asked.gossip.rule = rule;
        if !averages {
            asked.tail_average = 0.0;
        }
        asked.local.recompute |= recompute;
        asked.gossip.slow_in_file |= slow_in_file;
        asked.local.optimizer.accumulate = accumulate;
        if eight {
            asked.local.optimizer.moments = MomentFormat::F8;
        }
        asked
    }

    /// The settings in which this differs from `other`, as arguments.
    fn settings_beside(&self, other: &Self) -> String {
        let of = |asked: &Self| {
            let (local, parts) = (&asked.local, asked.local.optimizer.accumulate);
            [
                ("gossip.rule=pairwise".to_owned(), asked.gossip.rule == Rule::Pairwise),
                ("node.recompute=true".to_owned(), local.recompute),
                ("gossip.slow_in_file=true".to_owned(), asked.gossip.slow_in_file),
                ("node.tail_average=0".to_owned(), asked.tail_average <= 0.0),
                ("optimizer.moments=f8".to_owned(), local.optimizer.moments == MomentFormat::F8),
                (format!("optimizer.accumulate={parts}"), true),
            ]
        };
        let others = of(other);
        let changed = of(self).into_iter().filter(|setting| setting.1 && !others.contains(setting));
        changed.map(|(setting, _)| setting).collect::<Vec<_>>().join(" --set ")
    }
}

/// The memory of training, with what mixing takes in such a run, and the average of the weights over its
/// last part.
pub(crate) fn with_mixing(training: Memory, gossip: &Gossip, tail_average: f64) -> Memory {
    let training = if tail_average > 0.0 { training.with_tail_average() } else { training };
    let parameters = usize::try_from(training.parameters()).unwrap_or(usize::MAX);
    let fragments = if gossip.moments {
        Fragments::with_moments(parameters, gossip.fragments)
    } else {
        Fragments::new(parameters, gossip.fragments)
    };
    // A model of too many parameters is refused later, by that.
    match fragments {
        Some(fragments) => {
            training.with_mixing(&replica_config(gossip, fragments), slow_in_file(gossip))
        }
        None => training,
    }
}

/// Refuses a run of the embedded engine that takes more than `free` bytes.
pub(super) fn check(
    (config, local, shape): (&Config, &LocalConfig, SampleShape),
    free: Option<u64>,
) -> Result<(), BackendError> {
    let Some(free) = free else { return Ok(()) };
    let (gossip, tail_average) = (config.gossip.clone(), config.node.tail_average);
    let asked = Asked { gossip, tail_average, local: local.clone(), shape };
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

    fn refused(free: u64, tail_average: f64) -> Result<(), String> {
        let mut config = Config::default();
        config.node.tail_average = tail_average;
        config.model.kind = dnode_trainer::ModelKind::Gpt;
        config.run.batch = 64;
        let local = backend::local_config(&config);
        let checked = check((&config, &local, SHAPE), Some(free));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_the_setting_that_makes_it_fit() {
        assert_eq!(refused(1 << 30, 0.1), Ok(()));
        for (tail_average, mebibytes, settings) in [
            (0.0, 60, "with --set optimizer.accumulate=4 it takes "),
            (0.0, 20, "with --set node.recompute=true --set optimizer.accumulate=16 it takes "),
            (
                0.1,
                20,
                "with --set node.recompute=true --set node.tail_average=0 --set optimizer.accumulate=16 it takes ",
            ),
            (
                0.0,
                16,
                "with --set node.recompute=true --set optimizer.moments=f8 --set optimizer.accumulate=",
            ),
        ] {
            let error = refused(PROCESS + (mebibytes << 20), tail_average).unwrap_err();
            assert!(error.contains(settings), "{error}");
        }
        let error = refused(PROCESS + (1 << 20), 0.0).unwrap_err();
        assert!(error.ends_with("take a smaller model, or a machine with more memory"), "{error}");
    }
}
