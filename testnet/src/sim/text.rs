//! Durations of scenario files as text: `"1500ms"`, `"2min"`.

/// For `#[serde(with = "duration")]`.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text)
            .map_err(|error| D::Error::custom(format!("\"{text}\" is no duration: {error}")))
    }
}
