//! The log of the process, on its way to Python's `logging`: a bounded queue that a Python thread empties.
//!
//! No thread of dnode waits for Python. When nobody empties the queue its lines are counted and dropped.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, TryLockError};
use std::time::Duration;

use dnode::console::Console;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Most lines that wait for Python.
const LINES_MAX: usize = 4096;
/// Python's numbers of levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;
const ERROR: u8 = 40;

type Line = (u8, String, String);

struct Queue {
    lines: SyncSender<Line>,
    taken: Mutex<Receiver<Line>>,
    dropped: AtomicU64,
}

static QUEUE: LazyLock<Queue> = LazyLock::new(|| {
    let (lines, taken) = sync_channel(LINES_MAX);
    Queue { lines, taken: Mutex::new(taken), dropped: AtomicU64::new(0) }
});

impl Queue {
    fn push(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits for a line of the log for so many seconds. There is one reader; another one gets nothing.
pub(crate) fn next(seconds: f64) -> Option<Line> {
    let dropped = QUEUE.dropped.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        let text = format!("{dropped} lines of the log were lost: nobody read them in time");
        return Some((WARNING, "dnode".to_owned(), text));
    }
    let taken = match QUEUE.taken.try_lock() {
        Ok(taken) => taken,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let wait = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    taken.recv_timeout(wait).ok()
}

/// Sends all events of this process to the queue, as the variable `RUST_LOG` filters them. The program `dnode`
/// of the package has a log of its own, so a node starts this one and no import does.
pub(crate) fn start() {
    let (filter, problem) = dnode::log::filter();
    let form = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_level(false)
        .with_target(false)
        .without_time()
        .with_writer(ToQueue);
    // A second node of the process changes nothing.
    if form.try_init().is_ok()
        && let Some(problem) = problem
    {
        tracing::warn!("{problem}");
    }
}

/// Where a node says what is for persons, as lines of the log.
pub(crate) fn console() -> Console {
    Console::new(Box::new(Entry { level: INFO, target: "dnode" }), false)
}

struct ToQueue;

impl<'a> MakeWriter<'a> for ToQueue {
    type Writer = Entry;

    fn make_writer(&'a self) -> Entry {
        Entry { level: INFO, target: "dnode" }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Entry {
        let level = match *of.level() {
            Level::ERROR => ERROR,
            Level::WARN => WARNING,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => DEBUG,
        };
        Entry { level, target: if of.target().starts_with("dnode") { "dnode" } else { "other" } }
    }
}

/// Takes whole lines.
#[derive(Debug)]
struct Entry {
    level: u8,
    target: &'static str,
}

impl Write for Entry {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            QUEUE.push((self.level, self.target.to_owned(), line.to_owned()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
