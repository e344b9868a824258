//! Kinds of configuration values: what is legal, in words and as a check.

use std::fmt::Write as _;
use std::time::Duration;

use dnode_protocol::is_label;
use dnode_torch::Device;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use toml::Value;

use super::values::Share;
use crate::telemetry::traces::Collector;
use crate::telemetry::view::Service;

/// A range of real numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reals {
    /// Lower bound.
    pub min: f64,
    /// Whether `min` itself is legal.
    pub min_legal: bool,
    /// Upper bound.
    pub max: f64,
    /// Whether `max` itself is legal.
    pub max_legal: bool,
}

impl Reals {
    /// `[min, max]`.
    #[must_use]
    pub const fn closed(min: f64, max: f64) -> Self {
        Self { min, min_legal: true, max, max_legal: true }
    }

    /// `(min, max]`.
    #[must_use]
    pub const fn above(min: f64, max: f64) -> Self {
        Self { min_legal: false, ..Self::closed(min, max) }
    }

    /// `[min, max)`.
    #[must_use]
    pub const fn below(min: f64, max: f64) -> Self {
        Self { max_legal: false, ..Self::closed(min, max) }
    }

    fn contains(&self, number: f64) -> bool {
        let least = number > self.min || (self.min_legal && number >= self.min);
        let most = number < self.max || (self.max_legal && number <= self.max);
        least && most
    }

    fn words(&self) -> String {
        match (self.min_legal, self.max_legal) {
            (true, true) => format!("{} to {}", self.min, self.max),
            (false, true) => format!("more than {}, at most {}", self.min, self.max),
            (true, false) => format!("at least {}, less than {}", self.min, self.max),
            (false, false) => format!("more than {}, less than {}", self.min, self.max),
        }
    }
}

/// What values a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number from the first to the second, both legal.
    Integer(i64, i64),
    /// A real number.
    Real(Reals),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// This word, or a real number.
    WordOrReal(&'static str, Reals),
    /// This word, or a whole number from the first to the second, both legal.
    WordOrInteger(&'static str, i64, i64),
    /// A share such as `"50%"`, or a whole number from the first to the second, both legal.
    ShareOrInteger(i64, i64),
    /// A file or folder.
    Path,
    /// A text of at most so many bytes; may be empty.
    Name(usize),
    /// A text of at most so many bytes that can be shown on one line; may be empty.
    Label(usize),
    /// So many hexadecimal digits, in lower case.
    Digits(usize),
    /// A device that computes.
    Device,
    /// A duration such as `"500ms"`, from the first to the second, milliseconds, both legal.
    Duration(u64, u64),
    /// This word, or a duration as in [`Kind::Duration`].
    WordOrDuration(&'static str, u64, u64),
    /// One or more of these words, each at most once; kept in this order.
    Words(&'static [&'static str]),
    /// Any of these words, each at most once; kept in this order.
    Subset(&'static [&'static str]),
    /// One to `count_max` whole numbers, each from `min` to `max`.
    Integers {
        /// Least number.
        min: i64,
        /// Greatest number.
        max: i64,
        /// Most numbers.
        count_max: usize,
    },
    /// At most this many libp2p addresses that can be listened on or dialled.
    Addresses(usize),
    /// `off`, `auto`, or an IP address and a port.
    Service,
    /// `http://`, a host and a port.
    Collector,
}

