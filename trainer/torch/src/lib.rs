//! The libtorch backend: the reference models on a CPU or a CUDA device behind the trainer's
//! [`Engine`] seam.
//!
//! [`engine`] is all that others call. Built without the feature `torch`, which is the default,
//! nothing of libtorch is compiled, linked or looked for, and [`engine`] says what is missing
//! (docs/adr/0013). Parameters and gradient are one flat tensor each, of which the model's tensors
//! are views; layout and initial bits are those of the embedded engine.
//!
//! Shape letters: `P` parameters, `B` samples, `T` tokens per sequence, `W` width.

mod config;
#[cfg(feature = "torch")]
mod cuda;
#[cfg(feature = "torch")]
mod dropout;
#[cfg(feature = "torch")]
mod engine;
#[cfg(feature = "torch")]
mod flat;
#[cfg(any(feature = "torch", test))]
mod loss_scale;
#[cfg(feature = "torch")]
mod net;
#[cfg(feature = "torch")]
mod update;

use dnode_trainer::{ConfigError, Engine, LocalConfig, SampleShape};

pub use config::{Device, Precision, TorchConfig};

/// Why libtorch cannot train; nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// The program was built without libtorch; its user can build another.
    #[error(
        "this dnode was built without libtorch: `testnet/scripts/torch.sh build` fetches libtorch 2.11 and builds one with it (docs/operations.md)"
    )]
    NotBuilt,
    /// The embedded engine alone has adapters.
    #[error(
        "libtorch trains no adapters: use node.backend = \"embedded\" with node.device = \"cpu\", or leave out model.lora_rank"
    )]
    Adapters,
    /// Moments of 8 bits are kept in host memory alone.
    #[error(
        "moments of 8 bits are kept in host memory alone: use node.device = \"cpu\", or leave out optimizer.moments = \"f8\""
    )]
    Moments,
    /// The machine or its libtorch has no such device.
    #[error("no CUDA device {device}: {reason}")]
    Cuda {
        /// Index of the device.
        device: usize,
        /// What is missing, and how to get it.
        reason: String,
    },
    /// The configuration does not fit the model or the data.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// libtorch's own failure, for example for lack of memory.
    #[error("libtorch: {0}")]
    Torch(String),
}

/// Builds the model of `config` for samples of `shape` on the device of `torch`, with the same
/// layout and initial parameters as the embedded engine.
///
/// `config.threads` becomes libtorch's number of threads, of which a process has one.
///
/// # Errors
/// [`TorchError`] says what is missing, and how to get it.
pub fn engine(
    config: &LocalConfig,
    torch: TorchConfig,
    shape: SampleShape,
) -> Result<Box<dyn Engine>, TorchError> {
    if config.model.lora_rank > 0 {
        return Err(TorchError::Adapters);
    }
    #[cfg(feature = "torch")]
    return Ok(Box::new(engine::TorchEngine::new(config, torch, shape)?));
    #[cfg(not(feature = "torch"))]
    {
        let _ = (config, torch, shape);
        Err(TorchError::NotBuilt)
    }
}

/// Whether this program was built with libtorch.
#[must_use]
pub const fn is_built() -> bool {
    cfg!(feature = "torch")
}

/// Number of CUDA devices that [`engine`] can use; 0 as well where something is missing.
#[must_use]
pub fn cuda_devices() -> usize {
    #[cfg(feature = "torch")]
    return cuda::devices();
    #[cfg(not(feature = "torch"))]
    0
}
