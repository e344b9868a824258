//! Standard error, shared by log lines and one progress line that stays below them.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Control sequence: erase the line and go to its start.
const ERASE: &str = "\r\x1b[2K";
/// Control sequence: cut long lines at the edge instead of wrapping them, since only one line can be
/// erased.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// Standard error. Clones share the progress line.
#[derive(Clone)]
pub struct Console {
    shared: Arc<Mutex<Shared>>,
    terminal: bool,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("terminal", &self.terminal).finish_non_exhaustive()
    }
}

struct Shared {
    out: Box<dyn Write + Send>,
    line: String,
}

impl Console {
    /// Standard error, treated as a terminal if it is one.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(Box::new(io::stderr()), io::stderr().is_terminal())
    }

    /// A console that writes to `out` and treats it as a terminal or not.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>, terminal: bool) -> Self {
        Self { shared: Arc::new(Mutex::new(Shared { out, line: String::new() })), terminal }
    }

    /// Whether it is a terminal, so that a person watches.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Shows `line` as the progress line of a terminal; an empty one removes it.
    pub fn show(&self, line: &str) {
        if !self.terminal {
            return;
        }
        let mut shared = self.lock();
        line.clone_into(&mut shared.line);
        let text = if line.is_empty() {
            ERASE.to_owned()
        } else {
            format!("{ERASE}{WRAP_OFF}{line}{WRAP_ON}")
        };
        // If standard error is gone, there is no way to report it.
        let _ = shared.out.write_all(text.as_bytes()).and_then(|()| shared.out.flush());
    }

    /// Writes lines for a person above the progress line, whether or not it is a terminal; `text` ends
    /// with a line end.
    pub fn say(&self, text: &str) {
        // If standard error is gone, there is no way to report it.
        let _ = self.clone().write_all(text.as_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Console {
    /// Writes whole lines above the progress line.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.lock();
        if shared.line.is_empty() {
            shared.out.write_all(bytes)?;
        } else {
            let mut text = ERASE.as_bytes().to_vec();
            text.extend_from_slice(bytes);
            text.extend_from_slice(format!("{WRAP_OFF}{}{WRAP_ON}", shared.line).as_bytes());
            shared.out.write_all(&text)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().out.flush()
    }
}

impl<'a> MakeWriter<'a> for Console {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A buffer that shows what a console writes.
    #[derive(Clone, Default)]
    pub(crate) struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Buffer {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_line_goes_above_the_progress_line() {
        let buffer = Buffer::default();
        let mut console = Console::new(Box::new(buffer.clone()), true);
        console.show("50 %");
        console.write_all(b"hello\n").unwrap();
        let shown = format!("{ERASE}{WRAP_OFF}50 %{WRAP_ON}");
        assert_eq!(buffer.text(), format!("{shown}{ERASE}hello\n{WRAP_OFF}50 %{WRAP_ON}"));
        console.show("");
        console.say("end\n");
        assert!(buffer.text().ends_with(&format!("{ERASE}end\n")));
    }

    #[test]
    fn where_nobody_watches_there_are_only_log_lines() {
        let buffer = Buffer::default();
        let mut console = Console::new(Box::new(buffer.clone()), false);
        console.show("50 %");
        console.write_all(b"hello\n").unwrap();
        assert_eq!(buffer.text(), "hello\n");
    }
}
