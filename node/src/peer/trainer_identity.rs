//! The identity of a custom trainer, on which the peers of its run must agree.
//! It also has the line that others type to join.

use std::collections::BTreeMap;

use dnode_protocol::limits::RUN_FIELD_VALUE_BYTES_MAX;
use dnode_protocol::{ParameterLayout, RunField, RunSpec, TensorSpec};
use dnode_trainer::DataIdentity;
use serde_json::{Value, json};

use crate::config::{Config, find, run_settings, run_spec};

/// Most entries of [`TrainerIdentity::agreed`].
pub const AGREED_MAX: usize = 16;
/// Longest name of such an entry, bytes.
pub const AGREED_NAME_MAX: usize = 32;
/// Most fields that tell names and shapes of tensors.
const TENSOR_FIELDS_MAX: usize = 12;
/// Characters of a tensor that are told where there are many.
const TENSOR_SHOWN: usize = 48;
/// Sections of the configuration that describe the models of dnode, not a custom trainer.
const DESCRIBED: [&str; 3] = ["model", "data", "optimizer"];

/// What a custom trainer trains, for the peers of its run and for persons who want to join them.
///
/// All but `join` names the run. Peers with another identity are refused, and are told what differs.
/// All in which two trainers may not differ belongs here: the model, the loss, how data are prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainerIdentity {
    /// What is trained, for example `linear-regression`; 1 to 256 bytes.
    pub model: String,
    /// Changes whenever peers of two versions should not train together; up to 256 bytes.
    pub version: String,
    /// What else peers must agree on, for example `loss` and `huber`: at most [`AGREED_MAX`] names of
    /// lowercase letters, digits and underscores.
    pub agreed: BTreeMap<String, String>,
    /// The command line that starts one more peer, which is shown to persons. `{address}` stands for
    /// where this peer is reached. `{settings}` stands for the settings that differ from their
    /// defaults, as flags of `dnode join`. Without a command line only the address is shown.
    pub join: Option<String>,
}

/// Why an identity cannot be told to others.
#[derive(Debug, thiserror::Error)]
#[error("name the trainer: {what} is \"{text}\", expected {expected}")]
pub struct IdentityError {
    what: &'static str,
    text: String,
    expected: String,
}

impl TrainerIdentity {
    /// An identity of this model and version.
    #[must_use]
    pub fn new(model: impl Into<String>, version: impl Into<String>) -> Self {
        Self { model: model.into(), version: version.into(), ..Self::default() }
    }

    /// Peers must agree on this, too.
    #[must_use]
    pub fn agreed(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.agreed.insert(name.into(), value.into());
        self
    }

    /// Others join by this command line. `{settings}` stands for what has to agree and is not the
    /// default. `--bootstrap {address}` stands for the way in; in a closed run a ticket takes its place.
    #[must_use]
    pub fn join(mut self, line: impl Into<String>) -> Self {
        self.join = Some(line.into());
        self
    }

