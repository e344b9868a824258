//! The tokenizer that `run --vocabulary` trains on the data before the peers start.

use std::path::{Path, PathBuf};

use dnode_trainer::{TOKENIZER_FILE, read_text, shakespeare_text, train_tokenizer};

/// Trains a byte-level BPE of `kinds` tokens on the text of `data`, the built-in one without, and writes it
/// to `folder`. Returns the setting that has the peers use it.
pub(super) fn train(data: Option<&Path>, kinds: usize, folder: &Path) -> Result<String, String> {
    let text = data.map_or_else(shakespeare_text, read_text);
    let text = text.map_err(|error| error.to_string())?;
    let trained = train_tokenizer(&[text], kinds).map_err(|error| error.to_string())?;
    let file: PathBuf = folder.join(TOKENIZER_FILE);
    std::fs::write(&file, trained.bytes())
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(format!("data.tokenizer={}", file.display()))
}
