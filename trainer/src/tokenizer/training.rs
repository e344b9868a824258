//! A byte-level BPE of a text, as GPT-2 has one.

use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizerWrapper, PostProcessorWrapper, TokenizerImpl};

use super::pieces::pieces;
use super::{TOKENIZER_VOCABULARY_MAX, Tokenizer, TokenizerError, one_line};

/// Fewest tokens: the bytes, and the one that ends a text.
pub const TOKENIZER_VOCABULARY_MIN: usize = 257;
/// The token that stands between texts (GPT-2).
const END_OF_TEXT: &str = "<|endoftext|>";

/// Trains a byte-level BPE of `vocabulary` tokens on `texts`. Equal texts make equal bytes.
///
/// Source: Sennrich et al. 2016, arXiv:1508.07909; on bytes as GPT-2 does.
///
/// # Errors
/// [`TokenizerError::Vocabulary`], or [`TokenizerError::Short`] where the texts make fewer tokens.
pub fn train_tokenizer(texts: &[String], vocabulary: usize) -> Result<Tokenizer, TokenizerError> {
    if !(TOKENIZER_VOCABULARY_MIN..=TOKENIZER_VOCABULARY_MAX).contains(&vocabulary) {
        return Err(TokenizerError::Vocabulary(vocabulary));
    }
    let failed = |error: tokenizers::Error| TokenizerError::Train(one_line(error.as_ref()));
    let mut trained: TokenizerImpl<
        BPE,
        NormalizerWrapper,
        ByteLevel,
        PostProcessorWrapper,
        ByteLevel,
    > = TokenizerImpl::new(BPE::default());
    let level = ByteLevel::new(false, false, true);
    trained.with_pre_tokenizer(Some(level)).with_decoder(Some(level));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocabulary)
        .show_progress(false)
        .special_tokens(vec![tokenizers::AddedToken::from(END_OF_TEXT, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let all = texts.iter().flat_map(|text| pieces(text));
    trained.train(&mut trainer, all).map_err(failed)?;
    let found = trained.get_vocab_size(true);
    if found < vocabulary {
        return Err(TokenizerError::Short { wanted: vocabulary, found });
    }
    let json = trained.to_string(false).map_err(failed)?;
    let json = spaced_merges(&json).map_err(|error| TokenizerError::Train(error.to_string()))?;
    Tokenizer::parse(json, Path::new("(trained)"))
}

/// The same file with merges as `"a b"` in place of `["a", "b"]`, which releases of Python's `tokenizers`
/// before 0.20 do not read. No token of bytes holds a space.
fn spaced_merges(json: &str) -> Result<Vec<u8>, serde_json::Error> {
    let mut file: Value = serde_json::from_str(json)?;
    let merges = file.pointer_mut("/model/merges").and_then(Value::as_array_mut);
    for merge in merges.into_iter().flatten() {
        if let [Value::String(left), Value::String(right)] =
            merge.as_array().map_or(&[][..], |it| it)
        {
            *merge = Value::String(format!("{left} {right}"));
        }
    }
    serde_json::to_vec_pretty(&file)
}