    fn check(&self) -> Result<(), IdentityError> {
        let plain = |text: &str| {
            text.len() <= RUN_FIELD_VALUE_BYTES_MAX && !text.chars().any(char::is_control)
        };
        let shown = |text: &str| text.chars().take(64).collect::<String>();
        let words = format!("at most {RUN_FIELD_VALUE_BYTES_MAX} bytes in one line");
        let fail =
            |what, text: &str, expected| Err(IdentityError { what, text: shown(text), expected });
        if self.model.is_empty() || !plain(&self.model) {
            return fail("TrainerIdentity::model", &self.model, format!("1 to {words}"));
        }
        let values = self.agreed.values().chain([&self.version]);
        if let Some(text) = values.into_iter().find(|text| !plain(text)) {
            return fail("a value of TrainerIdentity", text, words);
        }
        let named = |name: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            (1..=AGREED_NAME_MAX).contains(&name.len())
                && name.chars().all(plain)
                && !["name", "version"].contains(&name)
        };
        if let Some(name) = self.agreed.keys().find(|name| !named(name)) {
            let expected = format!(
                "1 to {AGREED_NAME_MAX} lowercase letters, digits and underscores, not name or version"
            );
            return fail("a name of TrainerIdentity::agreed", name, expected);
        }
        if self.agreed.len() > AGREED_MAX {
            let expected = format!("at most {AGREED_MAX}");
            return fail("TrainerIdentity::agreed.len()", &self.agreed.len().to_string(), expected);
        }
        Ok(())
    }

    /// Everything that peers of the run must agree on: as for the models of dnode, with this identity
    /// in place of what describes them.
    pub(crate) fn run_spec(
        &self,
        config: &Config,
        layout: &ParameterLayout,
        data: &DataIdentity,
    ) -> Result<RunSpec, IdentityError> {
        self.check()?;
        let field = |name: String, value: &str| RunField { name, value: value.to_owned() };
        let base = run_spec(config, layout, data);
        let applies = |field: &&RunField| find(&field.name).is_none_or(|key| is_shared(key.name));
        let mut fields: Vec<RunField> = base.fields().iter().filter(applies).cloned().collect();
        // They sort before the layout, so that a difference is named by what caused it.
        fields.push(field("model.name".to_owned(), &self.model));
        fields.push(field("model.version".to_owned(), &self.version));
        fields.extend(tensor_fields(layout));
        let more = self.agreed.iter().map(|(name, value)| field(format!("model.{name}"), value));
        fields.extend(more);
        let said = |error: dnode_protocol::RunSpecError| IdentityError {
            what: "all that peers agree on",
            text: error.to_string(),
            expected: "fewer entries of TrainerIdentity::agreed".to_owned(),
        };
        RunSpec::new(fields).map_err(said)
    }

    /// What a person reads who wants another machine to join.
    pub(crate) fn invitation(&self, config: &Config, address: &str) -> String {
        let Some(join) = &self.join else {
            return format!(
                "Another machine joins by the same program, with this address to start from (network.bootstrap):\n\n    {address}"
            );
        };
        let settings = run_settings(config, |key| is_shared(key.name));
        let line = join.replace("{address}", address).replace("{settings}", settings.trim_start());
        format!("Another machine joins with:\n\n    {}", line.trim_end())
    }

    /// The same for a closed run, where `ticket` stands for its ticket. In the embedder's line, it takes
    /// the place of `--bootstrap {address}`.
    pub(crate) fn invitation_to_closed(&self, config: &Config, ticket: &str) -> String {
        let Some(join) = &self.join else {
            return format!(
                "Another machine joins by the same program, with this ticket (Options::ticket):\n\n    {ticket}"
            );
        };
        let settings = run_settings(config, |key| is_shared(key.name));
        let line = join.replace("--bootstrap {address}", ticket).replace("{address}", ticket);
        let line = line.replace("{settings}", settings.trim_start());
        format!("Another machine joins with:\n\n    {}", line.trim_end())
    }

    /// The part of the configuration that applies to this trainer, and the identity.
    pub(crate) fn described(&self, config: &Config) -> Value {
        let mut all = json!(config);
        if let Some(sections) = all.as_object_mut() {
            for section in DESCRIBED {
                sections.remove(section);
            }
            let agreed = json!(self.agreed);
            let model = json!({"name": self.model, "version": self.version, "agreed": agreed});
            sections.insert("model".to_owned(), model);
        }
        all
    }
}

/// Names and shapes of the tensors, several to a field, so that a difference is told by the names of
/// the tensors around it. Where all of them are too long for that, a field names its first and its last
/// tensor, and has a hash of all.
fn tensor_fields(layout: &ParameterLayout) -> Vec<RunField> {
    let word = |tensor: &TensorSpec| format!("{} {:?}", tensor.name, tensor.shape);
    let words: Vec<String> = layout.tensors().iter().map(word).collect();
    let mut values: Vec<String> = Vec::new();
    for word in &words {
        match values.last_mut() {
            Some(value) if value.len() + word.len() + 2 <= RUN_FIELD_VALUE_BYTES_MAX => {
                value.push_str("; ");
                value.push_str(word);
            }
            _ => values.push(word.clone()),
        }
    }
    let fits = |value: &String| value.len() <= RUN_FIELD_VALUE_BYTES_MAX;
    if values.len() > TENSOR_FIELDS_MAX || !values.iter().all(fits) {
        let each = words.len().div_ceil(TENSOR_FIELDS_MAX);
        values = words.chunks(each).map(shortened).collect();
    }
    let name = |index: usize| format!("model.tensors.{index:02}");
    let field = |(index, value)| RunField { name: name(index), value };
    values.into_iter().map(plain).enumerate().map(field).collect()
}

/// The first and the last word, and a hash of all.
fn shortened(words: &[String]) -> String {
    let hash = blake3::hash(words.join("; ").as_bytes()).to_hex();
    let ends = [words.first(), words.last()].map(|word| {
        let word = word.map_or("", String::as_str);
        word.chars().take(TENSOR_SHOWN).collect::<String>()
    });
    format!("{} tensors from {} to {}, {}", words.len(), ends[0], ends[1], &hash[..16])
}

/// `text` without what a field of a run may not hold.
fn plain(text: String) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text }
}

