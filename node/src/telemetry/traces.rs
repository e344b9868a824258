//! OpenTelemetry traces of exchanges, if dnode was built with the feature `otel`. Without it everything
//! here is empty and costs nothing.
//!
//! The two ends of an exchange make spans of one trace, and no message carries trace ids. The ids of the
//! trace and of both ends' spans follow from the id of the exchange (`ids.rs`).

#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod ids;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod open;
#[cfg(feature = "otel")]
mod tracer;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "otel"))]
pub(crate) use off::{ExchangeTraces, Tracer};
#[cfg(feature = "otel")]
pub(crate) use open::ExchangeTraces;
#[cfg(feature = "otel")]
pub(crate) use tracer::Tracer;

/// Longest wait for the collector to take the last spans.
pub(crate) const FLUSH_MAX: Duration = Duration::from_secs(5);
/// The same wait, for a peer that was interrupted.
pub(crate) const FLUSH_INTERRUPTED_MAX: Duration = Duration::from_millis(400);

/// Where traces are sent: a collector that takes OTLP over HTTP without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Collector {
    /// Host and port, without `http://`.
    authority: String,
}

impl Collector {
    /// Host and port: `localhost:4318` or `[::1]:4318`.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// The text is no address of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the address of a collector: expected for example \"http://127.0.0.1:4318\"")]
pub struct ParseCollectorError;

impl FromStr for Collector {
    type Err = ParseCollectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let authority = text.strip_prefix("http://").ok_or(ParseCollectorError)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or(ParseCollectorError)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let sound = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let letter = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '-' | '_');
                !host.is_empty() && host.chars().all(letter)
            }
        };
        let port_sound = port.parse::<u16>().is_ok_and(|port| port > 0);
        let made = Self { authority: authority.to_owned() };
        (sound && port_sound).then_some(made).ok_or(ParseCollectorError)
    }
}

impl From<Collector> for String {
    fn from(collector: Collector) -> Self {
        collector.to_string()
    }
}

impl TryFrom<String> for Collector {
    type Error = ParseCollectorError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Why traces cannot be sent.
#[derive(thiserror::Error)]
pub enum TracesError {
    /// This dnode was built without the feature.
    #[error(
        "this dnode was built without traces; build with --features otel, or leave out --traces (node.traces)"
    )]
    NotBuilt,
    /// The sender of the traces cannot be made.
    #[error("send traces to {collector}: {reason}; --traces names where")]
    Export {
        /// The collector.
        collector: Collector,
        /// What is wrong.
        reason: String,
    },
}

/// Whether the traces that the configuration asks for can be made.
///
/// # Errors
/// [`TracesError::NotBuilt`].
pub(crate) const fn check(wanted: Option<&Collector>) -> Result<(), TracesError> {
    if wanted.is_some() && !cfg!(feature = "otel") { Err(TracesError::NotBuilt) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors_are_read_as_they_are_written() {
        for text in ["http://127.0.0.1:4318", "http://[::1]:4318", "http://otel-collector.lan:80"] {
            assert_eq!(text.parse::<Collector>().unwrap().to_string(), text);
        }
        let slash = "http://localhost:4318/".parse::<Collector>().unwrap();
        assert_eq!(slash.authority(), "localhost:4318");
    }

    #[test]
    fn a_build_without_traces_says_so_when_they_are_wanted() {
        assert!(check(None).is_ok());
        let collector = "http://localhost:4318".parse().unwrap();
        assert_eq!(check(Some(&collector)).is_ok(), cfg!(feature = "otel"));
    }

    #[test]
    fn what_names_no_collector_is_refused() {
        for text in [
            "",
            "localhost:4318",
            "https://localhost:4318",
            "http://localhost",
            "http://:4318",
            "http://localhost:0",
            "http://localhost:70000",
            "http://localhost:4318/v1/traces",
            "http://a b:4318",
            "http://a\r\nb:4318",
            "http://::1:4318",
        ] {
            assert!(text.parse::<Collector>().is_err(), "{text}");
        }
    }
}