impl Kind {
    /// The type in one word, for the reference.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Integer(..) => "integer",
            Self::Real(_) => "number",
            Self::Flag => "true/false",
            Self::Choice(_) => "word",
            Self::WordOrReal(..) => "word or number",
            Self::WordOrInteger(..) => "word or integer",
            Self::ShareOrInteger(..) => "share or integer",
            Self::Path => "path",
            Self::Name(_) | Self::Label(_) | Self::Digits(_) => "text",
            Self::Device => "device",
            Self::Duration(..) => "duration",
            Self::WordOrDuration(..) => "word or duration",
            Self::Words(_) | Self::Subset(_) => "list of words",
            Self::Integers { .. } => "list of integers",
            Self::Addresses(_) => "list of addresses",
            Self::Service => "word or address",
            Self::Collector => "address",
        }
    }

    /// The legal values as a phrase that follows "must be".
    #[must_use]
    pub fn legal(&self) -> String {
        match self {
            Self::Integer(min, max) => format!("an integer, {min} to {max}"),
            Self::Real(reals) => format!("a number, {}", reals.words()),
            Self::Flag => "true or false".to_owned(),
            Self::Choice(words) => all_of(words, " or "),
            Self::WordOrReal(word, reals) => format!("\"{word}\" or a number, {}", reals.words()),
            Self::WordOrInteger(word, min, max) => {
                format!("\"{word}\" or an integer, {min} to {max}")
            }
            Self::ShareOrInteger(min, max) => {
                format!(
                    "a share in quotes such as \"50%\", at most 100%, or an integer, {min} to {max}"
                )
            }
            Self::Path => "a path in quotes".to_owned(),
            Self::Device => "\"cpu\", \"cuda:0\" (or another number) or \"auto\"".to_owned(),
            Self::Name(max) => format!("a text in quotes, at most {max} bytes"),
            Self::Digits(count) => {
                format!("{count} hexadecimal digits in quotes, as they are printed")
            }
            Self::Label(max) => format!(
                "a text in quotes, at most {max} bytes, of characters that can be seen on one line"
            ),
            Self::Duration(min, max) => durations(*min, *max),
            Self::WordOrDuration(word, min, max) => {
                format!("\"{word}\" or {}", durations(*min, *max))
            }
            Self::Words(words) => {
                format!("a list of at least one of {}, each at most once", all_of(words, " and "))
            }
            Self::Subset(words) => {
                format!("a list of any of {}, each at most once", all_of(words, " and "))
            }
            Self::Integers { min, max, count_max } => {
                format!("a list of 1 to {count_max} integers, each {min} to {max}")
            }
            Self::Addresses(count_max) => format!(
                "a list of at most {count_max} addresses such as \"/ip4/192.0.2.1/udp/4001/quic-v1\""
            ),
            Self::Service => {
                "\"off\", \"auto\" or an address such as \"127.0.0.1:7878\"".to_owned()
            }
            Self::Collector => "an address such as \"http://127.0.0.1:4318\"".to_owned(),
        }
    }

    /// The value in its normal form (numbers as the kind's own type), or `None` when it is not legal.
    #[must_use]
    pub fn check(&self, value: &Value) -> Option<Value> {
        let legal = match self {
            Self::Integer(min, max) => (*min..=*max).contains(&value.as_integer()?),
            Self::Real(reals) => return reals_value(reals, value),
            Self::Flag => value.is_bool(),
            Self::Choice(words) => words.contains(&value.as_str()?),
            Self::WordOrReal(word, reals) => {
                if value.is_str() {
                    value.as_str() == Some(word)
                } else {
                    return reals_value(reals, value);
                }
            }
            Self::WordOrInteger(word, min, max) => {
                value.as_str() == Some(word)
                    || value.as_integer().is_some_and(|number| (*min..=*max).contains(&number))
            }
            Self::ShareOrInteger(min, max) => {
                value.as_str().is_some_and(|text| text.parse::<Share>().is_ok())
                    || value.as_integer().is_some_and(|number| (*min..=*max).contains(&number))
            }
            Self::Path => value.as_str().is_some_and(|path| !path.is_empty()),
            Self::Device => value.as_str().is_some_and(|text| text.parse::<Device>().is_ok()),
            Self::Name(max) => value.as_str().is_some_and(|name| name.len() <= *max),
            Self::Digits(count) => value.as_str().is_some_and(|text| {
                text.len() == *count && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }),
            Self::Label(max) => value.as_str().is_some_and(|name| is_label(name, *max)),
            Self::Duration(min, max) => is_duration(value, *min, *max),
            Self::WordOrDuration(word, min, max) => {
                value.as_str() == Some(word) || is_duration(value, *min, *max)
            }
            Self::Words(words) => {
                let given = value.as_array()?;
                return ordered(words, given).filter(|_| !given.is_empty());
            }
            Self::Subset(words) => return ordered(words, value.as_array()?),
            Self::Integers { min, max, count_max } => {
                let legal =
                    |item: &Value| item.as_integer().is_some_and(|n| (*min..=*max).contains(&n));
                let items = value.as_array()?;
                (1..=*count_max).contains(&items.len()) && items.iter().all(legal)
            }
            Self::Addresses(count_max) => {
                let legal = |item: &Value| item.as_str().is_some_and(is_reachable);
                let items = value.as_array()?;
                items.len() <= *count_max && items.iter().all(legal)
            }
            Self::Service => value.as_str().is_some_and(|text| text.parse::<Service>().is_ok()),
            Self::Collector => value.as_str().is_some_and(|it| it.parse::<Collector>().is_ok()),
        };
        legal.then(|| value.clone())
    }

    /// Reads what was typed on a command line: TOML, or bare text where the kind is textual.
    #[must_use]
    pub fn read(&self, text: &str) -> Value {
        let bare = || Value::String(text.to_owned());
        let parsed = toml::from_str::<toml::Table>(&format!("v = {text}"))
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut table| table.remove("v"));
        match self {
            Self::Path
            | Self::Name(_)
            | Self::Label(_)
            | Self::Digits(_)
            | Self::Device
            | Self::Choice(_)
            | Self::Duration(..)
            | Self::WordOrDuration(..)
            | Self::Service
            | Self::Collector => parsed.filter(Value::is_str).unwrap_or_else(bare),
            Self::Words(_) | Self::Subset(_) => match parsed {
                Some(list @ Value::Array(_)) => list,
                Some(Value::String(word)) => Value::Array(vec![Value::String(word)]),
                Some(_) | None => {
                    let words = text.split(',').map(|word| Value::String(word.trim().to_owned()));
                    Value::Array(words.collect())
                }
            },
            Self::Addresses(_) | Self::Integers { .. } => match parsed {
                Some(list @ Value::Array(_)) => list,
                other => Value::Array(vec![other.unwrap_or_else(bare)]),
            },
            Self::Integer(..)
            | Self::Real(_)
            | Self::Flag
            | Self::WordOrReal(..)
            | Self::WordOrInteger(..)
            | Self::ShareOrInteger(..) => parsed.unwrap_or_else(bare),
        }
    }
}

