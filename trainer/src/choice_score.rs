//! Which of several continuations of a text a language model finds most likely.

use std::fmt;
use std::path::Path;

use crate::generate::GenerateError;
use crate::predictor::Predictor;
use crate::vocabulary::Tokens;

/// A question with several answers, of which one is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What stands before each choice.
    pub context: String,
    /// The choices, in order.
    pub choices: Vec<String>,
    /// Which of them is right, from 0.
    pub answer: usize,
}

/// What the choices of a question cost a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceCosts {
    /// `−ln` of the probability of each choice behind the context, nats.
    pub nats: Vec<f64>,
    /// Whether the beginning of the context was left out, because the model sees fewer tokens.
    pub is_shortened: bool,
}

/// A model that answers questions.
pub struct ChoiceScorer {
    model: Predictor,
    /// What the model has taken in.
    taken: Vec<u32>,
}

impl fmt::Debug for ChoiceScorer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChoiceScorer")
            .field("place", &self.model.place)
            .finish_non_exhaustive()
    }
}

impl ChoiceScorer {
    /// The model at this place, as [`crate::generate`] takes it. With `begins`, each context stands behind the
    /// tokens that the tokenizer puts before a text.
    ///
    /// # Errors
    /// [`GenerateError`] says what is wrong with it.
    pub fn open(
        from: (&Path, Option<&Path>),
        (begins, threads): (bool, usize),
    ) -> Result<Self, GenerateError> {
        let model = Predictor::open(from, threads)?;
        let model = if begins { model } else { model.without_marks() };
        Ok(Self { model, taken: Vec::new() })
    }

    /// The file or folder of the model.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.model.place
    }

    /// What makes the tokens, in a few words.
    #[must_use]
    pub fn vocabulary(&self) -> String {
        self.model.vocabulary.words()
    }

    /// What each choice costs behind the context.
    ///
    /// A space stands between them where neither has white space there. The tokens of a choice are those that
    /// context and choice have together beyond those of the context alone, whose white space at the end counts
    /// as the choice's. A context that does not fit loses its beginning.
    ///
    /// # Errors
    /// [`GenerateError`] when a choice has no token, more than the model sees, or one that it does not know.
    pub fn costs(&mut self, question: &Question) -> Result<ChoiceCosts, GenerateError> {
        let all = |tokens: Tokens| tokens.iter(0..tokens.len()).collect::<Vec<u32>>();
        let before = all(self.model.encode(question.context.trim_end())?);
        let (mut nats, mut is_shortened) = (Vec::new(), false);
        for choice in &question.choices {
            let mut tokens = all(self.model.encode(&joined(&question.context, choice))?);
            // A token may reach from the context into the choice.
            let mut from = before.len().min(tokens.len().saturating_sub(1));
            let marks = match from {
                0 => self.model.beginning(),
                _ => self.model.marks.before.clone(),
            };
            from += marks.len();
            tokens.splice(0..0, marks);
            let most = self.model.context;
            let count = if choice.is_empty() { 0 } else { tokens.len().saturating_sub(from) };
            if count == 0 || count > most {
                return Err(GenerateError::Choice { choice: shown(choice), count, most });
            }
            // The last one is only predicted.
            let outgrown = tokens.len().saturating_sub(most + 1);
            is_shortened |= outgrown > 0;
            nats.push(self.nats(&tokens[outgrown..], from - outgrown));
        }
        Ok(ChoiceCosts { nats, is_shortened })
    }

    /// What the tokens from `from` on cost. What they begin with like those before is not taken in again.
    fn nats(&mut self, tokens: &[u32], from: usize) -> f64 {
        let same = self.taken.iter().zip(tokens).take_while(|(taken, token)| taken == token);
        let kept = same.count().min(from - 1);
        let nats = self.model.nats(tokens, kept, from);
        self.taken.clear();
        self.taken.extend_from_slice(&tokens[..tokens.len() - 1]);
        nats
    }
}

/// Context and choice as one text.
fn joined(context: &str, choice: &str) -> String {
    let apart = context.is_empty()
        || context.ends_with(char::is_whitespace)
        || choice.starts_with(char::is_whitespace);
    format!("{context}{}{choice}", if apart { "" } else { " " })
}

/// The beginning of a choice.
fn shown(choice: &str) -> String {
    const SHOWN_MAX: usize = 40;
    match choice.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &choice[..at]),
        None => choice.to_owned(),
    }
}

/// How often a model has chosen right.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChoiceTally {
    /// Questions.
    pub questions: u64,
    /// Those of which the right choice is the most likely.
    pub right: u64,
    /// Those of which the right choice costs least per character.
    pub right_normalised: u64,
    /// Those whose context lost its beginning.
    pub shortened: u64,
    /// Sum of the shares of one choice, which guessing gets right.
    pub guessed: f64,
}

