//! How well a trained language model predicts a text, from a file of its parameters alone.
//!
//! `T`: tokens of a context.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::data::train_len;
use crate::generate::GenerateError;
use crate::model::Forward;
use crate::predictor::Predictor;

/// Tokens that are computed at once, but at least a context.
const TOKENS_AT_ONCE: usize = 1024;

/// What a text costs a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TextScore {
    /// The file or folder of the model.
    pub model: PathBuf,
    /// What makes the tokens, in a few words.
    pub vocabulary: String,
    /// Tokens, all of which were predicted.
    pub tokens: u64,
    /// Bytes of the text that they stand for, as UTF-8.
    pub bytes: u64,
    /// Sum of the losses of all tokens, nats.
    pub nats: f64,
}

impl TextScore {
    /// Mean loss per token, nats.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// Number of tokens that would be as hard to choose among: `exp(loss)`.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss().exp()
    }

    /// Bits per byte of text, which models of different tokens have in common.
    #[must_use]
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / std::f64::consts::LN_2 / self.bytes as f64
    }
}

/// Scores `text` with the language model at this place, beside the weights of this folder if it holds
/// adapters, on `threads` threads, as [`crate::generate`] takes them.
///
/// Windows of `T` tokens follow each other without overlap; the last is a whole one, too, of which only
/// what was not scored yet counts. The first token is predicted as that of a text without a prompt: with
/// `begins` behind what the tokenizer puts before a text.
/// With `held_out` only the last tenth of the tokens is scored, which training on this text leaves out.
///
/// # Errors
/// [`GenerateError`] says what is wrong with the file or the text.
pub fn score_text(
    from: (&Path, Option<&Path>),
    (text, held_out): (&str, bool),
    (begins, threads): (bool, usize),
) -> Result<TextScore, GenerateError> {
    let model = Predictor::open(from, threads)?;
    let mut model = if begins { model } else { model.without_marks() };
    let tokens = model.encode(text)?;
    let first = if held_out { train_len(tokens.len()) } else { 0 };
    let scored: Vec<u32> = tokens.iter(first..tokens.len()).collect();
    if scored.is_empty() {
        return Err(GenerateError::Empty);
    }
    let before = match first {
        0 => model.beginning(),
        _ => tokens.iter(first - 1..first).collect(),
    };
    let whole = if held_out { model.vocabulary.decode(&scored).len() } else { text.len() };
    drop(tokens);
    let tokens = scored.len() as u64;
    let nats = text_nats(&mut model, &[&before[..], &scored].concat(), before.len());
    let vocabulary = model.vocabulary.words();
    Ok(TextScore { model: model.place, vocabulary, tokens, bytes: whole as u64, nats })
}

/// A window of a text: its first input, and which of its `T` predictions are new.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    new: Range<usize>,
}

/// The windows that predict each of these targets once; a text shorter than a context has one, whose end is
/// filled up.
fn windows(targets: Range<usize>, context: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let Range { start: mut done, end: targets } = targets;
    while done < targets {
        let start = done.min(targets.saturating_sub(context));
        let end = targets.min(start + context);
        windows.push(Window { start, new: done - start..end - start });
        done = end;
    }
    windows
}

/// Sum of the losses of `all` tokens from the one at `from` on, nats.
fn text_nats(model: &mut Predictor, all: &[u32], from: usize) -> f64 {
    let context = model.context;
    let windows = windows(from - 1..all.len() - 1, context);
    if context <= TOKENS_AT_ONCE {
        return batched_nats(model, all, &windows);
    }
    let one = |Window { start, new }: Window| {
        let end = all.len().min(start + context + 1);
        model.nats(&all[start..end], 0, new.start + 1)
    };
    windows.into_iter().map(one).sum()
}

/// As [`text_nats`], several windows at once.
fn batched_nats(model: &mut Predictor, all: &[u32], windows: &[Window]) -> f64 {
    let context = model.context;
    let mut nats = 0.0;
    for some in windows.chunks((TOKENS_AT_ONCE / context).max(1)) {
        let mut inputs = Vec::with_capacity(some.len() * context);
        for window in some {
            let end = all.len().min(window.start + context);
            inputs.extend_from_slice(&all[window.start..end]);
            // Nothing sees what stands behind it.
            inputs.resize(inputs.len().next_multiple_of(context), 0);
        }
        let pass = Forward::new(&model.compute, &model.parameters);
        model.model.read(pass, &inputs);
        for (Window { start, new }, row) in some.iter().zip((0..).step_by(context)) {
            nats += model.told_nats(row + new.start, &all[start + new.start + 1..=start + new.end]);
        }
    }
    nats
}

/// `−ln` of the probability of `target`.
pub(crate) fn surprise(logits: &[f32], target: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    total.ln() + f64::from(largest) - f64::from(logits[target])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelKind;
    use crate::predictor::testing::random_predictor;

    #[test]
    fn windows_at_once_and_piece_by_piece_cost_the_same() {
        // More than a piece and less than two; the last window overlaps the one before.
        let all: Vec<u32> = (0..1500).map(|at| at * at % 251).collect();
        for kind in [ModelKind::Gpt, ModelKind::Llama] {
            let mut model = random_predictor(kind, 700);
            let windows = windows(0..all.len() - 1, 700);
            let batched = batched_nats(&mut model, &all, &windows);
            let one = |Window { start, new }: &Window| {
                model.nats(&all[*start..all.len().min(start + 701)], 0, new.start + 1)
            };
            let pieces: f64 = windows.iter().map(one).sum();
            assert!((batched - pieces).abs() < 1e-5 * batched, "{kind}: {batched} {pieces}");
            // What is known already need not be taken in again.
            let from_the_start = model.nats(&all[..701], 0, 601);
            let again = model.nats(&all[..701], 600, 601);
            assert!((again - from_the_start).abs() < 1e-5 * again, "{again} {from_the_start}");
        }
    }

    #[test]
    fn every_token_is_predicted_once_and_the_last_window_is_whole() {
        let window = |start, new| Window { start, new };
        assert_eq!(windows(0..7, 3), [window(0, 0..3), window(3, 0..3), window(4, 2..3)]);
        assert_eq!(windows(0..6, 3), [window(0, 0..3), window(3, 0..3)]);
        assert_eq!(windows(0..2, 3), [window(0, 0..2)]);
        assert_eq!(windows(0..0, 3), []);
        assert_eq!(windows(2..7, 3), [window(2, 0..3), window(4, 1..3)]);
        for (targets, context) in [(100, 7), (5, 5), (1, 64), (129, 64)] {
            let all = windows(0..targets, context);
            let predicted: Vec<usize> =
                all.iter().flat_map(|it| it.new.clone().map(|at| it.start + at)).collect();
            assert!(predicted.into_iter().eq(0..targets), "{targets} {context}");
        }
    }

    #[test]
    fn figures_by_hand() {
        let three = (3.0_f32).ln();
        assert!((surprise(&[0.0, three], 1) - (4.0_f64 / 3.0).ln()).abs() < 1e-6);
        let nats = 8.0 * std::f64::consts::LN_2;
        let (model, vocabulary) = (PathBuf::new(), String::new());
        let score = TextScore { model, vocabulary, tokens: 4, bytes: 16, nats };
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        assert!((score.bits_per_byte() - 0.5).abs() < 1e-12);
    }
}
