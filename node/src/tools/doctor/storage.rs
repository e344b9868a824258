//! The data directory: whether it can be written, how fast, and whether checkpoints fit.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::finding::Finding;

const CHECK: &str = "disk";

/// Bytes that are written to measure the rate.
const TRIAL_BYTES: usize = 32 << 20;
/// Bytes that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Longest time to write; a slow disk is judged by what it has written until then.
const TRIAL_MAX: Duration = Duration::from_secs(3);
/// Longest wait for a disk that does not answer at all.
const STALLED: Duration = Duration::from_secs(15);
/// Rate below which a checkpoint takes unpleasantly long, bytes per second (a guess: that of a worn SD
/// card).
const SLOW: f64 = 10e6;
/// Tensors of a checkpoint, each as large as the model: parameters, slow weights, outer momentum,
/// two moments of the optimizer.
const TENSORS: u64 = 5;
/// Bytes that the checkpoints of so many parameters may need, of which so many are kept: one more while it is being
/// written.
pub(super) const fn checkpoints(parameters: u64, kept: u64) -> u64 {
    parameters.saturating_mul(4 * TENSORS).saturating_mul(kept.saturating_add(1))
}

/// Writes a file to `folder`, or to the nearest existing folder above it, and removes it again.
pub(super) async fn storage(folder: &Path, needed: u64) -> Finding {
    let name = folder.display().to_string();
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let existing = absolute.ancestors().find(|path| path.is_dir());
    let existing = existing.unwrap_or_else(|| Path::new("/")).to_owned();
    let trial = tokio::task::spawn_blocking(move || trial(&existing));
    let result = match tokio::time::timeout(STALLED, trial).await {
        Ok(Ok(result)) => result.map_err(|error| error.to_string()),
        Ok(Err(_)) => Err("the trial failed".to_owned()),
        Err(_) => Err(format!("it has not answered for {STALLED:?}")),
    };
    match result {
        Ok((rate, free)) => judge(&name, rate, (free, needed)),
        Err(reason) => {
            let advice = "choose a folder that can be written with --data-dir";
            Finding::fail(CHECK, format!("cannot write at {name}: {reason}"), advice)
        }
    }
}

/// Measures the bytes per second to the disk itself, and the free bytes.
fn trial(folder: &Path) -> io::Result<(f64, u64)> {
    let path = folder.join(format!(".dnode-doctor-{}", std::process::id()));
    let written = write(&path);
    // The file must not stay, whatever happened.
    let _ = std::fs::remove_file(&path);
    let space = rustix::fs::statvfs(folder)?;
    Ok((written?, space.f_bavail.saturating_mul(space.f_frsize)))
}

fn write(path: &Path) -> io::Result<f64> {
    let mut file = File::create_new(path)?;
    let chunk = vec![0x5A; CHUNK_BYTES];
    let (begin, mut bytes) = (Instant::now(), 0_usize);
    while bytes < TRIAL_BYTES && begin.elapsed() < TRIAL_MAX {
        file.write_all(&chunk)?;
        bytes += chunk.len();
    }
    file.sync_all()?;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64().max(1e-6))
}

fn judge(name: &str, rate: f64, (free, needed): (u64, u64)) -> Finding {
    let [megabytes, free_gb, needed_gb] = [rate / 1e6, free as f64 / 1e9, needed as f64 / 1e9];
    let found = format!(
        "{name}: {megabytes:.0} MB/s, {free_gb:.1} GB free; checkpoints take up to {needed_gb:.2} GB"
    );
    if free < needed {
        let advice =
            "make room, or choose another disk with --data-dir: no checkpoint would be whole";
        return Finding::fail(CHECK, found, advice);
    }
    if rate < SLOW {
        let advice = "checkpoints take long: choose a faster disk with --data-dir, or a longer node.checkpoint_interval";
        return Finding::warn(CHECK, found, advice);
    }
    Finding::ok(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_full_disk_fails_and_a_slow_one_warns() {
        let verdict = |rate, space| judge("data", rate, space).verdict;
        assert_eq!(verdict(1e9, (100, 101)), Verdict::Fail);
        assert_eq!(verdict(1e6, (101, 101)), Verdict::Warn);
        assert_eq!(verdict(1e9, (101, 101)), Verdict::Ok);
        assert_eq!((checkpoints(1000, 3), checkpoints(1000, 9)), (80_000, 200_000));
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_yet_is_judged_by_the_one_above() {
        let root = tempfile::tempdir().unwrap();
        let finding = storage(&root.path().join("a/b"), 1).await;
        assert_ne!(finding.verdict, Verdict::Fail, "{finding:?}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "nothing stays");
    }
}
