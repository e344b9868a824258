//! Text that a trained language model writes, token by token.

use std::io;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use crate::config::{ConfigError, ensure};
use crate::hugging_face::{InitError, ModelError};
use crate::lora::BaseError;
use crate::model::initial::unit;
use crate::predictor::Predictor;
use crate::tokenizer::TokenizerError;
use crate::vocabulary::TextStream;

/// Most tokens that are written at once.
pub const GENERATED_MAX: usize = 100_000;
/// Most texts that end what is written, and most bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;

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
    /// Whether the prompt stands behind the tokens that the tokenizer puts before a text.
    pub begins: bool,
    /// Texts that end what is written, and are not written themselves: at most 16, none of them empty
    /// or longer than 1024 bytes.
    pub stop: Vec<String>,
}

impl Default for Generation {
    fn default() -> Self {
        let (prompt, stop) = (String::new(), Vec::new());
        Self { prompt, length: 400, temperature: 0.8, seed: 1, begins: true, stop }
    }
}

/// Why a model writes nothing, or scores nothing. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// There is no model there.
    #[error(
        "no model in {}: name a data directory, a checkpoint's folder, its parameters.safetensors, or a folder with config.json and model.safetensors", .0.display()
    )]
    Missing(PathBuf),
    /// A folder describes no model that dnode has.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A folder does not hold the weights of its model.
    #[error(transparent)]
    Weights(#[from] InitError),
    /// A folder does not say what its tokens are.
    #[error(
        "the folder {} has no tokenizer.json, which says what the model's tokens are: put it there", .0.display()
    )]
    NoTokens(PathBuf),
    /// The machine has too little memory.
    #[error(
        "the model {} takes {needed} MiB of memory, and {free} MiB are free: use a smaller model, or another machine", path.display()
    )]
    Memory {
        /// The file or folder.
        path: PathBuf,
        /// What its numbers take, MiB.
        needed: u64,
        /// What the system can give, MiB.
        free: u64,
    },
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
    /// A choice cannot be scored.
    #[error(
        "the choice {choice:?} has {count} tokens, expected 1 to {most}, as many as the model sees at once"
    )]
    Choice {
        /// Its beginning.
        choice: String,
        /// Its tokens.
        count: usize,
        /// Tokens that the model sees.
        most: usize,
    },
    /// Adapters lack the weights that they belong to.
    #[error(transparent)]
    Base(#[from] BaseError),
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

/// Writes text with the language model of `place`, until it has the length asked for, the tokenizer's token
/// for the end of a text comes, or one of the texts that stop it. `place` is a folder of Hugging Face's form,
/// a data directory or checkpoint, or a file of parameters. Adapters need the folder `base` with the weights
/// that they were trained beside. It computes on `threads` threads; 0 is one for each core.
///
/// While the text fits the model's context, keys and values of earlier tokens are kept, so that each token
/// is computed once. Beyond, the model sees the last tokens alone, which stand at other places for each
/// token: then all of them are computed each time.
///
/// # Errors
/// [`GenerateError`] says what is wrong with the model or the request.
pub fn generate(
    (place, base): (&Path, Option<&Path>),
    request: &Generation,
    threads: usize,
) -> Result<String, GenerateError> {
    let mut text = String::new();
    let mut take = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    generate_to((place, base), request, threads, &mut take).map(|()| text)
}

/// As [`generate`]; `take` gets the prompt, and then each piece of text as soon as it is there, in whole
/// characters.
///
/// # Errors
/// As there, and [`GenerateError::Output`] when `take` fails.
pub fn generate_to(
    from: (&Path, Option<&Path>),
    request: &Generation,
    threads: usize,
    take: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), GenerateError> {
    request.check()?;
    let model = Predictor::open(from, threads)?;
    write(if request.begins { model } else { model.without_marks() }, request, take)
}

/// What [`generate_to`] does once the model is there.
fn write(
    mut model: Predictor,
    request: &Generation,
    take: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), GenerateError> {
    let prompt = model.encode(&request.prompt)?;
    let prompt: Vec<u32> = prompt.iter(0..prompt.len()).collect();
    let tokens = match prompt.as_slice() {
        [] => model.beginning(),
        prompt => [model.marks.before.as_slice(), prompt].concat(),
    };
    let mut random = ChaCha8Rng::seed_from_u64(request.seed);
    let (vocabulary, ends) = (model.vocabulary.clone(), model.ends.clone());
    let mut stream = TextStream::new(&vocabulary, &prompt);
    let mut say = |text: &str| take(text).map_err(GenerateError::Output);
    say(&request.prompt)?;
    let mut stops = Stops::new(&request.stop);
    let mut text = Text { model: &mut model, tokens, kept: 0 };
    for _ in 0..request.length {
        let token = text.next(request.temperature, unit(&mut random));
        if ends.contains(&token) {
            break;
        }
        let (piece, stopped) = stops.push(&stream.push(token));
        say(&piece)?;
        if stopped {
            return Ok(());
        }
    }
    let (piece, stopped) = stops.push(&stream.end());
    say(&piece)?;
    if stopped { Ok(()) } else { say(&stops.held) }
}

/// A text so far, and what the model has kept of it.
struct Text<'a> {
    model: &'a mut Predictor,
    /// At least one.
    tokens: Vec<u32>,
    /// Of how many of the first tokens the model has the keys and values; 0 once the text has outgrown the
    /// context.
    kept: usize,
}

