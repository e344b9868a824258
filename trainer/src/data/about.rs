//! What a data set tells about itself: how its bytes become a model's inputs and targets.
//!
//! docs/models.md says what each field means.

use std::sync::Arc;

use serde_json::{Value, json};

use super::digits;
use super::text::Text;
use super::{DataError, DataKind};
use crate::description::{Description, DescriptionError};

/// The parts of a data set's description.
#[derive(Clone, Debug)]
pub(super) struct About {
    /// What belongs to the model.
    agreed: [(&'static str, Value); 2],
    /// Which data these are.
    data: Value,
    /// The file of the tokenizer that makes tokens of a text.
    tokenizer: Option<Arc<[u8]>>,
}

/// What images are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pictures {
    pub(super) kind: DataKind,
    pub(super) side: usize,
    pub(super) classes: usize,
    /// Of all training pixels.
    pub(super) mean: f64,
    pub(super) deviation: f64,
    /// Images of all shards, and held-out ones.
    pub(super) counts: (usize, usize),
}

impl About {
    pub(super) fn images(of: Pictures, digest: [u8; 32]) -> Result<Self, DataError> {
        let Pictures { kind, side, classes, mean, deviation, counts: (train, held_out) } = of;
        let input = json!({
            "kind": "image",
            "height": side,
            "width": side,
            "channels": 1,
            "mean": mean,
            "deviation": deviation,
            "formula": "(pixel - mean) / deviation",
        });
        let labels: Vec<String> = (0..classes).map(|label| label.to_string()).collect();
        let mut data =
            json!({ "kind": kind, "blake3": hex(digest), "train": train, "held_out": held_out });
        if kind == DataKind::Digits {
            data["held_out_indices"] = json!(digits::held_out()?);
        }
        let agreed = [("input", input), ("labels", json!(labels))];
        Ok(Self { agreed, data, tokenizer: None })
    }

    pub(super) fn text(kind: DataKind, text: &Text, digest: [u8; 32]) -> Self {
        let tokens = text.tokens().len();
        let input = json!({ "kind": "tokens", "context": text.context });
        let vocabulary = text.vocabulary.tell();
        let data = json!({
            "kind": kind,
            "blake3": hex(digest),
            "train": tokens - tokens / 10,
            "held_out": tokens / 10,
            "held_out_windows": text.held_out_windows(),
        });
        let agreed = [("input", input), ("vocabulary", vocabulary)];
        let tokenizer = text.vocabulary.tokenizer().map(|tokenizer| tokenizer.bytes().clone());
        Self { agreed, data, tokenizer }
    }

    pub(super) fn tell(&self, description: &mut Description) -> Result<(), DescriptionError> {
        for (name, value) in &self.agreed {
            description.set(name, value.to_string())?;
        }
        if let Some(tokenizer) = &self.tokenizer {
            description.set_tokenizer(tokenizer.clone());
        }
        description.note("data", self.data.to_string())
    }
}

pub(super) fn hex(digest: [u8; 32]) -> String {
    blake3::Hash::from_bytes(digest).to_hex().to_string()
}
