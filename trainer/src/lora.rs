//! What a file of adapters tells of them, and the weights that they belong to.

use std::path::{Path, PathBuf};

use dnode_protocol::ParameterLayout;
use serde_json::{Value, json};

use crate::config::ModelConfig;
use crate::hugging_face::{InitError, load};
use crate::seam::digest;

/// Why adapters cannot be put beside their weights. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// Nobody said where the weights are.
    #[error(
        "{} holds adapters alone: name the folder of the weights that they were trained beside by --base", .0.display()
    )]
    Missing(PathBuf),
    /// There is nothing that weights would be needed for.
    #[error("{} holds a whole model, which needs no --base: leave it out", .0.display())]
    Whole(PathBuf),
    /// The folder does not hold the weights of this model.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The folder holds other weights.
    #[error(
        "the weights {}: their digest is {found}, expected {expected}, that of the weights that the adapters were trained beside; name their folder by --base", folder.display()
    )]
    Other {
        /// The folder.
        folder: PathBuf,
        /// Digest of its weights.
        found: String,
        /// What the adapters tell.
        expected: String,
    },
}

/// What a checkpoint tells of the adapters that `config` asks for beside weights of the digest `base`.
pub(crate) fn describe(config: &ModelConfig, base: &str) -> Value {
    json!({
        "rank": config.lora_rank,
        "alpha": config.lora_alpha(),
        "targets": config.lora_targets,
        "base": base,
    })
}

/// Completes the configuration of a model by what a checkpoint tells of its adapters, if it has any.
///
/// # Errors
/// What is missing, in words.
pub(crate) fn complete(config: &mut ModelConfig, told: &Value) -> Result<(), String> {
    if told.is_null() {
        return Ok(());
    }
    let missing = |what: &str| format!("its adapters do not tell the {what}");
    let rank = told["rank"].as_u64().and_then(|rank| usize::try_from(rank).ok());
    config.lora_rank = rank.filter(|&rank| rank > 0).ok_or_else(|| missing("rank"))?;
    config.lora_alpha = told["alpha"].as_f64().ok_or_else(|| missing("alpha"))?;
    let targets: Option<Vec<String>> = serde_json::from_value(told["targets"].clone()).ok();
    config.lora_targets = targets.ok_or_else(|| missing("targets"))?;
    let base = told["base"].as_str().ok_or_else(|| missing("digest of their base"))?;
    config.weights = Some(base.to_owned());
    Ok(())
}

/// Reads the weights of `base` into `out`, beside which the adapters of the file `path` were trained;
/// `frozen` is `None` where it holds none.
///
/// # Errors
/// [`BaseError`].
pub(crate) fn load_base(
    (path, base): (&Path, Option<&Path>),
    (config, frozen): (&ModelConfig, Option<&ParameterLayout>),
    out: &mut [f32],
) -> Result<(), BaseError> {
    let (base, frozen) = match (base, frozen) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return Err(BaseError::Missing(path.to_owned())),
        (Some(_), None) => return Err(BaseError::Whole(path.to_owned())),
        (Some(base), Some(frozen)) => (base, frozen),
    };
    load(base, (config, frozen), out)?;
    let (found, expected) = (digest(out), config.weights.clone().unwrap_or_default());
    if found == expected {
        return Ok(());
    }
    Err(BaseError::Other { folder: base.to_owned(), found, expected })
}

#[cfg(test)]
mod tests;
