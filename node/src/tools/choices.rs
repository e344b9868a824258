//! `dnode eval --choices`: questions of a JSONL file, and how many of them a model answers right.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use dnode_trainer::{ChoiceScorer, ChoiceTally, GenerateError, Question};
use serde_json::{Value, json};

/// Longest line, bytes.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Longest file, bytes; all of its questions are held in memory.
const FILE_BYTES_MAX: usize = 1 << 30;
/// Choices of a question.
const CHOICES: RangeInclusive<usize> = 2..=64;
/// What is shown of a value that is not legal, characters.
const SHOWN_MAX: usize = 40;
/// The names that the parts of a question have: here, in HellaSwag, and in MMLU.
const CONTEXT: [&str; 3] = ["context", "ctx", "question"];
const LIST: [&str; 2] = ["choices", "endings"];
const ANSWER: [&str; 2] = ["answer", "label"];

/// Why the questions of a file are not scored. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChoicesError {
    /// The file cannot be read.
    #[error("read the questions {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A line is no question.
    #[error(
        "{} line {line}: {what}; expected a JSON object of context, choices and answer, the index of the right choice", path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// There is nothing to score.
    #[error("the questions {}: there is none", .0.display())]
    None(PathBuf),
    /// The model cannot be opened.
    #[error(transparent)]
    Model(#[from] GenerateError),
    /// The model cannot score a question.
    #[error("{} line {line}: {source}", path.display())]
    Score {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// Why.
        source: GenerateError,
    },
}

/// How many of the questions of `path` the model of `from` answers right, of the first `limit` of them.
pub(crate) fn evaluate(
    from: (&Path, Option<&Path>),
    (path, limit): (&Path, Option<usize>),
    (begins, threads, as_json): (bool, usize, bool),
) -> Result<String, ChoicesError> {
    // All of them before the first is scored, which may take long.
    let questions = read(path, limit.unwrap_or(usize::MAX))?;
    let mut scorer = ChoiceScorer::open(from, (begins, threads))?;
    let mut tally = ChoiceTally::default();
    for (line, question) in &questions {
        let costs = scorer.costs(question).map_err(|source| {
            let (path, line) = (path.to_owned(), *line);
            ChoicesError::Score { path, line, source }
        })?;
        tally.add(question, &costs);
    }
    Ok(told(&scorer, path, &tally, as_json))
}

fn told(scorer: &ChoiceScorer, path: &Path, tally: &ChoiceTally, as_json: bool) -> String {
    let [plain, normalised, chance] =
        [tally.right as f64, tally.right_normalised as f64, tally.guessed]
            .map(|count| tally.share(count));
    let ChoiceTally { questions, shortened, .. } = tally;
    if as_json {
        let told = json!({
            "parameters": scorer.place(),
            "vocabulary": scorer.vocabulary(),
            "questions": questions,
            "accuracy": plain,
            "accuracy_normalised": normalised,
            "chance": chance,
            "shortened": shortened,
        });
        return format!("{told}\n");
    }
    let cut = match shortened {
        0 => String::new(),
        cut => format!("; the contexts of {cut} did not fit and lost their beginning"),
    };
    format!(
        "{}: {questions} questions, tokens of {}{cut}\naccuracy {normalised:.4} by likelihood per character, {plain:.4} by likelihood, {chance:.4} by chance\n",
        path.display(),
        scorer.vocabulary(),
    )
}

/// The questions of the first `limit` lines that have one, each with its line.
fn read(path: &Path, limit: usize) -> Result<Vec<(usize, Question)>, ChoicesError> {
    let failed = |source| ChoicesError::Read { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut questions, mut bytes, mut buffer) = (Vec::new(), 0, Vec::new());
    for line in 1.. {
        buffer.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let count = reader.by_ref().take(most).read_until(b'\n', &mut buffer).map_err(failed)?;
        if count == 0 || questions.len() >= limit {
            break;
        }
        bytes += count;
        if bytes > FILE_BYTES_MAX {
            return Err(failed(io::Error::other("longer than 1 GiB; give a part of it")));
        }
        let fault = |what: String| ChoicesError::Line { path: path.to_owned(), line, what };
        if count > LINE_BYTES_MAX {
            return Err(fault("it is longer than 1 MiB".to_owned()));
        }
        if !buffer.trim_ascii().is_empty() {
            questions.push((line, question(&buffer).map_err(fault)?));
        }
    }
    if questions.is_empty() { Err(ChoicesError::None(path.to_owned())) } else { Ok(questions) }
}