impl ChoiceTally {
    /// Adds a question. Of choices that cost the same, the first is the model's.
    pub fn add(&mut self, question: &Question, costs: &ChoiceCosts) {
        let characters = question.choices.iter().map(|choice| choice.chars().count().max(1));
        let each = costs.nats.iter().zip(characters).map(|(nats, count)| nats / count as f64);
        self.questions += 1;
        self.right += u64::from(least(costs.nats.iter().copied()) == Some(question.answer));
        self.right_normalised += u64::from(least(each) == Some(question.answer));
        self.shortened += u64::from(costs.is_shortened);
        self.guessed += 1.0 / question.choices.len() as f64;
    }

    /// `count` as a share of the questions.
    #[must_use]
    pub fn share(&self, count: f64) -> f64 {
        count / self.questions as f64
    }
}

/// Where the least of the numbers is, the first of equal ones.
fn least(numbers: impl Iterator<Item = f64>) -> Option<usize> {
    let better = |best: &(usize, f64), next: &(usize, f64)| next.1 < best.1 || best.1.is_nan();
    let least =
        numbers.enumerate().reduce(|best, next| if better(&best, &next) { next } else { best });
    least.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelKind;
    use crate::predictor::testing::random_predictor;

    fn question(context: &str, choices: &[&str], answer: usize) -> Question {
        let choices = choices.iter().map(|&choice| choice.to_owned()).collect();
        Question { context: context.to_owned(), choices, answer }
    }

    fn scorer(kind: ModelKind, context: usize) -> ChoiceScorer {
        ChoiceScorer { model: random_predictor(kind, context), taken: Vec::new() }
    }

    #[test]
    fn a_choice_costs_what_it_costs_alone_behind_the_context() {
        for kind in [ModelKind::Gpt, ModelKind::Llama] {
            let mut scorer = scorer(kind, 20);
            for (context, choices, texts) in [
                // One space between them, be it there or not; white space is the choice's.
                ("To be", ["or", "not to"], [("To be", " or"), ("To be", " not to")]),
                ("To be ", ["or", "a"], [("To be", " or"), ("To be", " a")]),
                ("To be", ["\nor", " or"], [("To be", "\nor"), ("To be", " or")]),
                // What comes first is behind a line.
                ("", ["or", "not"], [("\n", "or"), ("\n", "not")]),
            ] {
                let costs = scorer.costs(&question(context, &choices, 0)).unwrap();
                assert!(!costs.is_shortened);
                for (nats, (before, choice)) in costs.nats.iter().zip(texts) {
                    let text: Vec<u32> =
                        (before.to_owned() + choice).bytes().map(u32::from).collect();
                    let mut alone = random_predictor(kind, 20);
                    let want = alone.nats(&text, 0, before.len());
                    assert!((nats - want).abs() < 1e-4 * want, "{kind} {text:?}: {nats} {want}");
                }
            }
            // The last 17 bytes of the context, and all of the choice but the last byte.
            let long = question("0123456789abcdefghijklmnopqrstuvwxyz", &[" yes", " no"], 0);
            let costs = scorer.costs(&long).unwrap();
            assert!(costs.is_shortened);
            let text: Vec<u32> = "jklmnopqrstuvwxyz yes".bytes().map(u32::from).collect();
            let want = random_predictor(kind, 20).nats(&text, 0, 17);
            assert!((costs.nats[0] - want).abs() < 1e-4 * want, "{} {want}", costs.nats[0]);
        }
    }

    #[test]
    fn a_choice_without_a_token_or_with_too_many_is_refused() {
        let mut scorer = scorer(ModelKind::Gpt, 5);
        for (choice, want) in [
            (
                "",
                "the choice \"\" has 0 tokens, expected 1 to 5, as many as the model sees at once",
            ),
            ("123456", "the choice \"123456\" has 7 tokens, expected 1 to 5"),
        ] {
            let error = scorer.costs(&question("a", &["b", choice], 0)).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn answers_are_counted_as_they_are_and_by_their_length() {
        let mut tally = ChoiceTally::default();
        let costs = |nats: &[f64]| ChoiceCosts { nats: nats.to_vec(), is_shortened: true };
        // The short one costs less, the long one less per character.
        tally.add(&question("", &["ab", "abcdefgh"], 1), &costs(&[3.0, 4.0]));
        assert_eq!((tally.right, tally.right_normalised), (0, 1));
        tally.add(&question("", &["ab", "abcdefgh"], 0), &costs(&[3.0, 4.0]));
        assert_eq!((tally.right, tally.right_normalised), (1, 1));
        // Of equal ones the first; one that is no number is never the best.
        tally.add(&question("", &["ä", "é", "é", "e"], 1), &costs(&[f64::NAN, 2.0, 2.0, 9.0]));
        assert_eq!((tally.right, tally.right_normalised, tally.shortened), (2, 2, 3));
        assert!((tally.guessed - 1.25).abs() < 1e-12);
        assert!((tally.share(2.0) - 2.0 / 3.0).abs() < 1e-12);
    }
}
