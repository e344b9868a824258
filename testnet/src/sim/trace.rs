//! The trace: one line for each event, hashed, and written to a file on request.

use std::fmt;
use std::io::{self, Write};

/// Where the lines go.
#[derive(Default)]
pub struct Trace {
    hasher: Option<Box<blake3::Hasher>>,
    file: Option<Box<dyn Write>>,
    line: String,
    failed: Option<io::Error>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("on", &self.is_on()).finish_non_exhaustive()
    }
}

impl Trace {
    /// No trace: formatting a line costs more than most events.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Hashes the lines.
    #[must_use]
    pub fn hashed() -> Self {
        Self { hasher: Some(Box::default()), ..Self::default() }
    }

    /// Hashes the lines and writes them.
    #[must_use]
    pub fn written(file: Box<dyn Write>) -> Self {
        Self { file: Some(file), ..Self::hashed() }
    }

    /// Whether lines are wanted.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.hasher.is_some()
    }

    /// Adds a line; the line break is added here.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        let Some(hasher) = &mut self.hasher else {
            return;
        };
        self.line.clear();
        // Writing to a string cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.line, text);
        self.line.push('\n');
        hasher.update(self.line.as_bytes());
        if let Some(file) = &mut self.file
            && self.failed.is_none()
            && let Err(error) = file.write_all(self.line.as_bytes())
        {
            self.failed = Some(error);
        }
    }

    /// The hash of all lines; `None` when the trace is off.
    ///
    /// # Errors
    /// The first error of writing the file.
    pub fn finish(mut self) -> io::Result<Option<blake3::Hash>> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if let Some(file) = &mut self.file {
            file.flush()?;
        }
        Ok(self.hasher.map(|hasher| hasher.finalize()))
    }
}
