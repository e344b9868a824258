//! What this peer holds against others, kept in the data directory: a peer that is killed and starts again
//! goes on to leave out whom it had left out. Decision: docs/adr/0052.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dnode_gossip::{Trust, Verdict, Verdicts};
use dnode_network::unix_s;
use dnode_protocol::{PeerId, RunId};

use crate::storage::data_dir::{read, write_atomic};
use crate::storage::told_once::ToldOnce;

/// Name of the file in the data directory. Its first line names the run, and when it was written; then come
/// the lines of [`Verdicts::to_text`].
pub(crate) const VERDICTS_FILE: &str = "verdicts";
/// What the first line begins with: the form of the file.
const HEAD: &str = "dnode verdicts 1";
/// Time between two looks at what is held against others.
const LOOK: Duration = Duration::from_secs(1);
/// Least time between two writes of the file. What has changed since is lost in a crash.
const PAUSE: Duration = Duration::from_secs(5);

/// What makes another file of it: how much a neighbour's numbers count, how often it was left out, and how
/// many of its differences were refused. Evidence moves with every exchange, and is written along.
type Mark = (PeerId, Trust, u32, u32);

/// The file of verdicts.
#[derive(Debug)]
pub(crate) struct VerdictStore {
    file: PathBuf,
    run: RunId,
    /// What is in the file.
    known: Vec<Mark>,
    /// When to look next.
    next: Instant,
    once: ToldOnce,
}

impl VerdictStore {
    /// Reads what an earlier start has kept, and how long ago that was. A file that cannot be used is passed
    /// over, and told.
    pub(crate) fn load(folder: &Path, run: RunId) -> (Self, Verdicts, Duration) {
        Self::load_at(folder, run, unix_s())
    }

    fn load_at(folder: &Path, run: RunId, unix_s: u64) -> (Self, Verdicts, Duration) {
        let file = folder.join(VERDICTS_FILE);
        let text = read(&file).map_err(|error| error.to_string());
        let found = text.and_then(|text| match text {
            Some(text) => decode(&text, run).map_err(str::to_owned),
            None => Ok((Verdicts::default(), unix_s)),
        });
        let (verdicts, written) = found.unwrap_or_else(|why| {
            tracing::warn!(
                file = %file.display(),
                "cannot use what is kept of verdicts: {why}; whom this peer had left out is trusted again"
            );
            (Verdicts::default(), unix_s)
        });
        // A wall clock may have gone back: no time has passed then.
        let passed = Duration::from_secs(unix_s.saturating_sub(written));
        let known = marks(&verdicts);
        (Self { file, run, known, next: Instant::now(), once: ToldOnce::new() }, verdicts, passed)
    }

    /// Looks whether there is news when it is time, and writes it.
    pub(crate) fn tick(&mut self, now: Instant, verdicts: impl FnOnce() -> Verdicts) {
        if now < self.next {
            return;
        }
        let verdicts = verdicts();
        let news = marks(&verdicts) != self.known;
        if news {
            self.write(&verdicts, unix_s());
        }
        self.next = now + if news { PAUSE } else { LOOK };
    }

    /// Writes what is held at the end of the process. A peer that never held anything leaves no file.
    pub(crate) fn end(&mut self, verdicts: &Verdicts) {
        if !self.known.is_empty() || !verdicts.held.is_empty() {
            self.write(verdicts, unix_s());
        }
    }

    fn write(&mut self, verdicts: &Verdicts, unix_s: u64) {
        let text = encode(verdicts, self.run, unix_s);
        let written = write_atomic(&self.file, text.as_bytes(), 0o600);
        let tell = |error| tracing::warn!(%error, "cannot keep whom this peer leaves out");
        if self.once.note(written, tell) {
            self.known = marks(verdicts);
        }
    }
}

fn marks(verdicts: &Verdicts) -> Vec<Mark> {
    let mark = |it: &Verdict| (it.peer, it.trust, it.left_out, it.outliers);
    let mut marks: Vec<Mark> = verdicts.held.iter().map(mark).collect();
    marks.sort_by_key(|(peer, ..)| *peer);
    marks
}

fn encode(verdicts: &Verdicts, run: RunId, unix_s: u64) -> String {
    format!("{HEAD} run={run} written={unix_s}\n{}", verdicts.to_text())
}

/// The verdicts of this run, and when they were written.
fn decode(text: &str, run: RunId) -> Result<(Verdicts, u64), &'static str> {
    let damaged = "the file is damaged";
    let (head, lines) = text.split_once('\n').ok_or(damaged)?;
    let head = head.strip_prefix(HEAD).ok_or("the file is none of this version's, or damaged")?;
    let (of, written) = head.split_once(" written=").ok_or(damaged)?;
    if of.strip_prefix(" run=").ok_or(damaged)? != run.to_string() {
        return Err("the file is of another run");
    }
    let written = written.parse().map_err(|_| damaged)?;
    let verdicts = Verdicts::from_text(lines).ok_or(damaged)?;
    // A number has other spellings, `+007` for one, which nothing here writes.
    if encode(&verdicts, run, written) != text {
        return Err(damaged);
    }
    Ok((verdicts, written))
}

