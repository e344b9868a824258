//! A network as a file: how it begins, and what changes when.
//!
//! ```toml
//! nodes = 4
//! seed = 1
//! setup = ["link * * delay_ms=25 loss=0.01", "up * rate_mbit=100"]
//!
//! [[at]]
//! after = "10s"
//! lines = ["part 0|*"]
//! ```

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::command::Command;
use super::router::{NODES_MAX, NoSuchNode, Router};
use crate::sim::text::duration;

/// A network; what a file does not name is as in [`Scenario::default`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Number of machines, 1 to [`NODES_MAX`]; 0 leaves it to who runs the file.
    pub nodes: usize,
    /// Decides every loss and jitter.
    pub seed: u64,
    /// Control lines before the first packet.
    pub setup: Vec<Command>,
    /// Control lines later.
    pub at: Vec<Moment>,
}

/// Control lines at a moment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    /// The moment, from the start of the network.
    #[serde(with = "duration")]
    pub after: Duration,
    /// What changes then, in this order.
    pub lines: Vec<Command>,
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A scenario that describes no network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// The file is no scenario.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// The number of machines is out of range.
    #[error("a network has 1 to {NODES_MAX} machines, not {0}")]
    Nodes(usize),
    /// A line names a machine that is not there.
    #[error(transparent)]
    NoSuchNode(#[from] NoSuchNode),
}

impl Scenario {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`ScenarioError::Toml`] with line and column.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        Ok(toml::from_str(text)?)
    }

    /// The network as it begins, with everything that is to come.
    ///
    /// # Errors
    /// [`ScenarioError`]: the scenario does not fit its number of machines.
    pub fn router(&self) -> Result<Router, ScenarioError> {
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return Err(ScenarioError::Nodes(self.nodes));
        }
        let mut router = Router::new(self.nodes, self.seed);
        for command in &self.setup {
            router.schedule(Duration::ZERO, command.clone())?;
        }
        for Moment { after, lines } in &self.at {
            for command in lines {
                router.schedule(*after, command.clone())?;
            }
        }
        Ok(router)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_a_network_up_and_changes_it() {
        let scenario = Scenario::parse(
            "nodes = 2\nsetup = [\"link * * delay_ms=5\"]\n\
             [[at]]\nafter = \"2s\"\nlines = [\"part 0|1\", \"stats\"]\n",
        )
        .unwrap();
        let mut router = scenario.router().unwrap();
        assert_eq!(router.deadline(), Some(Duration::ZERO), "the setup comes first");
        assert_eq!(router.next(Duration::ZERO), None);
        assert_eq!(router.deadline(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| match Scenario::parse(text) {
            Ok(scenario) => scenario.router().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error("nodes = 2\nsetup = [\"link 0 1 loss=2\"]").contains("line 2"));
        assert!(error("nodes = 2\nspeed = 3").contains("speed"));
        assert!(error("nodes = 2\nsetup = [\"nat 2 cone\"]").contains("no machine 2"));
        assert!(error("nodes = 0").contains("1 to 64"));
        assert!(error("nodes = 65").contains("65"));
        assert!(error("[[at]]\nafter = \"soon\"\nlines = []").contains("soon"));
    }
}
