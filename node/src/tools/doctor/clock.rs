//! Checks the wall clock: it decides nothing in a run, but logs of several machines are compared by it.

use std::path::Path;
use std::time::SystemTime;

use super::finding::Finding;

const CHECK: &str = "clock";

/// Files that time services leave behind once they have set the clock: systemd-timesyncd, chrony, ntpd.
const MARKS: [&str; 3] =
    ["/run/systemd/timesync/synchronized", "/run/chrony/chronyd.pid", "/run/ntpd.pid"];

/// Checks whether the clock can be right, and whether a time service keeps it so.
pub(super) fn clock() -> Finding {
    let program = std::env::current_exe().and_then(|path| path.metadata()?.modified());
    let mark = MARKS.into_iter().find(|mark| Path::new(mark).exists());
    judge(SystemTime::now(), program.ok(), mark)
}

/// `program`: when the file of this program was written.
fn judge(now: SystemTime, program: Option<SystemTime>, mark: Option<&str>) -> Finding {
    const HARMLESS: &str = "no decision of a run depends on it";
    if program.is_some_and(|program| now < program) {
        let found = format!("the clock is before the time of this program's file; {HARMLESS}");
        let advice = "set the clock, else the logs of several machines cannot be compared: `timedatectl set-ntp true`";
        return Finding::warn(CHECK, found, advice);
    }
    match mark {
        Some(mark) => Finding::ok(CHECK, format!("kept by a time service ({mark}); {HARMLESS}")),
        None => Finding::ok(CHECK, format!("no time service found here; {HARMLESS}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn only_an_impossible_clock_is_a_fault() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let later = Some(now + Duration::from_secs(1));
        assert_eq!(judge(now, later, None).verdict, Verdict::Warn);
        assert_eq!(judge(now, Some(now), None).verdict, Verdict::Ok);
        assert!(judge(now, None, Some("/run/x")).found.contains("(/run/x)"));
    }
}