/// Whether `text` is a libp2p address over QUIC or TCP.
fn is_reachable(text: &str) -> bool {
    let Ok(address) = text.parse::<Multiaddr>() else {
        return false;
    };
    let is = |wanted: fn(&Protocol<'_>) -> bool| address.iter().any(|part| wanted(&part));
    is(|part| matches!(part, Protocol::Tcp(_)))
        || (is(|part| matches!(part, Protocol::Udp(_)))
            && is(|part| matches!(part, Protocol::QuicV1)))
}

/// `value` as a float when it is a number in `reals`.
fn reals_value(reals: &Reals, value: &Value) -> Option<Value> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::String(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => {
            return None;
        }
    };
    reals.contains(number).then_some(Value::Float(number))
}

/// Durations as a phrase.
fn durations(min: u64, max: u64) -> String {
    let text = |ms| humantime::format_duration(Duration::from_millis(ms));
    format!("a duration in quotes such as \"500ms\", {} to {}", text(min), text(max))
}

fn is_duration(value: &Value, min: u64, max: u64) -> bool {
    let text = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
    text.is_some_and(|it| (u128::from(min)..=u128::from(max)).contains(&it.as_millis()))
}

/// The given words in the order of `words`; `None` when one is unknown or stands twice.
fn ordered(words: &[&str], given: &[Value]) -> Option<Value> {
    let stands = |word: &&&str| given.iter().any(|item| item.as_str() == Some(**word));
    let list: Vec<Value> =
        words.iter().filter(stands).map(|word| Value::String((*word).to_owned())).collect();
    (list.len() == given.len()).then_some(Value::Array(list))
}

/// `"a", "b" or "c"`, with ` or ` as `last`.
fn all_of(words: &[&str], last: &str) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let joint = match index {
            0 => "",
            _ if index + 1 == words.len() => last,
            _ => ", ",
        };
        let _ = write!(text, "{joint}\"{word}\"");
    }
    text
}
