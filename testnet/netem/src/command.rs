//! Control lines: what a person at the keyboard changes about the network.
//!
//! ```text
//! link FROM TO key=value …    the directed lines from FROM to TO
//! up WHO key=value …          what each machine shares on its way out
//! down WHO key=value …        what each machine shares on its way in
//! part 0|1,2                  no packet passes from one side to another; * are all others
//! heal                        ends the partition
//! nat WHO cone|symmetric|none [idle_s=120]
//! multicast on|off
//! stats
//! ```
//! FROM, TO and WHO are numbers with commas between, or `*`. Keys of lines: `delay_ms`,
//! `jitter_ms`, `rate_mbit` (0: no limit), `loss` (0 to 1), `queue_kb`; what is not named stays.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use super::link::LinkSettings;
use super::nat::{NatKind, UDP_IDLE};

/// Longest delay or jitter that a line may have, in milliseconds: a minute.
const DELAY_MS_MAX: f64 = 60_000.0;
/// Highest rate of a line, in Mbit/s: far more than this router carries.
const RATE_MBIT_MAX: f64 = 1e6;
/// Longest queue of a line, in units of 1,024 bytes: 1 GiB.
const QUEUE_KB_MAX: u32 = 1024 * 1024;
/// Longest idle time of a NAT, in seconds: a day.
const IDLE_S_MAX: f64 = 86_400.0;

/// Some of the machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// All, or all that were not named before.
    All,
    /// These.
    These(BTreeSet<usize>),
}

impl Who {
    /// Whether it names machine `index`.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.contains(&index),
        }
    }

    /// The highest number that is named.
    #[must_use]
    pub fn last(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::These(these) => these.last().copied(),
        }
    }
}

/// What a line changes about a [`LinkSettings`]; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// Time from the last bit sent to the last bit received.
    pub delay: Option<Duration>,
    /// A packet takes up to this much longer.
    pub jitter: Option<Duration>,
    /// Bits of IP packets in a second; 0 for no limit.
    pub bits_per_s: Option<u64>,
    /// Share of the packets that are lost, in `[0, 1]`.
    pub loss: Option<f64>,
    /// Bytes that may wait.
    pub queue_bytes: Option<u32>,
}

impl Change {
    /// The settings after the change.
    #[must_use]
    pub fn apply(&self, old: &LinkSettings) -> LinkSettings {
        LinkSettings {
            delay: self.delay.unwrap_or(old.delay),
            jitter: self.jitter.unwrap_or(old.jitter),
            bits_per_s: self.bits_per_s.unwrap_or(old.bits_per_s),
            loss: self.loss.unwrap_or(old.loss),
            queue_bytes: self.queue_bytes.unwrap_or(old.queue_bytes),
        }
    }
}

/// Which lines a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Those between two machines, in one direction.
    Between(Who, Who),
    /// The ways out of machines.
    Up(Who),
    /// The ways into machines.
    Down(Who),
}

/// One control line.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Changes lines.
    Lines(Lines, Change),
    /// Cuts the sides from each other; machines on no side reach all.
    Part(Vec<Who>),
    /// Ends the partition.
    Heal,
    /// Puts machines behind a NAT of their own with an empty table, or in the open.
    Nat(Who, Option<(NatKind, Duration)>),
    /// Whether packets to multicast addresses reach everybody or nobody.
    Multicast(bool),
    /// Says what happened so far.
    Stats,
}

/// A line that is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{line}`: {reason}")]
pub struct CommandError {
    /// The line.
    line: String,
    /// What is wrong, with an example.
    reason: String,
}

impl FromStr for Command {
    type Err = CommandError;

    fn from_str(line: &str) -> Result<Self, CommandError> {
        parse(line).map_err(|reason| CommandError { line: line.trim().to_owned(), reason })
    }
}

fn parse(line: &str) -> Result<Command, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["link", from, to, keys @ ..] => {
            Ok(Command::Lines(Lines::Between(who(from)?, who(to)?), change(keys)?))
        }
        ["up", name, keys @ ..] => Ok(Command::Lines(Lines::Up(who(name)?), change(keys)?)),
        ["down", name, keys @ ..] => Ok(Command::Lines(Lines::Down(who(name)?), change(keys)?)),
        ["part", sides] => Ok(Command::Part(self::sides(sides)?)),
        ["heal"] => Ok(Command::Heal),
        ["nat", name, kind, keys @ ..] => Ok(Command::Nat(who(name)?, nat(kind, keys)?)),
        ["multicast", "on"] => Ok(Command::Multicast(true)),
        ["multicast", "off"] => Ok(Command::Multicast(false)),
        ["stats"] => Ok(Command::Stats),
        _ => Err("expected link FROM TO KEY=VALUE…, up WHO KEY=VALUE…, down WHO KEY=VALUE…, \
                  part SIDE|SIDE, heal, nat WHO cone|symmetric|none, multicast on|off, or stats"
            .to_owned()),
    }
}

fn who(text: &str) -> Result<Who, String> {
    if text == "*" {
        return Ok(Who::All);
    }
    let numbers: Result<BTreeSet<usize>, _> = text.split(',').map(str::parse).collect();
    let numbers = numbers.map_err(|_| format!("`{text}` names no machines; write 0,2 or *"))?;
    Ok(Who::These(numbers))
}

fn sides(text: &str) -> Result<Vec<Who>, String> {
    let sides: Vec<Who> = text.split('|').map(who).collect::<Result<_, _>>()?;
    if sides.len() < 2 {
        return Err("a partition has two sides or more, for example part 0|1,2".to_owned());
    }
    let mut seen = BTreeSet::new();
    for side in &sides {
        let twice = match side {
            Who::All => sides.iter().filter(|side| **side == Who::All).count() > 1,
            Who::These(these) => these.iter().any(|index| !seen.insert(*index)),
        };
        if twice {
            return Err("a machine is on one side of a partition only".to_owned());
        }
    }
    Ok(sides)
}