#[cfg(test)]
mod tests {
    use dnode_protocol::{RunField, RunSpec};
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    fn run(name: &str) -> RunId {
        let field = RunField { name: "seed".into(), value: name.into() };
        RunSpec::new(vec![field]).unwrap().id()
    }

    fn verdict(index: u8, trust: Trust) -> Verdict {
        let peer = PeerId::from_public_key([index; 32]);
        let (evidence, times) = (6.5, f64::from(index) / 7.0);
        let (outliers, left_out, rounds, passes, joined, life) = (3, 1, 17, 0, 0, 65537);
        Verdict { peer, trust, evidence, times, outliers, left_out, rounds, passes, joined, life }
    }

    #[test]
    fn made_files_are_of_this_run_and_written_so_or_refused() {
        let texts = [verdicts(), Verdicts::default()].map(|it| encode(&it, run("1"), 1_000));
        dnode_mutate::check_made_inputs(&texts, 4000, |bytes| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            if let Ok((verdicts, written)) = decode(text, run("1")) {
                assert_eq!(encode(&verdicts, run("1"), written), text);
            }
        });
    }

    fn verdicts() -> Verdicts {
        let held = vec![verdict(1, Trust::LeftOut), verdict(2, Trust::WeighedDown)];
        Verdicts { round_time: Duration::from_millis(40), held }
    }

    #[test]
    fn what_is_held_is_found_by_the_next_start_and_no_time_passes_where_the_clock_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(VERDICTS_FILE);
        let (mut store, none, _) = VerdictStore::load_at(folder.path(), run("a"), 1000);
        assert_eq!(none, Verdicts::default());
        store.end(&none);
        assert!(!file.exists(), "nothing was ever held against anybody");
        store.write(&verdicts(), 1000);
        for (now, passed) in [(1000, 0), (1090, 90), (400, 0), (u64::MAX, u64::MAX - 1000)] {
            let (_, found, since) = VerdictStore::load_at(folder.path(), run("a"), now);
            assert_eq!((found, since), (verdicts(), Duration::from_secs(passed)), "{now}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        let (mut store, ..) = VerdictStore::load_at(folder.path(), run("a"), 1000);
        store.end(&Verdicts::default());
        let (_, found, _) = VerdictStore::load_at(folder.path(), run("a"), 1000);
        assert_eq!(found, Verdicts::default(), "all were let in again");
    }

    #[test]
    fn news_are_written_at_once_and_then_after_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, ..) = VerdictStore::load_at(folder.path(), run("a"), 0);
        let now = store.next;
        let written = || VerdictStore::load_at(folder.path(), run("a"), 0).1.held.len();
        store.tick(now, Verdicts::default);
        assert!(!folder.path().join(VERDICTS_FILE).exists());
        store.tick(now + LOOK, verdicts);
        assert_eq!(written(), 2);
        let more = || {
            let mut verdicts = verdicts();
            verdicts.held.push(verdict(3, Trust::LeftOut));
            verdicts
        };
        store.tick(now + LOOK + PAUSE / 2, more);
        assert_eq!(written(), 2, "a moment later is soon enough");
        store.tick(now + LOOK + PAUSE, more);
        assert_eq!(written(), 3);
    }

    #[test]
    fn what_is_damaged_too_long_or_of_another_run_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(VERDICTS_FILE);
        let sound = encode(&verdicts(), run("a"), 1000);
        let found = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            VerdictStore::load_at(folder.path(), run("a"), 2000).1
        };
        assert_eq!(found(sound.as_bytes()), verdicts());
        let other = encode(&verdicts(), run("b"), 1000);
        let long = format!("{sound}{}", sound.repeat(8000));
        let spelled = sound.replacen("=1000", "=+1000", 1);
        let (cut, more) = (&sound[..sound.len() - 1], &format!("{sound}\n"));
        for text in ["", "\n", &other, &long, cut, more, &spelled] {
            assert_eq!(found(text.as_bytes()), Verdicts::default(), "{text:.200}");
        }
        // Whatever is done to the bytes, nothing but a list in its one form is read.
        for seed in 0..2000 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut bytes = sound.clone().into_bytes();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Ok((read, written)) = decode(&text, run("a")) {
                assert_eq!(encode(&read, run("a"), written), text, "seed {seed}");
            }
        }
        // A folder of that name is no file.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let (mut store, read, _) = VerdictStore::load_at(folder.path(), run("a"), 2000);
        assert_eq!(read, Verdicts::default());
        store.end(&verdicts());
    }
}