impl Text<'_> {
    /// Adds the next token, chosen by `draw`, uniform in `[0, 1)`, and returns it.
    fn next(&mut self, temperature: f32, draw: f32) -> u32 {
        let outgrown = self.tokens.len().saturating_sub(self.model.context);
        let seen = &self.tokens[outgrown..];
        let kept = if outgrown == 0 { self.kept } else { 0 };
        let token = draw_from(self.model.next_logits(seen, kept), temperature, draw);
        self.kept = seen.len();
        self.tokens.push(token);
        token
    }
}

/// Looks in what is written for the texts that end it.
struct Stops<'a> {
    stops: &'a [String],
    /// What may be the beginning of one of them, and is not told yet.
    held: String,
}

impl<'a> Stops<'a> {
    const fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new() }
    }

    /// What can be told once `piece` is there, and whether the text ends behind it.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        let tail = self.held.char_indices().map(|(at, _)| at).find(|&at| begins(&self.held[at..]));
        let rest = self.held.split_off(tail.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }
}

impl Generation {
    fn check(&self) -> Result<(), ConfigError> {
        let legal = format!("0..={GENERATED_MAX}");
        ensure(self.length <= GENERATED_MAX, "--length", self.length, legal)?;
        let positive = self.temperature > 0.0 && self.temperature.is_finite();
        ensure(positive, "--temperature", self.temperature, "a number above 0")?;
        let sized = self.stop.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len()));
        let legal = format!("at most {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes");
        ensure(sized && self.stop.len() <= STOPS_MAX, "--stop", &self.stop, legal)
    }
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
    use crate::config::{ModelConfig, ModelKind};
    use crate::kernel::Compute;
    use crate::model::{Forward, build_language};
    use crate::predictor::testing::random_predictor;
    use crate::tokenizer::Marks;
    use crate::vocabulary::Vocabulary;

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
    fn a_text_ends_before_what_stops_it_and_tells_all_that_cannot() {
        let stops = ["\n\n".to_owned(), "END".to_owned()];
        let told = |pieces: &[&str]| {
            let mut looking = Stops::new(&stops);
            let mut told = Vec::new();
            for piece in pieces {
                let (text, stopped) = looking.push(piece);
                told.push(text);
                if stopped {
                    return (told, true);
                }
            }
            told.push(looking.held);
            (told, false)
        };
        let (text, stopped) = told(&["a\n", "b\n", "\n", "c"]);
        assert_eq!((text.concat().as_str(), stopped), ("a\nb", true));
        assert_eq!(told(&["xE", "N"]).0, ["x", "", "EN"]);
        assert_eq!(
            told(&["EN", "ä", "EEND"]),
            (vec![String::new(), "ENä".into(), "E".into()], true)
        );
        assert_eq!(told(&["one END two\n\n"]), (vec!["one ".to_owned()], true));
    }

    #[test]
    fn a_text_ends_at_the_tokenizers_token_for_that() {
        let text = crate::shakespeare_text().unwrap();
        let tokenizer = crate::train_tokenizer(&[text], 300).unwrap();
        let end = tokenizer.special_tokens()[0].clone();
        let vocabulary = Vocabulary::Tokenizer(std::sync::Arc::new(tokenizer));
        assert_eq!(vocabulary.ends(), [end.0]);
        assert!(Vocabulary::Bytes.ends().is_empty());
        let (kind, width, context) = (ModelKind::Gpt, 4, 4);
        let config = ModelConfig { kind, width, context, layers: 1, ..ModelConfig::default() };
        let model = build_language(&config, 300).unwrap().unwrap();
        // Every token is as likely.
        let parameters = vec![0.0; model.layout().parameters()];
        let (place, compute) = (PathBuf::new(), Compute::new(1).unwrap());
        let (marks, ends) = (Marks::default(), vocabulary.ends());
        let model =
            Predictor { place, model, context, parameters, vocabulary, marks, ends, compute };
        let request = Generation { length: 20_000, ..Generation::default() };
        let mut pieces = Vec::new();
        let mut take = |piece: &str| {
            pieces.push(piece.to_owned());
            Ok(())
        };
        write(model, &request, &mut take).unwrap();
        assert!((2..10_000).contains(&pieces.len()), "{}", pieces.len());
        assert!(!pieces.concat().contains(&end.1));
    }

    /// What generating computed before keys and values were kept.
    fn whole(model: &mut Predictor, tokens: &[u32]) -> Vec<f32> {
        let seen = &tokens[tokens.len().saturating_sub(model.context)..];
        let mut window = seen.to_vec();
        window.resize(model.context, 0);
        let pass = Forward::new(&model.compute, &model.parameters);
        assert!(model.model.read(pass, &window));
        model.model.logits(pass, seen.len() - 1..seen.len()).to_vec()
    }

    #[test]
    fn within_and_beyond_the_context_the_tokens_are_those_of_whole_passes() {
        for kind in [ModelKind::Gpt, ModelKind::Llama] {
            let mut model = random_predictor(kind, 9);
            let mut random = ChaCha8Rng::seed_from_u64(4);
            let draws: Vec<f32> = (0..30).map(|_| unit(&mut random)).collect();
            let mut text = Text { model: &mut model, tokens: vec![1, 2, 3, 4], kept: 0 };
            let written: Vec<u32> = draws.iter().map(|&draw| text.next(1.0, draw)).collect();
            let mut tokens = vec![1, 2, 3, 4];
            for (draw, token) in draws.into_iter().zip(written) {
                let logits = whole(&mut model, &tokens);
                assert_eq!(draw_from(&logits, 1.0, draw), token, "{kind} {}", tokens.len());
                tokens.push(token);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_parameters_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [&b""[..], b"{}", &[255; 64]] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(matches!(
                Predictor::open((file.path(), None), 1),
                Err(GenerateError::Content { .. })
            ));
        }
        let request = Generation { length: GENERATED_MAX + 1, ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request, 1).is_err());
        let request = Generation { temperature: 0.0, ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request, 1).is_err());
        let request = Generation { stop: vec![String::new()], ..Generation::default() };
        assert!(generate((Path::new("x"), None), &request, 1).is_err());
        let error = generate((Path::new("/no/such"), None), &Generation::default(), 1).unwrap_err();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }
}
