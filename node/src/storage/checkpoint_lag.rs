//! How much training would be lost if this process ended now: that since the newest checkpoint.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// All runs of this process. The second signal needs them, as signals come to the process as a whole.
static RUNS: Mutex<Vec<Weak<Mutex<State>>>> = Mutex::new(Vec::new());

/// How much of one run is not in a checkpoint yet. Clones belong to the same run.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointLag(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Local steps done.
    step: u64,
    saved: Option<Newest>,
}

/// The newest checkpoint.
#[derive(Clone, Copy, Debug)]
struct Newest {
    step: u64,
    /// When it was written; `None` for a checkpoint of an earlier start.
    when: Option<Instant>,
}

impl CheckpointLag {
    /// Begins to follow a run at `step`. Unless that is 0, the run resumes from the checkpoint of that
    /// step.
    pub(crate) fn new(step: u64) -> Self {
        let saved = (step > 0).then_some(Newest { step, when: None });
        let state = Arc::new(Mutex::new(State { step, saved }));
        let mut runs = lock(&RUNS);
        runs.retain(|run| run.strong_count() > 0);
        runs.push(Arc::downgrade(&state));
        Self(state)
    }

    /// Notes how many local steps are done.
    pub(crate) fn stepped(&self, step: u64) {
        lock(&self.0).step = step;
    }

    /// Notes that the checkpoint of this step is written.
    pub(crate) fn saved(&self, step: u64) {
        lock(&self.0).saved = Some(Newest { step, when: Some(Instant::now()) });
    }

    /// What is lost if this process ends now, in words.
    pub(crate) fn words(&self) -> String {
        words(*lock(&self.0), Instant::now())
    }
}

/// What is lost of each run of this process if it ends now, in words.
pub(crate) fn of_this_process() -> Vec<String> {
    let runs: Vec<_> = lock(&RUNS).iter().filter_map(Weak::upgrade).collect();
    runs.iter().map(|run| words(*lock(run), Instant::now())).collect()
}

fn words(State { step, saved }: State, now: Instant) -> String {
    let Some(saved) = saved else {
        return match step {
            0 => "nothing was trained yet".to_owned(),
            _ => format!("there is no checkpoint: {} of training are lost", steps(step)),
        };
    };
    let at = saved.step;
    if step <= at {
        return format!("no step is lost: the checkpoint at step {at} has them all");
    }
    let age = saved.when.map(|when| format!("{} ago, ", rounded(now.duration_since(when))));
    let (age, lost) = (age.unwrap_or_default(), steps(step - at));
    format!("training since the checkpoint at step {at} ({age}{lost}) is lost")
}

/// A number of steps in words: `3,400 steps`.
fn steps(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{text} step{}", if count == 1 { "" } else { "s" })
}

/// A duration in words: `17 min`.
fn rounded(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round();
    if seconds < 120.0 {
        format!("{seconds} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.0} h", seconds / 3600.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are plain, and consistent at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_said_with_its_steps_and_their_time() {
        let when = Instant::now();
        let said = |step, saved: Option<u64>, later| {
            let saved = saved.map(|step| Newest { step, when: Some(when) });
            words(State { step, saved }, when + Duration::from_secs(later))
        };
        assert_eq!(
            said(4600, Some(1200), 17 * 60),
            "training since the checkpoint at step 1200 (17 min ago, 3,400 steps) is lost"
        );
        assert_eq!(
            said(1201, Some(1200), 20),
            "training since the checkpoint at step 1200 (20 s ago, 1 step) is lost"
        );
        assert_eq!(
            said(1_234_567, None, 0),
            "there is no checkpoint: 1,234,567 steps of training are lost"
        );
        assert_eq!(
            said(1200, Some(1200), 3),
            "no step is lost: the checkpoint at step 1200 has them all"
        );
        assert_eq!(said(0, None, 0), "nothing was trained yet");
    }

    #[test]
    fn the_runs_of_the_process_are_known_while_they_last() {
        let run = CheckpointLag::new(7_654_321);
        run.stepped(7_654_331);
        let has = || of_this_process().iter().any(|line| line.contains("7654321 (10 steps)"));
        assert!(has(), "{:?}", of_this_process());
        run.saved(7_654_331);
        assert!(!has());
        run.stepped(7_654_332);
        assert!(run.words().contains("step 7654331 (0 s ago, 1 step)"), "{}", run.words());
        drop(run);
        assert!(!of_this_process().iter().any(|line| line.contains("7654331")));
    }
}
