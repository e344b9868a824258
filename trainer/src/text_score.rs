//! How well a trained language model predicts a text, from a file of its parameters alone.
//!
//! `T`: tokens of a context.

use std::ops::Range;
use std::path::Path;

use crate::data::train_len;
use crate::generate::{GenerateError, Written};
use crate::kernel::Compute;
use crate::model::Forward;

/// Tokens that are computed at once, but at least a context.
const TOKENS_AT_ONCE: usize = 1024;

/// What a text costs a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TextScore {
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

/// Scores `text` with the language model whose parameters lie in this file, beside the weights of this
/// folder if they are adapters, on `threads` threads.
///
/// Windows of `T` tokens follow each other without overlap; the last is a whole one, too, of which only
/// what was not scored yet counts. The first token is predicted as that of a text without a prompt.
/// With `held_out` only the last tenth of the tokens is scored, which training on this text leaves out.
///
/// # Errors
/// [`GenerateError`] says what is wrong with the file or the text.
pub fn score_text(
    from: (&Path, Option<&Path>),
    text: &str,
    held_out: bool,
    threads: usize,
) -> Result<TextScore, GenerateError> {
    let (mut model, compute) = Written::open(from, threads)?;
    let tokens = model.encode(text)?;
    let first = if held_out { train_len(tokens.len()) } else { 0 };
    let scored: Vec<u32> = tokens.iter(first..tokens.len()).collect();
    if scored.is_empty() {
        return Err(GenerateError::Empty);
    }
    let before = match first {
        0 => model.vocabulary.beginning(),
        _ => tokens.iter(first - 1..first).next().unwrap_or_default(),
    };
    let whole = if held_out { model.vocabulary.decode(&scored).len() } else { text.len() };
    drop(tokens);
    let mut all = scored;
    all.insert(0, before);
    let nats = model.nats(&compute, &all);
    let vocabulary = model.vocabulary.words();
    Ok(TextScore { vocabulary, tokens: all.len() as u64 - 1, bytes: whole as u64, nats })
}

/// A window of a text: its first input, and which of its `T` predictions are new.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    new: Range<usize>,
}

/// The windows that predict each of `targets` tokens once; a text shorter than a context has one, whose end
/// is filled up.
fn windows(targets: usize, context: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut done = 0;
    while done < targets {
        let start = done.min(targets.saturating_sub(context));
        let end = targets.min(start + context);
        windows.push(Window { start, new: done - start..end - start });
        done = end;
    }
    windows
}

impl Written {
    /// Sum of the losses of `all` tokens but the first, nats.
    fn nats(&mut self, compute: &Compute, all: &[u32]) -> f64 {
        let context = self.context;
        let mut nats = 0.0;
        for some in windows(all.len() - 1, context).chunks((TOKENS_AT_ONCE / context).max(1)) {
            let mut inputs = Vec::with_capacity(some.len() * context);
            for window in some {
                let end = all.len().min(window.start + context);
                inputs.extend_from_slice(&all[window.start..end]);
                // Nothing sees what stands behind it.
                inputs.resize(inputs.len().next_multiple_of(context), 0);
            }
            let pass = Forward::new(compute, &self.parameters);
            self.model.compute_logits(pass, &inputs);
            for (window, row) in some.iter().zip((0..).step_by(context)) {
                for at in window.new.clone() {
                    let target = all[window.start + at + 1] as usize;
                    nats += surprise(self.model.head().row(row + at), target);
                }
            }
        }
        nats
    }
}

/// `−ln` of the probability of `target`.
fn surprise(logits: &[f32], target: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    total.ln() + f64::from(largest) - f64::from(logits[target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_predicted_once_and_the_last_window_is_whole() {
        let window = |start, new| Window { start, new };
        assert_eq!(windows(7, 3), [window(0, 0..3), window(3, 0..3), window(4, 2..3)]);
        assert_eq!(windows(6, 3), [window(0, 0..3), window(3, 0..3)]);
        assert_eq!(windows(2, 3), [window(0, 0..2)]);
        assert_eq!(windows(0, 3), []);
        for (targets, context) in [(100, 7), (5, 5), (1, 64), (129, 64)] {
            let all = windows(targets, context);
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
        let score = TextScore { vocabulary: String::new(), tokens: 4, bytes: 16, nats };
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        assert!((score.bits_per_byte() - 0.5).abs() < 1e-12);
    }
}