/// Whether a key of the configuration applies to a run with a custom trainer.
pub(crate) fn is_shared(name: &str) -> bool {
    !DESCRIBED.iter().any(|section| name.split('.').next() == Some(section))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> ParameterLayout {
        let mut layout = ParameterLayout::new();
        layout.push("w", &[2, 3]).unwrap();
        layout
    }

    fn spec(identity: &TrainerIdentity) -> Result<RunSpec, IdentityError> {
        identity.run_spec(&Config::default(), &layout(), &DataIdentity::default())
    }

    fn differs(one: &TrainerIdentity, other: &TrainerIdentity) -> Option<(String, String)> {
        let [one, other] = [one, other].map(|it| spec(it).unwrap());
        one.difference(&other).map(|it| (it.field, it.theirs))
    }

    #[test]
    fn a_run_is_named_by_what_its_trainer_is_not_by_keys_that_say_nothing_of_it() {
        let identity = TrainerIdentity::new("regression", "1").agreed("loss", "square");
        let spec = spec(&identity).unwrap();
        let names: Vec<&str> = spec.fields().iter().map(|field| field.name.as_str()).collect();
        assert!(!names.contains(&"model.kind") && !names.contains(&"data.kind"), "{names:?}");
        for name in ["gossip.rule", "run.seed", "model.name", "model.loss", "parameters.layout"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        let other = TrainerIdentity::new("regression", "1").agreed("loss", "huber");
        let told = |field: &str, value: &str| Some((field.to_owned(), value.to_owned()));
        assert_eq!(differs(&identity, &other), told("model.loss", "huber"));
        assert_eq!(differs(&identity, &identity.clone().join("elsewhere")), None);
        let newer = TrainerIdentity { version: "2".to_owned(), ..identity.clone() };
        assert_eq!(differs(&identity, &newer), told("model.version", "2"));
    }

    #[test]
    fn the_first_tensors_that_differ_are_named_in_small_models_and_around_them_in_large_ones() {
        let named = |tensors: usize, odd: usize| {
            let mut layout = ParameterLayout::new();
            for index in 0..tensors {
                let width = if index == odd { 65 } else { 64 };
                layout.push(&format!("layers.{index}.attention.weight"), &[2, width]).unwrap();
            }
            TrainerIdentity::new("m", "1")
                .run_spec(&Config::default(), &layout, &DataIdentity::default())
                .unwrap()
        };
        for tensors in [3, 40, 1000] {
            assert_eq!(named(tensors, 2000).difference(&named(tensors, 2000)), None);
            for odd in [0, tensors / 2, tensors - 1] {
                let found = named(tensors, odd).difference(&named(tensors, 2000)).unwrap();
                assert!(found.field.starts_with("model.tensors."), "{found:?}");
                if tensors < 1000 {
                    let wanted = format!("layers.{odd}.attention.weight [2, 65]");
                    assert!(found.ours.contains(&wanted), "{found:?}");
                } else {
                    assert!(found.ours.contains(" tensors from layers."), "{found:?}");
                }
            }
        }
        assert_eq!(named(3, 3).difference(&named(4, 4)).unwrap().field, "model.tensors.00");
    }

    #[test]
    fn the_line_to_type_is_the_embedders_or_the_address_alone() {
        let mut config = Config::default();
        config.gossip.local_steps = 50;
        config.optimizer.learning_rate = 0.5;
        let plain = TrainerIdentity::new("regression", "1");
        let shown = plain.invitation(&config, "/ip4/192.0.2.7/udp/1/quic-v1");
        assert!(shown.ends_with("\n\n    /ip4/192.0.2.7/udp/1/quic-v1"), "{shown}");
        assert!(!shown.contains("dnode join"), "{shown}");
        let named = plain.join("regress --bootstrap {address} {settings}");
        let shown = named.invitation(&config, "/ip4/192.0.2.7/udp/1/quic-v1");
        let line = shown.lines().last().unwrap().trim();
        assert_eq!(
            line,
            "regress --bootstrap /ip4/192.0.2.7/udp/1/quic-v1 --set gossip.local_steps=50"
        );
        let shown = named.invitation(&Config::default(), "/ip4/192.0.2.7/udp/1/quic-v1");
        assert!(shown.ends_with("/quic-v1"), "{shown}");
    }

    #[test]
    fn an_identity_that_cannot_be_told_is_refused_by_what_is_wrong() {
        let refused = |identity: TrainerIdentity| spec(&identity).unwrap_err().to_string();
        let text = refused(TrainerIdentity::default());
        assert!(text.contains("TrainerIdentity::model is \"\", expected 1 to"), "{text}");
        let long = "x".repeat(RUN_FIELD_VALUE_BYTES_MAX + 1);
        assert!(refused(TrainerIdentity::new("m", long)).contains("a value of TrainerIdentity"));
        let good = TrainerIdentity::new("m", "1");
        for name in ["", "Loss", "name", "a b"] {
            let text = refused(good.clone().agreed(name, "x"));
            assert!(text.contains("a name of TrainerIdentity::agreed"), "{text}");
        }
        let many = (0..=AGREED_MAX).fold(good, |it, index| it.agreed(format!("k{index}"), ""));
        assert!(refused(many).contains("at most 16"));
    }
}
