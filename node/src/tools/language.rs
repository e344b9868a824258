//! Commands about text: `dnode tokenizer`, `dnode eval`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use dnode_trainer::{
    DataError, GenerateError, TextScore, Tokenizer, TokenizerError, read_text, score_text,
    shakespeare_text, train_tokenizer,
};
use serde_json::json;

/// The name of the built-in text.
const SHAKESPEARE: &str = "shakespeare";
/// Most bytes of all texts that a tokenizer is trained on together.
const TEXTS_BYTES_MAX: usize = 1 << 30;
/// Tokens of a line that are shown.
const TOKENS_SHOWN: usize = 64;
/// Special tokens that are shown.
const SPECIAL_SHOWN: usize = 16;

/// Why a command about text fails. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LanguageError {
    /// A text.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file of parameters.
    #[error(transparent)]
    Model(#[from] GenerateError),
    /// All texts together.
    #[error("the texts have more than 1 GiB together; give fewer, a part is enough")]
    TooLong,
}

/// The text of the file `path`, or the built-in one where it has that name and no such file is there.
fn text(path: &Path) -> Result<String, LanguageError> {
    let built_in = path == Path::new(SHAKESPEARE) && !path.exists();
    Ok(if built_in { shakespeare_text()? } else { read_text(path)? })
}

/// Trains a tokenizer on the texts of these files.
pub(crate) fn train(files: &[PathBuf], vocabulary: usize) -> Result<Tokenizer, LanguageError> {
    let mut texts = Vec::new();
    let mut bytes = 0;
    for file in files {
        let text = text(file)?;
        bytes += text.len();
        if bytes > TEXTS_BYTES_MAX {
            return Err(LanguageError::TooLong);
        }
        texts.push(text);
    }
    Ok(train_tokenizer(&texts, vocabulary)?)
}

/// What the tokenizer at `place` is, and how it encodes `line`.
pub(crate) fn show(place: &Path, line: &str) -> Result<String, LanguageError> {
    let file = Tokenizer::file_at(place);
    let tokenizer = Tokenizer::read(&file)?;
    let mut text = format!(
        "{}: {} of {} tokens, {} bytes, BLAKE3 {}\n",
        file.display(),
        tokenizer.form(),
        tokenizer.kinds(),
        tokenizer.bytes().len(),
        tokenizer.digest()
    );
    let special = tokenizer.special_tokens();
    let named = special.iter().map(|(id, token)| format!("{id} {token:?}"));
    let _ = writeln!(text, "special tokens: {}", listed(named, SPECIAL_SHOWN));
    if line.is_empty() {
        return Ok(text);
    }
    let tokens = tokenizer.encode(line)?;
    let named = tokens.iter().map(|&token| format!("{token} {:?}", tokenizer.decode(&[token])));
    let _ = writeln!(text, "{line:?} of {} bytes is {}", line.len(), listed(named, TOKENS_SHOWN));
    if tokenizer.decode(&tokens) != line {
        let _ = writeln!(text, "decoded it is {:?}", tokenizer.decode(&tokens));
    }
    Ok(text)
}

/// How many there are, and the first of them.
fn listed(all: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let count = all.len();
    let first: Vec<String> = all.take(most).collect();
    let (colon, more) = (if count > 0 { ": " } else { "" }, if count > most { ", …" } else { "" });
    format!("{count}{colon}{}{more}", first.join(", "))
}

/// How well the model at `place`, beside the weights of `base` if it holds adapters, predicts the text of
/// `data`.
pub(crate) fn evaluate(
    (place, base): (&Path, Option<&Path>),
    (data, held_out): (&Path, bool),
    (begins, threads, as_json): (bool, usize, bool),
) -> Result<String, LanguageError> {
    let text = text(data)?;
    let score = score_text((place, base), (&text, held_out), (begins, threads))?;
    let (loss, perplexity, bits) = (score.loss(), score.perplexity(), score.bits_per_byte());
    let TextScore { model, vocabulary, tokens, bytes, .. } = score;
    if as_json {
        let told = json!({
            "parameters": model,
            "vocabulary": vocabulary,
            "held_out": held_out,
            "tokens": tokens,
            "bytes": bytes,
            "loss": loss,
            "perplexity": perplexity,
            "bits_per_byte": bits,
        });
        return Ok(format!("{told}\n"));
    }
    let which = if held_out { " (held out)" } else { "" };
    Ok(format!(
        "{}{which}: {bytes} bytes, {tokens} tokens of {vocabulary}\nloss {loss:.4} nats per token, perplexity {perplexity:.2}, {bits:.4} bits per byte\n",
        data.display(),
    ))
}
