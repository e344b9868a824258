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
    /// Samples of this start of the process per second of its local steps: what training does by itself.
    /// Waiting, mixing, evaluations and checkpoints do not count. `None` where no step was done.
    pub samples_per_s: Option<f64>,
    /// Exchanges that were applied here, begun or answered; none where no other peer was ever met.
    pub exchanges: Option<u64>,
    /// Quality on held-out data of what the run ended with, unless interrupted.
    pub evaluation: Option<dnode_trainer::Evaluation>,
    /// The last evaluation on the way; `None` where there was none.
    pub evaluated: Option<LastEvaluation>,
    /// The final parameters, when they could be written.
    pub parameters: Option<std::path::PathBuf>,
    /// How training went wrong, if it does at the end.
    pub diverged: Option<String>,
}

/// An evaluation on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastEvaluation {
    /// Local steps done before it.
    pub step: u64,
    /// What it found.
    pub evaluation: dnode_trainer::Evaluation,
}
