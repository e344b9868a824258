//! The command line of a process of the baseline: that of `dnode join`, as far as it matters here.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dnode_trainer::{DataConfig, Dataset, LocalConfig, LocalTrainer, ModelConfig, OptimizerConfig};
use serde_json::Value;

use super::Error;
use crate::experiment::settings::{Sections, object, optimizer, section, sections};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// It holds the parameters.
    Serve,
    /// It trains.
    Work,
}

/// The arguments.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Folder of everything that is written.
    #[arg(long)]
    pub(super) data_dir: PathBuf,
    /// Address to listen on, `/ip4/…/…`.
    #[arg(long)]
    pub(super) listen: String,
    /// Address of the server, as it wrote it.
    #[arg(long)]
    pub(super) bootstrap: Vec<String>,
    /// Configuration file.
    #[arg(long)]
    pub(super) config: Option<PathBuf>,
    /// Settings; later ones win.
    #[arg(long = "set")]
    pub(super) set: Vec<String>,
    /// End when the standard input ends.
    #[arg(long)]
    pub(super) exit_with_stdin: bool,
    /// Of no meaning here.
    #[arg(long)]
    no_mdns: bool,
}

/// What is trained, and how.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) model: ModelConfig,
    pub(super) data: DataConfig,
    pub(super) optimizer: OptimizerConfig,
    pub(super) seed: u64,
    pub(super) steps: u64,
    pub(super) batch: usize,
    /// Peers that train.
    pub(super) peers: u64,
    /// Steps between checkpoints, and between lines of metrics.
    pub(super) checkpoint_every: u64,
    pub(super) metrics_every: u64,
    /// The settings, section by section.
    sections: Sections,
}

impl Arguments {
    /// What the settings say.
    pub(super) fn plan(&self) -> Result<Plan, Error> {
        Plan::of(sections(self.config.as_deref(), &self.set)?)
    }
}

impl Plan {
    /// What the sections say.
    pub(super) fn of(sections: Sections) -> Result<Self, Error> {
        let number = |name: &str, key: &str, default: u64| {
            let value = sections.get(name).and_then(|section| section.get(key));
            value.and_then(Value::as_u64).unwrap_or(default)
        };
        Ok(Self {
            model: section(&sections, "model")?,
            data: section(&sections, "data")?,
            optimizer: optimizer(&sections)?,
            seed: number("run", "seed", 1),
            steps: number("run", "steps", 2000),
            batch: usize::try_from(number("run", "batch", 32)).unwrap_or(usize::MAX),
            peers: number("data", "shards", 1),
            checkpoint_every: number("node", "checkpoint_every", 0),
            metrics_every: number("node", "metrics_every", 25),
            sections,
        })
    }
}

impl Plan {
    /// A trainer with the data of this peer, and the initial parameters that all share.
    pub(super) fn trainer(&self) -> Result<LocalTrainer, Error> {
        let source = Dataset::open(&self.data, self.seed, self.model.context)?;
        let config = LocalConfig {
            model: self.model.clone(),
            optimizer: self.optimizer.clone(),
            seed: self.seed,
            batch: self.batch,
            steps: self.steps,
            threads: 1,
            recompute: false,
        };
        Ok(LocalTrainer::new(config, Box::new(source))?)
    }

    /// Optimizer steps in all: as many as peers that train together would do gradients.
    pub(super) const fn updates(&self) -> u64 {
        self.steps * self.peers
    }

    /// The configuration in force, for the first line of the metrics.
    pub(super) fn effective(&self) -> Result<Value, Error> {
        let mut sections = self.sections.clone();
        sections.insert("model".to_owned(), object(&self.model)?.into());
        sections.insert("data".to_owned(), object(&self.data)?.into());
        sections.insert("optimizer".to_owned(), object(&self.optimizer)?.into());
        Ok(Value::Object(sections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_the_product_reads_them() {
        let set = [
            "model.kind=mlp",
            "model.hidden=[8, 4]",
            "optimizer.kind=sgd",
            "run.steps=10",
            "run.steps=20",
            "data.shards=4",
            "data.skew=0.1",
        ];
        let arguments = Arguments {
            data_dir: PathBuf::from("x"),
            listen: "/ip4/127.0.0.1/udp/0/quic-v1".to_owned(),
            bootstrap: Vec::new(),
            config: None,
            set: set.map(str::to_owned).to_vec(),
            exit_with_stdin: false,
            no_mdns: true,
        };
        let plan = arguments.plan().unwrap();
        assert_eq!((plan.updates(), plan.model.hidden.as_slice()), (80, &[8, 4][..]));
        assert!((plan.optimizer.learning_rate - 0.02).abs() < 1e-9, "{:?}", plan.optimizer);
        assert_eq!(plan.effective().unwrap()["run"]["steps"], 20);
        let wrong = Arguments { set: vec!["optimizer.momentun=1".to_owned()], ..arguments };
        assert!(wrong.plan().unwrap_err().to_string().contains("momentun"));
    }
}
