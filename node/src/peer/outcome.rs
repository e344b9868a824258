//! How a run ended for a peer.

use dnode_protocol::PeerId;

/// How a run ended for this peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The peer.
    pub peer: PeerId,
    /// `steps done`, `interrupted` or `diverged`.
    pub reason: &'static str,
    /// Local steps done.
    pub step: u64,
    /// Samples processed.
    pub samples: u64,
    /// Samples that this start of the process has trained on, per second of its local steps. A step that
    /// takes the mean gradient of several ranks has the wait for them in it. Waiting between steps, mixing,
    /// evaluations and checkpoints do not count. `None` if no step was done.
    pub samples_per_s: Option<f64>,
    /// Exchanges that were applied here, begun or answered; `None` if no other peer was ever met.
    pub exchanges: Option<u64>,
    /// Quality of the final model on held-out data, unless interrupted.
    pub evaluation: Option<dnode_trainer::Evaluation>,
    /// The last evaluation before the end; `None` if there was none.
    pub evaluated: Option<LastEvaluation>,
    /// The final parameters, when they could be written.
    pub parameters: Option<std::path::PathBuf>,
    /// Quality of the parameters averaged over the last part of the run (`node.tail_average`), and where
    /// they are; unless interrupted.
    pub averaged: Option<(dnode_trainer::Evaluation, std::path::PathBuf)>,
    /// How training went wrong, if it does at the end.
    pub diverged: Option<String>,
}

/// An evaluation before the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastEvaluation {
    /// Local steps done before it.
    pub step: u64,
    /// Its result.
    pub evaluation: dnode_trainer::Evaluation,
}
