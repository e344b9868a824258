//! Models in the folders of Hugging Face's `transformers`: read to start from, and written.
//!
//! ```text
//! DIR/config.json                      what the model is
//!    /model.safetensors                its weights; or, in several files,
//!    /model.safetensors.index.json     which tensor is in which of them
//!    /tokenizer.json                   what makes its tokens, where a checkpoint holds that
//! ```

mod config;
mod export;
mod folder;
pub(crate) mod names;

pub use self::export::{ExportError, Exported, export};
pub(crate) use self::folder::load;
pub use self::folder::{InitError, model_of};

/// The weights, where they are one file.
const WEIGHTS: &str = "model.safetensors";
/// Which tensor is in which file, where there are several.
const INDEX: &str = "model.safetensors.index.json";
/// What the model is.
const CONFIG: &str = "config.json";