fn change(words: &[&str]) -> Result<Change, String> {
    let mut change = Change::default();
    for word in words {
        let (key, value) = pair(word)?;
        match key {
            "delay_ms" => change.delay = Some(milliseconds(key, value)?),
            "jitter_ms" => change.jitter = Some(milliseconds(key, value)?),
            "rate_mbit" => {
                let mbit = number(key, value, RATE_MBIT_MAX)?;
                change.bits_per_s = Some((mbit * 1e6).round() as u64);
            }
            "loss" => change.loss = Some(number(key, value, 1.0)?),
            "queue_kb" => {
                let kb: Option<u32> = value.parse().ok().filter(|kb| *kb <= QUEUE_KB_MAX);
                let kb = kb.ok_or_else(|| format!("{key}: expected 0 to {QUEUE_KB_MAX}"))?;
                change.queue_bytes = Some(kb.saturating_mul(1024));
            }
            _ => {
                return Err(format!(
                    "no key `{key}`; there are delay_ms, jitter_ms, rate_mbit, loss, queue_kb"
                ));
            }
        }
    }
    if words.is_empty() {
        return Err("nothing to change, for example delay_ms=25".to_owned());
    }
    Ok(change)
}

fn nat(kind: &str, keys: &[&str]) -> Result<Option<(NatKind, Duration)>, String> {
    let mut idle = UDP_IDLE;
    for word in keys {
        let (key, value) = pair(word)?;
        if key != "idle_s" {
            return Err(format!("no key `{key}`; there is idle_s"));
        }
        idle = Duration::from_secs_f64(number(key, value, IDLE_S_MAX)?);
    }
    match kind {
        "cone" => Ok(Some((NatKind::Cone, idle))),
        "symmetric" => Ok(Some((NatKind::Symmetric, idle))),
        "none" if keys.is_empty() => Ok(None),
        _ => Err("expected cone, symmetric or none".to_owned()),
    }
}

fn pair(word: &str) -> Result<(&str, &str), String> {
    word.split_once('=').ok_or_else(|| format!("`{word}` is not KEY=VALUE"))
}

fn milliseconds(key: &str, value: &str) -> Result<Duration, String> {
    Ok(Duration::from_secs_f64(number(key, value, DELAY_MS_MAX)? / 1e3))
}

/// A number from 0 to `most`.
fn number(key: &str, value: &str, most: f64) -> Result<f64, String> {
    let number: Option<f64> = value.parse().ok().filter(|number| (0.0..=most).contains(number));
    number.ok_or_else(|| format!("{key}: expected a number from 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(indices: &[usize]) -> Who {
        Who::These(indices.iter().copied().collect())
    }

    #[test]
    fn lines_are_changed_key_by_key() {
        let command: Command = "link 0 * delay_ms=25 rate_mbit=100 loss=0.01".parse().unwrap();
        let Command::Lines(Lines::Between(from, to), change) = command else {
            panic!("{command:?}");
        };
        assert_eq!((from, to), (these(&[0]), Who::All));
        let jitter = Duration::from_millis(3);
        let new = change.apply(&LinkSettings { jitter, ..Default::default() });
        assert_eq!(new.delay, Duration::from_millis(25));
        assert_eq!((new.jitter, new.bits_per_s), (jitter, 100_000_000));
        assert!((new.loss - 0.01).abs() < 1e-12);
        assert!("up 1,3 queue_kb=64".parse::<Command>().is_ok());
        assert!("  down *   jitter_ms=0.5 ".parse::<Command>().is_ok());
    }

    #[test]
    fn partitions_name_each_machine_once() {
        let part = |text: &str| text.parse::<Command>();
        assert_eq!(part("part 0|1,2"), Ok(Command::Part(vec![these(&[0]), these(&[1, 2])])));
        assert_eq!(part("part 0|*"), Ok(Command::Part(vec![these(&[0]), Who::All])));
        for bad in ["part 0,1", "part 0|0,1", "part *|*", "part 0|x", "part 0|1 2"] {
            assert!(part(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nats_have_a_kind_and_an_idle_time() {
        let nat = |text: &str| text.parse::<Command>();
        let idle = Duration::from_secs(30);
        assert_eq!(
            nat("nat 0,1 symmetric idle_s=30"),
            Ok(Command::Nat(these(&[0, 1]), Some((NatKind::Symmetric, idle))))
        );
        assert_eq!(nat("nat * none"), Ok(Command::Nat(Who::All, None)));
        assert!(nat("nat 0 cone idle=3").is_err());
    }

    #[test]
    fn a_wrong_line_is_quoted_with_what_is_wrong() {
        for (line, want) in [
            ("link 0 1", "nothing to change"),
            ("link 0 1 speed=3", "no key `speed`"),
            ("link 0 1 loss=1.5", "0 to 1"),
            ("link 0 1 loss=NaN", "0 to 1"),
            ("link 0 1 delay_ms=-1", "0 to 60000"),
            ("link a 1 loss=0", "names no machines"),
            ("up 0 rate_mbit", "not KEY=VALUE"),
            ("down 0 queue_kb=9999999", "queue_kb"),
            ("reboot", "expected link"),
            ("", "expected link"),
        ] {
            let error = line.parse::<Command>().unwrap_err().to_string();
            assert!(error.contains(want) && error.contains(line), "{error}");
        }
    }
}
