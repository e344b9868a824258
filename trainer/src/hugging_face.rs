//! Models in the folders of Hugging Face's `transformers`: read to start from, and written.
//!
//! ```text
//! DIR/config.json                      what the model is
//!    /model.safetensors                its weights; or, in several files,
//!    /model.safetensors.index.json     which tensor is in which of them
//!    /tokenizer.json                   what makes its tokens, where a checkpoint holds that
//!    /tokenizer_config.json            how `transformers` is to use it
//! ```

mod config;
mod export;
mod folder;
mod model_file;
pub(crate) mod names;

pub use self::export::{ExportError, Exported, export};
pub use self::folder::{InitError, model_of};
pub(crate) use self::folder::{load, vocabulary_told};
pub use self::model_file::{ModelError, Positions, read_model_file};
pub(crate) use self::model_file::{read_ends, read_tokenizer_config};

/// The weights, where they are one file.
const WEIGHTS: &str = "model.safetensors";
/// Which tensor is in which file, where there are several.
const INDEX: &str = "model.safetensors.index.json";
/// What the model is.
pub(crate) const CONFIG: &str = "config.json";
/// How a tokenizer is to be used.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The name under which weights tell what their tokens are, where no tokenizer makes them (docs/models.md).
const VOCABULARY: &str = "vocabulary";
