//! What a kill does to the pace of those that live on.

use std::fmt;

/// Time before and after a kill in which the others are looked at, seconds. Kills with another
/// fault in this time before or after tell nothing.
const WINDOW_S: f64 = 6.0;
/// Fewest reports of a peer in a window that tell its pace.
const REPORTS_MIN: usize = 8;
/// Most reports kept of one life: an hour at 40 a second.
const REPORTS_MAX: usize = 144_000;

/// A report of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Beat {
    /// Seconds after the start of the scenario run.
    pub(super) at_s: f64,
    /// Local steps.
    pub(super) step: u64,
}

/// The reports of one running.
#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    beats: Vec<Beat>,
}

impl Recovery {
    pub(super) fn push(&mut self, beat: Beat) {
        if self.beats.len() < REPORTS_MAX {
            self.beats.push(beat);
        }
    }

    /// The reports from `from_s` to `to_s`, and the one after.
    fn within(&self, from_s: f64, to_s: f64) -> &[Beat] {
        let first = self.beats.partition_point(|beat| beat.at_s < from_s);
        let end = self.beats.partition_point(|beat| beat.at_s <= to_s);
        &self.beats[first..(end + 1).min(self.beats.len())]
    }

    /// What a kill at `kill_s` did to this life; `None` when it did not live for long enough.
    fn felt(&self, kill_s: f64) -> Option<Felt> {
        let last = self.beats.last()?.at_s;
        let before = self.within(kill_s - WINDOW_S, kill_s);
        let whole = self.within(kill_s - WINDOW_S, kill_s + WINDOW_S);
        let begun = self.beats.first()?.at_s <= kill_s - WINDOW_S;
        if !begun || last < kill_s + WINDOW_S || before.len() < REPORTS_MIN {
            return None;
        }
        // The time over a kill begins with the last report before it.
        let after = &whole[before.len() - 2..];
        let mut usual = gaps(before);
        usual.sort_by(f64::total_cmp);
        let usual_s = *usual.get(usual.len() / 2)?;
        let longest_s = gaps(after).into_iter().fold(0.0, f64::max);
        let rate = |beats: &[Beat]| {
            let (first, last) = (beats.first()?, beats.last()?);
            let time = last.at_s - first.at_s;
            (time > 0.0).then(|| (last.step - first.step) as f64 / time)
        };
        let ratio = rate(after)? / rate(before)?;
        Some(Felt { extra_s: (longest_s - usual_s).max(0.0), ratio })
    }
}

fn gaps(beats: &[Beat]) -> Vec<f64> {
    beats.windows(2).map(|pair| pair[1].at_s - pair[0].at_s).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Felt {
    /// Longest time between two reports after the kill, beyond the median one before, seconds.
    extra_s: f64,
    /// Steps per second after the kill over those before.
    ratio: f64,
}

/// What the kills of a scenario run did to those that lived on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aftermath {
    /// Kills that could be judged.
    pub kills: usize,
    /// For each of them, the delay of the survivor that was held up most, seconds, ascending.
    pub worst_s: Vec<f64>,
    /// The delays of all other survivors, seconds, ascending.
    pub others_s: Vec<f64>,
    /// Steps per second of the survivors after each kill over those before, ascending.
    pub ratios: Vec<f64>,
}

/// Judges the kills at `kills_s` by the lives that survived them; `faults_s` are all faults.
pub(super) fn aftermath(kills_s: &[f64], faults_s: &[f64], recoveries: &[Recovery]) -> Aftermath {
    let mut aftermath = Aftermath::default();
    for kill_s in kills_s {
        let near = |fault: &&f64| (*fault - kill_s).abs() < WINDOW_S;
        if faults_s.iter().filter(near).count() > 1 {
            continue;
        }
        let mut felt: Vec<Felt> =
            recoveries.iter().filter_map(|recovery| recovery.felt(*kill_s)).collect();
        felt.sort_by(|a, b| a.extra_s.total_cmp(&b.extra_s));
        let Some(worst) = felt.pop() else { continue };
        aftermath.kills += 1;
        aftermath.worst_s.push(worst.extra_s);
        aftermath.others_s.extend(felt.iter().map(|felt| felt.extra_s));
        aftermath.ratios.extend(felt.iter().chain([&worst]).map(|felt| felt.ratio));
    }
    for numbers in [&mut aftermath.worst_s, &mut aftermath.others_s, &mut aftermath.ratios] {
        numbers.sort_by(f64::total_cmp);
    }
    aftermath
}

impl fmt::Display for Aftermath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let middle = |numbers: &[f64]| numbers.get(numbers.len() / 2).copied().unwrap_or(0.0);
        let most = |numbers: &[f64]| numbers.last().copied().unwrap_or(0.0);
        write!(
            formatter,
            "{} kills apart from other faults: the survivor held up most {:.2} s (median; most \
             {:.2} s), the others {:.2} s (most {:.2} s), step rate after over before {:.3} \
             (median; least {:.3})",
            self.kills,
            middle(&self.worst_s),
            most(&self.worst_s),
            middle(&self.others_s),
            most(&self.others_s),
            middle(&self.ratios),
            self.ratios.first().copied().unwrap_or(0.0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report every 100 ms, 10 steps each, but none for `hold` seconds after second 20.
    fn recovery(hold: f64) -> Recovery {
        let mut recovery = Recovery::default();
        for tenth in 0..400_u32 {
            let at_s = f64::from(tenth) / 10.0;
            if at_s <= 20.0 || at_s >= 20.0 + hold {
                let step = u64::from(tenth) * 10;
                recovery.push(Beat { at_s, step });
            }
        }
        recovery
    }

    #[test]
    fn the_survivor_held_up_most_and_the_others_are_told_apart() {
        let recoveries = [recovery(2.05), recovery(0.0), recovery(0.45)];
        let after = aftermath(&[20.05], &[20.05, 3.0], &recoveries);
        assert_eq!((after.kills, after.others_s.len(), after.ratios.len()), (1, 2, 3));
        assert!((after.worst_s[0] - 2.0).abs() < 1e-9, "{after:?}");
        assert!(after.others_s[0] < 1e-9 && (after.others_s[1] - 0.4).abs() < 1e-9, "{after:?}");
        assert!(after.ratios.iter().all(|ratio| (ratio - 1.0).abs() < 0.02), "{after:?}");
    }

    #[test]
    fn kills_among_other_faults_and_lives_that_did_not_see_them_tell_nothing() {
        assert_eq!(aftermath(&[20.0], &[20.0, 23.0], &[recovery(0.0)]).kills, 0);
        assert_eq!(aftermath(&[38.0], &[38.0], &[recovery(0.0)]).kills, 0);
        assert_eq!(aftermath(&[3.0], &[3.0], &[recovery(0.0)]).kills, 0);
    }
}
