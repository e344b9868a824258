//! Which order a peer draws its samples in, and what two peers have drawn in common.

use serde::{Deserialize, Serialize};

/// Which of the orders of a shard a peer draws its samples in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub enum Stream {
    /// One of its own: two peers of one shard draw independently.
    #[default]
    Auto,
    /// This one: peers that give the same number draw the same batches from the same shard.
    Fixed(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Word(String),
    Number(u64),
}

impl TryFrom<Form> for Stream {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        match form {
            Form::Word(word) if word == "auto" => Ok(Self::Auto),
            Form::Number(number) => Ok(Self::Fixed(number)),
            Form::Word(found) => {
                Err(format!("expected \"auto\" or a whole number, found \"{found}\""))
            }
        }
    }
}

impl From<Stream> for Form {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Auto => Self::Word("auto".to_owned()),
            Stream::Fixed(number) => Self::Number(number),
        }
    }
}

/// What one peer has drawn from a training set that is cut into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Its shard.
    pub shard: u32,
    /// Its order.
    pub stream: u64,
    /// Samples drawn so far, repetitions included.
    pub samples: u64,
}

/// The expected fraction, in `[0, 1]`, of the different samples drawn by `one` that `other` has
/// drawn, too; 0 when `one` has drawn nothing.
///
/// `shard_len`: samples of a shard, at least 1; shards are cut alike for both. A pass over a shard is
/// without replacement, so after `s` draws a peer has seen `min(s, shard_len)` different samples,
/// and whoever draws in an independent order meets each of them with the same probability:
/// `min(s_other, shard_len) / shard_len`. Who draws in the same order meets the first of them:
/// `min(s_one, s_other, shard_len) / min(s_one, shard_len)`. Different shards have nothing in common.
/// Windows of text count as one sample each, by their first token.
#[must_use]
pub fn expected_overlap(shard_len: u64, one: Drawn, other: Drawn) -> f64 {
    let seen = |drawn: Drawn| drawn.samples.min(shard_len);
    if one.shard != other.shard || seen(one) == 0 {
        return 0.0;
    }
    if one.stream == other.stream {
        return seen(one).min(seen(other)) as f64 / seen(one) as f64;
    }
    seen(other) as f64 / shard_len as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_word_or_a_whole_number() {
        let parse = |text| serde_json::from_str::<Stream>(text);
        assert_eq!(parse("\"auto\"").unwrap(), Stream::Auto);
        assert_eq!(parse("7").unwrap(), Stream::Fixed(7));
        for bad in ["\"own\"", "-1", "1.5"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(serde_json::to_string(&Stream::Auto).unwrap(), "\"auto\"");
        assert_eq!(serde_json::to_string(&Stream::Fixed(7)).unwrap(), "7");
    }

    #[test]
    fn overlap_by_hand() {
        let drawn = |shard, stream, samples| Drawn { shard, stream, samples };
        for (one, other, want) in [
            (drawn(0, 1, 50), drawn(1, 1, 500), 0.0),
            (drawn(0, 1, 0), drawn(0, 1, 9), 0.0),
            (drawn(0, 1, 50), drawn(0, 1, 50), 1.0),
            (drawn(0, 1, 50), drawn(0, 1, 25), 0.5),
            (drawn(0, 1, 500), drawn(0, 1, 25), 0.25),
            (drawn(0, 1, 50), drawn(0, 2, 25), 0.25),
            (drawn(0, 1, 500), drawn(0, 2, 50), 0.5),
            (drawn(0, 1, 5), drawn(0, 2, 101), 1.0),
        ] {
            let got = expected_overlap(100, one, other);
            assert!((got - want).abs() < 1e-12, "{one:?} {other:?}: {got}");
        }
    }
}
