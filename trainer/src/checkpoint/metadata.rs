//! The metadata of a file of parameters: what it is of, for dnode and for other programs.
//!
//! docs/models.md lists the names and what their values mean.

use std::collections::BTreeMap;

use super::Checkpoint;
use super::manifest::{self, Manifest};
use crate::description::DESCRIPTION_BYTES_MAX;

/// Most bytes of metadata as JSON: of each byte of a description at most six, and dnode's own.
pub(super) const METADATA_BYTES_MAX: usize = 6 * DESCRIPTION_BYTES_MAX + (64 << 10);
/// Version of the meaning of the names.
const FORMAT: &str = "1";
const FORMAT_NAME: &str = "dnode.format";
const RUN: &str = "dnode.run";
const STEP: &str = "dnode.step";

/// Names and values of a checkpoint, sorted.
pub(super) fn of(checkpoint: &Checkpoint<'_>) -> BTreeMap<String, String> {
    let own = [
        // What other programs look for: the numbers are laid out as those of PyTorch.
        ("format", "pt".to_owned()),
        (FORMAT_NAME, FORMAT.to_owned()),
        ("dnode.version", env!("CARGO_PKG_VERSION").to_owned()),
        (RUN, manifest::run_name(checkpoint.run.id())),
        (STEP, checkpoint.step.to_string()),
        ("dnode.clock", checkpoint.clock.0.to_string()),
        ("dnode.samples", checkpoint.samples.to_string()),
    ];
    let told = checkpoint.description.iter().map(|(name, value)| (name, value.to_owned()));
    own.into_iter().chain(told).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether metadata, where there are any, are of this checkpoint and in a form that is known.
pub(super) fn check(
    metadata: &BTreeMap<String, String>,
    manifest: &Manifest,
) -> Result<(), String> {
    let expected =
        [(FORMAT_NAME, FORMAT), (RUN, &manifest.run), (STEP, &manifest.step.to_string())];
    for (name, expected) in expected {
        if let Some(found) = metadata.get(name).filter(|found| *found != expected) {
            return Err(format!(
                "{}: metadata: expected {name} {expected}, found {}",
                super::PARAMETERS,
                found.escape_debug().take(64).collect::<String>()
            ));
        }
    }
    Ok(())
}
