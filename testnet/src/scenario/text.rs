//! Values of scenario files as text: durations like `"1500ms"`, codes by their names.

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

/// For `#[serde(with = "codecs")]`.
pub(super) mod codecs {
    use dnode_protocol::frame::Codec;
    use serde::{Deserialize, Deserializer, de::Error};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Codec>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
    }
}
