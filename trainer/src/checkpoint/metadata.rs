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
/// Moments of the run that averaged parameters are the mean of.
const TAIL_AVERAGE: &str = "dnode.tail_average";

/// Names and values of a checkpoint's parameters, sorted; `averaged`: of how many moments they are the
/// mean, where they are one.
pub(super) fn of(checkpoint: &Checkpoint<'_>, averaged: Option<u64>) -> BTreeMap<String, String> {
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
    let averaged = averaged.map(|moments| (TAIL_AVERAGE, moments.to_string()));
    let told = checkpoint.description.iter().map(|(name, value)| (name, value.to_owned()));
    own.into_iter()
        .chain(averaged)
        .chain(told)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Of how many moments the parameters are the mean, at least one.
pub(super) fn moments(metadata: &BTreeMap<String, String>) -> Result<u64, String> {
    let told = metadata.get(TAIL_AVERAGE).map(String::as_str).unwrap_or_default();
    let moments = told.parse().ok().filter(|moments| *moments > 0);
    moments.ok_or_else(|| {
        let found = told.escape_debug().take(64).collect::<String>();
        format!(
            "{}: metadata: expected {TAIL_AVERAGE} of at least 1, found {found}",
            super::TAIL_AVERAGE
        )
    })
}

/// Whether metadata of the file `file`, where there are any, are of this checkpoint and in a form that is
/// known.
pub(super) fn check(
    file: &str,
    metadata: &BTreeMap<String, String>,
    manifest: &Manifest,
) -> Result<(), String> {
    let expected =
        [(FORMAT_NAME, FORMAT), (RUN, &manifest.run), (STEP, &manifest.step.to_string())];
    for (name, expected) in expected {
        if let Some(found) = metadata.get(name).filter(|found| *found != expected) {
            return Err(format!(
                "{file}: metadata: expected {name} {expected}, found {}",
                found.escape_debug().take(64).collect::<String>()
            ));
        }
    }
    Ok(())
}
