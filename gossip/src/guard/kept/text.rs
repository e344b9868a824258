//! Verdicts as lines of text, for whoever keeps them in a file: a peer a line, every number by its name.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use dnode_protocol::PeerId;

use super::{VERDICTS_MAX, Verdict, Verdicts};
use crate::Trust;

const ROUND: &str = "round_us=";

impl Verdicts {
    /// The lines, each with its end.
    #[must_use]
    pub fn to_text(&self) -> String {
        let round_us = u64::try_from(self.round_time.as_micros()).unwrap_or(u64::MAX);
        let mut text = format!("{ROUND}{round_us}\n");
        for verdict in self.held.iter().take(VERDICTS_MAX) {
            verdict.write(&mut text);
        }
        text
    }

    /// Reads what [`Verdicts::to_text`] gives; `None` for any other text. Each list has one text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let round_time = Duration::from_micros(number(lines.next()?, ROUND)?);
        let mut held: Vec<Verdict> = Vec::new();
        for line in lines {
            let verdict = Verdict::from_line(line)?;
            if held.len() == VERDICTS_MAX || held.iter().any(|it| it.peer == verdict.peer) {
                return None;
            }
            held.push(verdict);
        }
        let verdicts = Self { round_time, held };
        (verdicts.to_text() == text).then_some(verdicts)
    }
}

impl Verdict {
    fn write(&self, text: &mut String) {
        let Self { peer, trust, evidence, times, .. } = self;
        let Self { outliers, left_out, rounds, passes, joined, life, .. } = self;
        let written = writeln!(
            text,
            "{peer} trust={} evidence={evidence} times={times} outliers={outliers} left_out={left_out} \
             rounds={rounds} passes={passes} joined={joined} life={life}",
            trust.name()
        );
        written.expect("a string takes whatever is written");
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let peer: PeerId = words.next()?.parse().ok()?;
        let trust = words.next()?.strip_prefix("trust=")?;
        let all = [Trust::Trusted, Trust::WeighedDown, Trust::LeftOut];
        let trust = all.into_iter().find(|it| it.name() == trust)?;
        let mut word = || words.next();
        let verdict = Self {
            peer,
            trust,
            evidence: number(word()?, "evidence=")?,
            times: number(word()?, "times=")?,
            outliers: number(word()?, "outliers=")?,
            left_out: number(word()?, "left_out=")?,
            rounds: number(word()?, "rounds=")?,
            passes: number(word()?, "passes=")?,
            joined: number(word()?, "joined=")?,
            life: number(word()?, "life=")?,
        };
        let sound = |number: f64| number.is_finite() && number >= 0.0;
        (sound(verdict.evidence) && sound(verdict.times)).then_some(verdict)
    }
}

/// The number behind its name.
fn number<T: FromStr>(word: &str, name: &str) -> Option<T> {
    word.strip_prefix(name)?.parse().ok()
}
