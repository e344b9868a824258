//! Text that a trained language model writes, token by token, from a file of its parameters alone.
//!
//! Where a tokenizer makes its tokens, that is in the file `tokenizer.json` beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::Value;

use crate::config::{ConfigError, ModelConfig, ModelKind, ensure};
use crate::kernel::Compute;
use crate::model::initial::unit;
use crate::model::transformer::LanguageModel;
use crate::model::{Forward, build_language};
use crate::tensor_file::{HEADER_MAX, TensorFile};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer, TokenizerError};
use crate::vocabulary::{EncodeError, TextStream, Tokens, Vocabulary};

/// Most tokens that are written at once.
pub const GENERATED_MAX: usize = 100_000;
/// Largest file of parameters, bytes; its numbers are held in memory.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// What the text begins with; empty begins a new line.
    pub prompt: String,
    /// Tokens to write after it, at most [`GENERATED_MAX`].
    pub length: usize,
    /// What logits are divided by, above 0: below 1 prefers what is likely.
    pub temperature: f32,
    /// Seed of the draws: equal seeds write equal text.
    pub seed: u64,
}

impl Default for Generation {
    fn default() -> Self {
        Self { prompt: String::new(), length: 400, temperature: 0.8, seed: 1 }
    }
}

/// Why nothing can be written. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The file cannot be read.
    #[error("read the parameters {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not one of a language model that dnode has written.
    #[error("the parameters {}: {what}; expected those of a gpt or llama that dnode has trained", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The text has a character that the model has never seen.
    #[error("the text has {0:?}, which is not in the model's vocabulary: {1:?}")]
    Unknown(char, String),
    /// The text has nothing in it.
    #[error("the text has no token to score; give a longer one")]
    Empty,
    /// The tokenizer does not know the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// What was written cannot be handed on.
    #[error("write the text: {0}")]
    Output(io::Error),
    /// A number is out of range.
    #[error(transparent)]
    Range(#[from] ConfigError),
}

/// Writes text with the language model whose parameters lie in the file `path`.
///
/// The model, and what its tokens stand for, are in the file's metadata (docs/models.md).
///
/// # Errors
/// [`GenerateError`] says what is wrong with the file or the request.
pub fn generate(path: &Path, request: &Generation) -> Result<String, GenerateError> {
    let mut text = String::new();
    let mut take = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    generate_to(path, request, &mut take).map(|()| text)
}

/// As [`generate`]; `take` gets the prompt, and then each piece of text as soon as it is there, in whole
/// characters.
///
/// # Errors
/// As there, and [`GenerateError::Output`] when `take` fails.
pub fn generate_to(
    path: &Path,
    request: &Generation,
    take: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), GenerateError> {
    request.check()?;
    let (mut model, compute) = Written::open(path, 1)?;
    let mut tokens = model.prompt(&request.prompt)?;
    let mut random = ChaCha8Rng::seed_from_u64(request.seed);
    let vocabulary = model.vocabulary.clone();
    let before = if request.prompt.is_empty() { &[] } else { tokens.as_slice() };
    let mut stream = TextStream::new(&vocabulary, before);
    let mut say = |text: &str| take(text).map_err(GenerateError::Output);
    say(&request.prompt)?;
    for _ in 0..request.length {
        let draw = unit(&mut random);
        let token = model.next(&compute, &tokens, request.temperature, draw);
        tokens.push(token);
        say(&stream.push(token))?;
    }
    say(&stream.end())
}

