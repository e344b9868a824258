//! Where something is served: nowhere, at the usual address, or at a given one.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The port of the page unless another is asked for. When it is taken, any free port is used.
const USUAL_PORT: u16 = 7878;

/// Where to serve something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Service {
    /// Nowhere.
    #[default]
    Off,
    /// On loopback, at a usual port or any free one.
    Auto,
    /// At this address; port 0 is any free one.
    At(SocketAddr),
}

impl Service {
    /// Addresses to try in turn.
    #[must_use]
    pub fn candidates(self) -> Vec<SocketAddr> {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match self {
            Self::Off => Vec::new(),
            Self::Auto => vec![loopback(USUAL_PORT), loopback(0)],
            Self::At(address) => vec![address],
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// The text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read an address: expected \"off\", \"auto\" or for example \"127.0.0.1:7878\"")]
pub struct ParseServiceError;

impl FromStr for Service {
    type Err = ParseServiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::At).map_err(|_| ParseServiceError),
        }
    }
}

impl From<Service> for String {
    fn from(service: Service) -> Self {
        service.to_string()
    }
}

impl TryFrom<String> for Service {
    type Error = ParseServiceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_as_it_is_written() {
        for text in ["off", "auto", "127.0.0.1:0", "[::1]:9000", "0.0.0.0:9100"] {
            assert_eq!(text.parse::<Service>().unwrap().to_string(), text);
        }
        for text in ["", "on", "7878", "localhost:80", "127.0.0.1", "127.0.0.1:70000"] {
            assert!(text.parse::<Service>().is_err(), "{text}");
        }
    }

    #[test]
    fn without_an_address_only_this_machine_is_served() {
        assert!(Service::Auto.candidates().iter().all(|address| address.ip().is_loopback()));
        assert!(Service::Off.candidates().is_empty());
    }
}
