//! What the harness itself measured of the final parameters of a run, beside what its peers say.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::consensus::Exact;

/// Name of the file inside the folder of an arm and seed.
pub const JUDGED_FILE: &str = "judged.json";

/// Quality of parameters on all held-out data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Mean loss, nats.
    pub loss: f64,
    /// Share of right answers, in `[0, 1]`.
    pub accuracy: f64,
    /// Samples, or tokens.
    pub count: u64,
}

/// The final parameters of a run, measured with the same data for every arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// By peer; nothing for one that did not end in order.
    pub peers: Vec<Option<Measured>>,
    /// The mean of the parameters of those that did.
    pub mean: Option<Measured>,
    /// Distance of the parameters to their mean; nothing for less than two.
    pub consensus: Option<Exact>,
}

impl Judged {
    /// Writes it into the folder of a run.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        std::fs::write(folder.join(JUDGED_FILE), text + "\n")
    }

    /// Reads it from the folder of a run; nothing if it was not measured.
    #[must_use]
    pub fn load(folder: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join(JUDGED_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}
