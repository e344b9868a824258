//! `dnode top`: the swarm as a running peer sees it, in the terminal.

mod columns;
mod draw;
mod source;
mod text;

use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::watch;

use crate::storage::data_dir;
use crate::telemetry::view::UI_FILE;
use draw::Screen;
pub use source::SourceError;
use source::{News, Source};

/// Longest time that a key press may wait.
const LOOK: Duration = Duration::from_millis(100);

/// Longest file with an address that is read.
const ADDRESS_BYTES_MAX: u64 = 4096;

/// Why nothing can be shown.
#[derive(thiserror::Error)]
pub enum TopError {
    /// No peer serves its page from this data directory; the person who asks is at fault.
    #[error(
        "find a running peer by {}: {reason}; start it with --ui, or name the address of its page",
        path.display()
    )]
    NotServed {
        /// The file that is not there or says no address.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Standard output is a file or a pipe; the person who asks is at fault.
    #[error("show the swarm: standard output is no terminal; programs read /api/state of the page")]
    NoTerminal,
    /// The peer does not answer.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The terminal cannot be used.
    #[error("use the terminal: {0}; the page at the same address shows more")]
    Terminal(#[from] io::Error),
}

impl TopError {
    /// Whether the person who asks is at fault (exit status 2) rather than the machine (1).
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::NotServed { .. } | Self::NoTerminal)
    }
}

/// The address of the page of the peer that runs in `folder`.
///
/// # Errors
/// [`TopError::NotServed`].
pub fn find(folder: &Path) -> Result<String, TopError> {
    let path = folder.join(UI_FILE);
    let text =
        data_dir::open(&path).and_then(|file| io::read_to_string(file.take(ADDRESS_BYTES_MAX)));
    match text {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Ok(_) => Err(TopError::NotServed { path, reason: "it is empty".to_owned() }),
        Err(error) => Err(TopError::NotServed { path, reason: error.to_string() }),
    }
}

/// Shows what the peer at `address` sees until a person quits or `stop` turns true.
///
/// # Errors
/// [`TopError`]; the terminal is as it was before.
pub fn run(address: &str, stop: &watch::Receiver<bool>) -> Result<(), TopError> {
    let source = Source::new(address)?;
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    // A peer that cannot be reached is reported before the screen is taken over.
    source.state()?;
    let news = source.follow()?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &news, stop);
    ratatui::try_restore()?;
    shown
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    news: &std::sync::mpsc::Receiver<News>,
    stop: &watch::Receiver<bool>,
) -> Result<(), TopError> {
    let mut screen = Screen::default();
    let mut changed = true;
    while !*stop.borrow() {
        match news.try_recv() {
            Ok(told) => {
                screen.take(told);
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        if changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        changed = event::poll(LOOK)?;
        if changed && !obey(&event::read()?, &mut screen) {
            return Ok(());
        }
    }
    Ok(())
}

/// Handles a key. Returns whether to go on.
fn obey(event: &Event, screen: &mut Screen) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if key.code == KeyCode::Char('c') && control {
        return false;
    }
    if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
        return false;
    }
    let moves = [
        (KeyCode::Up, -1),
        (KeyCode::Char('k'), -1),
        (KeyCode::Down, 1),
        (KeyCode::Char('j'), 1),
        (KeyCode::PageUp, -10),
        (KeyCode::PageDown, 10),
    ];
    let lines = moves.iter().find(|(code, _)| *code == key.code).map_or(0, |(_, lines)| *lines);
    screen.scroll(lines);
    true
}
