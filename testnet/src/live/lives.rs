//! What each process of a scenario run held and used: a table of those that lived longest.

use std::fmt;
use std::time::Duration;

use super::growth::Slopes;

/// Most lives that are kept, the longest ones: every peer of the largest soak, and some that were started again.
const LIVES_MAX: usize = 100;

/// What one process held and used from its start to the last look at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// Index of the peer.
    pub peer: u32,
    /// Which of its lives, from 1.
    pub number: u32,
    /// Its age.
    pub age: Duration,
    /// Resident memory at the first look, the last one, and at most, bytes.
    pub memory: [u64; 3],
    /// Handles at the last look and at most.
    pub handles: [usize; 2],
    /// Processor time of all its threads.
    pub cpu: Duration,
    /// How it grew; `None` for a life too short to tell.
    pub slopes: Option<Slopes>,
}

impl Life {
    /// Part of a core that it used, percent.
    fn cpu_percent(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.age.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The longest lives of a scenario run.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    longest: Vec<Life>,
    ended: u64,
}

impl Lives {
    /// One more has ended.
    pub(super) fn push(&mut self, life: Life) {
        self.ended += 1;
        let at = self.longest.partition_point(|other| other.age >= life.age);
        self.longest.insert(at, life);
        self.longest.truncate(LIVES_MAX);
    }

    /// Those that are kept, longest first.
    #[must_use]
    pub fn longest(&self) -> &[Life] {
        &self.longest
    }
}

fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// The least, the middle and the most of what `value` is of `lives`, of which there are some.
fn range(lives: &[Life], value: impl Fn(&Life) -> f64) -> [f64; 3] {
    let mut values: Vec<f64> = lives.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[(values.len() - 1) / 2], values[values.len() - 1]]
}

impl fmt::Display for Lives {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.longest.is_empty() {
            return Ok(());
        }
        let shown = self.longest.len();
        writeln!(
            formatter,
            "the {shown} longest of {} lives; MiB of resident memory, handles, seconds of processor time:",
            self.ended
        )?;
        writeln!(
            formatter,
            "peer life     s   MiB first   last   most  handles  most    CPU s  of a core  per hour MiB  handles"
        )?;
        let mut lives = self.longest.clone();
        lives.sort_by_key(|life| (life.peer, life.number));
        for life in &lives {
            let [first, last, most] = life.memory.map(|bytes| mebibytes(bytes as f64));
            let [handles, handles_most] = life.handles;
            write!(
                formatter,
                "{:>4} {:>4} {:>5} {first:>11.1} {last:>6.1} {most:>6.1} {handles:>8} {handles_most:>5} {:>8.2} {:>7.2} %",
                life.peer,
                life.number,
                life.age.as_secs(),
                life.cpu.as_secs_f64(),
                life.cpu_percent(),
            )?;
            match life.slopes {
                Some(slopes) => writeln!(
                    formatter,
                    " {:>+13.2} {:>+8.1}",
                    mebibytes(slopes.memory_per_hour),
                    slopes.handles_per_hour
                )?,
                None => writeln!(formatter, " {:>13} {:>8}", "-", "-")?,
            }
        }
        let memory = range(&lives, |life| mebibytes(life.memory[2] as f64));
        let handles = range(&lives, |life| life.handles[1] as f64);
        let cpu = range(&lives, Life::cpu_percent);
        for (what, [least, middle, most]) in
            [("MiB at most", memory), ("handles at most", handles), ("% of a core", cpu)]
        {
            writeln!(formatter, "{what}: {least:.1} to {most:.1}, in the middle {middle:.1}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(peer: u32, seconds: u64) -> Life {
        Life {
            peer,
            number: 1,
            age: Duration::from_secs(seconds),
            memory: [1 << 20, 3 << 20, 4 << 20],
            handles: [7, 9],
            cpu: Duration::from_secs(5),
            slopes: None,
        }
    }

    #[test]
    fn the_longest_lives_are_kept_and_shown_by_peer() {
        let mut lives = Lives::default();
        for peer in 0..300 {
            lives.push(life(peer, 1 + u64::from(peer) * 7 % 300));
        }
        let ages: Vec<u64> = lives.longest().iter().map(|life| life.age.as_secs()).collect();
        assert_eq!(ages, (201..=300).rev().collect::<Vec<_>>());
        let text = lives.to_string();
        assert!(text.starts_with("the 100 longest of 300 lives"), "{text}");
        let peers: Vec<u32> =
            text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        assert!(peers.len() == 100 && peers.is_sorted(), "{text}");
    }

    #[test]
    fn a_row_has_what_one_process_held_and_used() {
        let mut lives = Lives::default();
        let slopes = Slopes {
            span: Duration::from_secs(60),
            memory_per_hour: f64::from(1 << 20),
            handles_per_hour: -2.0,
        };
        lives.push(Life { slopes: Some(slopes), ..life(12, 50) });
        let text = lives.to_string();
        let row: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        let expected =
            ["12", "1", "50", "1.0", "3.0", "4.0", "7", "9", "5.00", "10.00", "%", "+1.00", "-2.0"];
        assert_eq!(row, expected, "{text}");
        assert!(text.ends_with("% of a core: 10.0 to 10.0, in the middle 10.0\n"), "{text}");
        assert_eq!(Lives::default().to_string(), "");
    }
}
