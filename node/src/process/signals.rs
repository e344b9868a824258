//! Handles Ctrl-C and SIGTERM. The first signal asks for an orderly end. The second ends the process at
//! once and says what is lost.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use crate::storage::checkpoint_lag;

/// Exit status after the second signal: what shells report for an interrupted process.
pub const INTERRUPTED: u8 = 130;

/// How long the process waits after the second signal for its last line to be written.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// Listens to SIGINT and SIGTERM. The receiver turns `true` at the first one; at the second the
/// process exits with [`INTERRUPTED`].
///
/// Signals are waited for on a thread of their own, so the second one works however busy or stuck
/// the rest of the process is.
///
/// # Errors
/// When the operating system refuses the thread or the handlers.
pub fn listen() -> io::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            signals.next().await;
            // This comes before the log line, because the end must not depend on standard error.
            stop.send_replace(true);
            tracing::info!("stopping; once more to exit at once");
            signals.next().await;
            tell_what_is_lost();
            end_at_once();
        });
    })?;
    Ok(stopped)
}

/// Ends the process without what libraries have to do at its end. They would take down what other threads
/// still compute with: libtorch on a device ends such a process by a segmentation fault.
#[expect(unsafe_code, reason = "the standard library has no way to leave that out")]
fn end_at_once() -> ! {
    // SAFETY: the process is gone after the call, whatever its threads are doing.
    unsafe { libc::_exit(i32::from(INTERRUPTED)) }
}

/// Says what is lost with this process, if that can be said at once.
fn tell_what_is_lost() {
    let (told, done) = mpsc::channel::<()>();
    // This has a thread of its own, because the end must not depend on standard error.
    let tell = thread::Builder::new().spawn(move || {
        for lost in checkpoint_lag::of_this_process() {
            tracing::warn!("leaving now; {lost}");
        }
        drop(told);
    });
    if tell.is_ok() {
        let _ = done.recv_timeout(LAST_WORDS_MAX);
    }
}

/// Ends this process in good order, as the first SIGTERM does, when standard input closes: a
/// program that starts peers holds the other end, so that none outlives it.
///
/// # Errors
/// When the operating system refuses the thread.
#[cfg(unix)]
pub fn end_with_stdin() -> io::Result<()> {
    thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        // What is written there does not matter; an error has the same effect as its end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    })?;
    Ok(())
}

/// Standard input cannot be followed on this system.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn end_with_stdin() -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) {
        self.0.recv().await;
    }
}
