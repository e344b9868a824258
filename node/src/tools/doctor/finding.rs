//! The finding of each check, and the report of all findings.

use std::fmt::Write as _;

use serde::Serialize;

/// What a finding means for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// There is nothing to do.
    Ok,
    /// It will work, but worse than it could, or this cannot be known from here.
    Warn,
    /// It will not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, one word.
    pub check: &'static str,
    /// What the finding means for a run.
    pub verdict: Verdict,
    /// What was found, with numbers.
    pub found: String,
    /// What to do, in one line; empty where there is nothing to do.
    pub advice: String,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: String::new() }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), advice: advice.into() }
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), advice: advice.into() }
    }
}

/// All findings, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoctorReport {
    /// Each of them.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Number of findings with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// For a person: a line for each finding, a line for each advice, and the count.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Finding { check, verdict, found, advice } in &self.findings {
            let verdict = match verdict {
                Verdict::Ok => "OK",
                Verdict::Warn => "WARN",
                Verdict::Fail => "FAIL",
            };
            let _ = writeln!(text, "{verdict:4}  {check:9}  {found}");
            if !advice.is_empty() {
                let _ = writeln!(text, "{:4}  {:9}  -> {advice}", "", "");
            }
        }
        let [ok, warn, fail] = [Verdict::Ok, Verdict::Warn, Verdict::Fail].map(|v| self.count(v));
        let _ = writeln!(text, "\n{ok} OK, {warn} WARN, {fail} FAIL");
        text
    }

    /// For a program: `{"findings": [{"check", "verdict", "found", "advice"}]}`, one line.
    #[must_use]
    pub fn json(&self) -> String {
        // Strings and words can always be written as JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_to_persons_and_programs() {
        let findings = vec![
            Finding::ok("cpu", "4 cores"),
            Finding::warn("udp", "blocked", "open the port"),
            Finding::fail("listen", "in use", "choose another"),
        ];
        let report = DoctorReport { findings };
        assert_eq!(report.count(Verdict::Fail), 1);
        let want = "OK    cpu        4 cores\nWARN  udp        blocked\n                 -> open the port\nFAIL  listen     in use\n                 -> choose another\n\n1 OK, 1 WARN, 1 FAIL\n";
        assert_eq!(report.text(), want);
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["findings"][1]["verdict"], "warn");
        assert_eq!(json["findings"][2]["advice"], "choose another");
    }
}