/// The question of a line. The error says what is wrong with it.
fn question(line: &[u8]) -> Result<Question, String> {
    let json: Value =
        serde_json::from_slice(line).map_err(|error| format!("it is no JSON: {error}"))?;
    let context = value(&json, &CONTEXT)?;
    let context = context.as_str().ok_or_else(|| format!("context is {}", shown(context)))?;
    let list = value(&json, &LIST)?;
    let texts = list.as_array().and_then(|list| {
        let texts = list.iter().map(|choice| choice.as_str().filter(|text| !text.is_empty()));
        texts.map(|text| text.map(str::to_owned)).collect::<Option<Vec<String>>>()
    });
    let choices = texts.filter(|texts| CHOICES.contains(&texts.len())).ok_or_else(|| {
        let (least, most) = (CHOICES.start(), CHOICES.end());
        format!("choices are {}, not {least} to {most} texts that are not empty", shown(list))
    })?;
    let told = value(&json, &ANSWER)?;
    // HellaSwag has its numbers as texts.
    let index = told.as_u64().or_else(|| told.as_str()?.parse().ok());
    let index = index.and_then(|index| usize::try_from(index).ok());
    let answer = index.filter(|&index| index < choices.len());
    let answer = answer
        .ok_or_else(|| format!("answer is {}, not 0 to {}", shown(told), choices.len() - 1))?;
    Ok(Question { context: context.to_owned(), choices, answer })
}

/// The value under the first of these names that is there.
fn value<'a>(json: &'a Value, names: &[&str]) -> Result<&'a Value, String> {
    let found = names.iter().find_map(|name| json.get(name));
    found.ok_or_else(|| format!("it has no {}", names[0]))
}

/// A value on one line, not too long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_the_names_of_here_or_of_the_published_tasks() {
        let want = Question {
            context: "2 + 2 =".to_owned(),
            choices: vec!["4".to_owned(), "5".to_owned()],
            answer: 1,
        };
        for line in [
            r#"{"context": "2 + 2 =", "choices": ["4", "5"], "answer": 1, "other": null}"#,
            r#"{"ctx": "2 + 2 =", "endings": ["4", "5"], "label": "1"}"#,
            r#"{"question": "2 + 2 =", "choices": ["4", "5"], "answer": 1}"#,
        ] {
            assert_eq!(question(line.as_bytes()).unwrap(), want, "{line}");
        }
    }

    #[test]
    fn made_lines_are_questions_or_say_why_in_one_line() {
        let line = r#"{"context": "2 + 2 =", "choices": ["4", "5"], "answer": 1, "other": null}"#;
        dnode_mutate::check_made_inputs(&[line], 4000, |bytes| match question(bytes) {
            Ok(question) => assert!(question.answer < question.choices.len()),
            Err(why) => assert!(!why.contains('\n'), "{why}"),
        });
    }

    #[test]
    fn a_line_that_is_no_question_says_why() {
        for (line, want) in [
            ("{", "it is no JSON: EOF"),
            ("[]", "it has no context"),
            (r#"{"context": 3}"#, "context is 3"),
            (r#"{"context": ""}"#, "it has no choices"),
            (r#"{"context": "", "choices": ["a"]}"#, "choices are [\"a\"], not 2 to 64 texts"),
            (r#"{"context": "", "choices": ["a", ""]}"#, "choices are [\"a\",\"\"], not 2 to 64"),
            (r#"{"context": "", "choices": ["a", "b"]}"#, "it has no answer"),
            (r#"{"context": "", "choices": ["a", "b"], "answer": 2}"#, "answer is 2, not 0 to 1"),
            (r#"{"context": "", "choices": ["a", "b"], "answer": "B"}"#, "answer is \"B\", not 0"),
            ("{\"context\": \"\u{fffd}", "it is no JSON"),
        ] {
            let error = question(line.as_bytes()).unwrap_err();
            assert!(error.starts_with(want), "{line}: {error}");
        }
        assert!(question(&[b'"', 0xff, b'"']).is_err());
    }
}
