//! A network as it begins, and what changes when.

use std::time::Duration;

use super::command::Command;
use super::router::{NODES_MAX, NoSuchNode, Router};

/// A network: how many machines, and what happens to the lines between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Number of machines, 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// Decides every loss and jitter.
    pub seed: u64,
    /// What is changed before the first packet.
    pub setup: Vec<Command>,
    /// What is changed later, from the start of the network, in this order.
    pub at: Vec<(Duration, Vec<Command>)>,
}

/// A plan that describes no network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The number of machines is out of range.
    #[error("a network has 1 to {NODES_MAX} machines, not {0}")]
    Nodes(usize),
    /// A command names a machine that is not there.
    #[error(transparent)]
    NoSuchNode(#[from] NoSuchNode),
}

impl Plan {
    /// The network as it begins, with everything that is to come.
    ///
    /// # Errors
    /// [`PlanError`]: the plan does not fit its number of machines.
    pub fn router(&self) -> Result<Router, PlanError> {
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return Err(PlanError::Nodes(self.nodes));
        }
        let mut router = Router::new(self.nodes, self.seed);
        for command in &self.setup {
            router.schedule(Duration::ZERO, command.clone())?;
        }
        for (after, commands) in &self.at {
            for command in commands {
                router.schedule(*after, command.clone())?;
            }
        }
        Ok(router)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Command {
        text.parse().unwrap()
    }

    #[test]
    fn a_plan_sets_a_network_up_and_changes_it() {
        let plan = Plan {
            nodes: 2,
            setup: vec![line("link * * delay_ms=5")],
            at: vec![(Duration::from_secs(2), vec![line("part 0|1"), line("stats")])],
            ..Plan::default()
        };
        let mut router = plan.router().unwrap();
        assert_eq!(router.deadline(), Some(Duration::ZERO), "the setup comes first");
        assert_eq!(router.next(Duration::ZERO), None);
        assert_eq!(router.deadline(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |nodes: usize, text: &str| {
            let plan = Plan { nodes, setup: vec![line(text)], ..Plan::default() };
            plan.router().unwrap_err().to_string()
        };
        assert!(error(2, "nat 2 cone").contains("no machine 2"));
        assert!(error(0, "heal").contains("1 to 64"));
        assert!(error(65, "heal").contains("65"));
    }
}
