//! A share of a core for each process, by the control groups of the kernel.
//!
//! A machine with fewer cores than peers runs them as if each had a slower machine of its own: a
//! peer with half a core does not run faster when another waits. A peer with a quarter of the
//! others' share is four times slower.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time in which a process may use its share. Short, so that a peer that has used it answers soon.
const PERIOD_US: u64 = 10_000;
/// The least that the kernel grants in a period.
const QUOTA_MIN_US: u64 = 1_000;

/// How the name of a group begins.
const PREFIX: &str = "dnode-testnet-";
/// Groups of this process, counted so that each has a name of its own.
static GROUPS: AtomicU64 = AtomicU64::new(0);

/// The hierarchy that can limit processor time.
#[derive(Clone, Debug)]
pub struct Quotas {
    root: PathBuf,
    /// Whether it is the unified hierarchy.
    unified: bool,
}

/// One process held to its share; the group is removed when this is dropped after its end.
#[derive(Debug)]
pub struct Limited(PathBuf);

impl Quotas {
    /// The hierarchy of this machine.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn find() -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let found = Self::at(root);
        let quotas = found.ok_or("no control group of the kernel limits processor time here")?;
        quotas.sweep();
        let probe = quotas.group(1.0).map_err(|error| format!("a control group: {error}"))?;
        drop(probe);
        Ok(quotas)
    }

    fn at(root: &Path) -> Option<Self> {
        let single = root.join("cpu");
        if single.join("cpu.cfs_quota_us").exists() {
            return Some(Self { root: single, unified: false });
        }
        let controllers = std::fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        let limits = controllers.split_whitespace().any(|name| name == "cpu");
        limits.then(|| Self { root: root.to_owned(), unified: true })
    }

    /// Holds process `id`, just started, to `share` cores, in `(0, 1]`.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn limit(&self, id: u32, share: f64) -> io::Result<Limited> {
        let group = self.group(share)?;
        std::fs::write(group.0.join("cgroup.procs"), id.to_string())?;
        Ok(group)
    }

    /// Removes groups that killed harnesses have left: whose process is gone, and theirs.
    fn sweep(&self) {
        if !Path::new("/proc/self").exists() {
            return;
        }
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let Some((harness, _)) = name.and_then(|name| name.split_once('-')) else { continue };
            if !Path::new("/proc").join(harness).exists() {
                // A group in use is busy, and stays.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }

    fn group(&self, share: f64) -> io::Result<Limited> {
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join(format!("{PREFIX}{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        let group = Limited(path);
        let (period, quota) = period(share);
        if self.unified {
            std::fs::write(group.0.join("cpu.max"), format!("{quota} {period}"))?;
        } else {
            std::fs::write(group.0.join("cpu.cfs_period_us"), period.to_string())?;
            std::fs::write(group.0.join("cpu.cfs_quota_us"), quota.to_string())?;
        }
        Ok(group)
    }
}

/// Period and quota, microseconds: a longer period where the quota would be less than the least.
fn period(share: f64) -> (u64, u64) {
    let period = Duration::from_micros(PERIOD_US).mul_f64(
        (Duration::from_micros(QUOTA_MIN_US).as_secs_f64()
            / (share * Duration::from_micros(PERIOD_US).as_secs_f64()))
        .max(1.0),
    );
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    (micros(period), micros(period.mul_f64(share)).max(QUOTA_MIN_US))
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A group whose process is not gone yet stays, empty soon; it does no harm.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shares_have_longer_periods() {
        assert_eq!(period(0.4), (10_000, 4_000));
        assert_eq!(period(0.05), (20_000, 1_000));
    }

    #[test]
    fn a_share_is_set_and_taken_back_where_the_kernel_can() {
        let quotas = match Quotas::find() {
            Ok(quotas) => quotas,
            Err(why) => return println!("not tested: {why}"),
        };
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let limited = quotas.limit(sleeper.id(), 0.25).unwrap();
        let path = limited.0.clone();
        let held = std::fs::read_to_string(path.join("cgroup.procs")).unwrap();
        assert_eq!(held.trim(), sleeper.id().to_string());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        drop(limited);
        assert!(!path.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn groups_of_harnesses_that_are_gone_are_swept_and_those_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let gone = root.path().join(format!("{PREFIX}{}-0", u32::MAX));
        let own = root.path().join(format!("{PREFIX}{}-0", std::process::id()));
        let other = root.path().join("user.slice");
        for path in [&gone, &own, &other] {
            std::fs::create_dir(path).unwrap();
        }
        Quotas { root: root.path().to_owned(), unified: true }.sweep();
        assert_eq!([&gone, &own, &other].map(|path| path.exists()), [false, true, true]);
    }
}