impl Generation {
    fn check(&self) -> Result<(), ConfigError> {
        let legal = format!("0..={GENERATED_MAX}");
        ensure(self.length <= GENERATED_MAX, "--length", self.length, legal)?;
        let positive = self.temperature > 0.0 && self.temperature.is_finite();
        ensure(positive, "--temperature", self.temperature, "a number above 0")
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(file)
}

/// A model that a file of parameters describes, which is only asked what comes next.
pub(crate) struct Written {
    pub(crate) model: Box<dyn LanguageModel>,
    pub(crate) context: usize,
    /// `[P]`.
    pub(crate) parameters: Vec<f32>,
    pub(crate) vocabulary: Vocabulary,
}

impl Written {
    /// The model of the file `path`, and `threads` threads to compute on.
    pub(crate) fn open(path: &Path, threads: usize) -> Result<(Self, Compute), GenerateError> {
        let content = |what: String| GenerateError::Content { path: path.to_path_buf(), what };
        let file = open(path).map_err(|source| {
            let path = path.to_path_buf();
            GenerateError::Read { path, source }
        })?;
        let tokenizer = || {
            let file = path.with_file_name(TOKENIZER_FILE);
            Tokenizer::read(&file).map_err(|error| error.to_string())
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = TensorFile::new(name, file, HEADER_MAX).map_err(content)?;
        let model = Self::of(&file, tokenizer).map_err(content)?;
        let compute = Compute::new(threads).map_err(|error| content(error.to_string()))?;
        Ok((model, compute))
    }

    /// The error says what is wrong with the file.
    fn of(
        file: &TensorFile,
        tokenizer: impl FnOnce() -> Result<Tokenizer, String>,
    ) -> Result<Self, String> {
        let metadata = file.metadata();
        let config = model_told(&metadata)?;
        let vocabulary = Vocabulary::told(&told(&metadata, "vocabulary")?, tokenizer)?;
        let model = build_language(&config, vocabulary.len()).map_err(|error| error.to_string())?;
        let model = model.ok_or("its model writes no text")?;
        file.check(model.layout())?;
        let mut parameters = vec![0.0; model.layout().parameters()];
        file.parameters(model.layout(), &mut parameters)?;
        Ok(Self { model, context: config.context, parameters, vocabulary })
    }

    /// The tokens of `text`, which the user has given.
    pub(crate) fn encode(&self, text: &str) -> Result<Tokens, GenerateError> {
        self.vocabulary.encode(text).map_err(|error| match error {
            EncodeError::Tokenizer(error) => GenerateError::Tokenizer(error),
            EncodeError::Character(_, character) => {
                GenerateError::Unknown(character, self.vocabulary.decode(&self.kinds()))
            }
        })
    }

    /// The tokens of the prompt; of an empty one, what a text begins after.
    fn prompt(&self, prompt: &str) -> Result<Vec<u32>, GenerateError> {
        let tokens = self.encode(prompt)?;
        let tokens: Vec<u32> = tokens.iter(0..tokens.len()).collect();
        Ok(if tokens.is_empty() { vec![self.vocabulary.beginning()] } else { tokens })
    }

    fn kinds(&self) -> Vec<u32> {
        (0..self.vocabulary.len() as u32).collect()
    }

    /// The token after the last ones of `tokens`, chosen by `draw`, uniform in `[0, 1)`.
    fn next(&mut self, compute: &Compute, tokens: &[u32], temperature: f32, draw: f32) -> u32 {
        let seen = &tokens[tokens.len().saturating_sub(self.context)..];
        let mut window = seen.to_vec();
        // Nothing sees what stands behind it.
        window.resize(self.context, 0);
        let pass = Forward { compute, parameters: &self.parameters };
        let logits = self.model.next_logits(pass, &window, seen.len() - 1).unwrap_or_default();
        // A model may know more tokens than its data have.
        let known = &logits[..self.vocabulary.len().min(logits.len())];
        draw_from(known, temperature, draw)
    }
}

/// What a file's metadata tell under this name.
fn told(metadata: &BTreeMap<String, String>, name: &str) -> Result<Value, String> {
    let text = metadata.get(name);
    let text = text.ok_or_else(|| format!("its metadata do not tell the {name}"))?;
    serde_json::from_str(text).map_err(|error| format!("its {name}: {error}"))
}

/// The configuration of the model that a file's metadata tell, which is one that writes text.
pub(crate) fn model_told(metadata: &BTreeMap<String, String>) -> Result<ModelConfig, String> {
    config(&told(metadata, "model")?)
}

/// The configuration of the model that a file tells.
fn config(told: &Value) -> Result<ModelConfig, String> {
    let size = |name: &str| -> Result<usize, String> {
        let size = told[name].as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| format!("its model does not tell {name}"))
    };
    let number =
        |name: &str| told[name].as_f64().ok_or_else(|| format!("its model does not tell {name}"));
    let kind =
        serde_json::from_value(told["kind"].clone()).ok().filter(|kind: &ModelKind| kind.is_text());
    let kind =
        kind.ok_or_else(|| format!("its model is {}, which writes no text", told["kind"]))?;
    let mut config = ModelConfig {
        kind,
        layers: size("layers")?,
        heads: size("heads")?,
        width: size("width")?,
        context: size("context")?,
        vocabulary: size("vocabulary")?,
        ..ModelConfig::default()
    };
    if kind == ModelKind::Llama {
        config.key_value_heads = size("key_value_heads")?;
        config.inner = size("inner")?;
        config.tied = told["tied"].as_bool().ok_or("its model does not tell tied")?;
        config.norm_epsilon = number("norm_epsilon")?;
        config.rotary_base = number("rotary_base")?;
    }
    Ok(config)
}

/// The index whose share of `exp(logits / temperature)` the draw falls into.
fn draw_from(logits: &[f32], temperature: f32, draw: f32) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> =
        logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    let mut left = draw * weights.iter().sum::<f32>();
    for (index, weight) in (0..).zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return index;
        }
    }
    // Rounding left something over, or the weights are not finite.
    weights.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_falls_where_the_probability_says() {
        let logits = [0.0, (3.0_f32).ln(), f32::NEG_INFINITY];
        // Shares 1/4, 3/4 and 0.
        for (draw, want) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.999, 1)] {
            assert_eq!(draw_from(&logits, 1.0, draw), want, "{draw}");
        }
        // Half the temperature squares the odds: 1/10.
        assert_eq!(draw_from(&logits, 0.5, 0.11), 1);
        assert_eq!(draw_from(&[f32::NAN, f32::NAN], 1.0, 0.5), 1, "no panic");
        assert_eq!(draw_from(&[], 1.0, 0.5), 0, "no panic");
    }

    #[test]
    fn bytes_that_are_no_parameters_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [&b""[..], b"{}", &[255; 64]] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(matches!(Written::open(file.path(), 1), Err(GenerateError::Content { .. })));
        }
        let request = Generation { length: GENERATED_MAX + 1, ..Generation::default() };
        assert!(generate(Path::new("x"), &request).is_err());
        let request = Generation { temperature: 0.0, ..Generation::default() };
        assert!(generate(Path::new("x"), &request).is_err());
        let error = generate(Path::new("/no/such"), &Generation::default()).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
