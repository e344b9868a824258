//! The `dnode` program: flags to configuration, configuration to a running peer.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use dnode::cli::{Cli, Command, Join, fault};
use dnode::config::{ConfigError, file_text, reference_markdown, reference_text};
use dnode::console::Console;
use dnode::data_dir::{DataDir, DataDirError};
use dnode::identity::Identity;

/// Exit status of a wrong command line or configuration.
const USAGE: u8 = 2;

/// Why the program ends early; each is told in one line.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("cannot write {what}: {reason}")]
    Write { what: String, reason: io::Error },
}

impl Failure {
    const fn status(&self) -> u8 {
        match self {
            Self::Config(_) => USAGE,
            Self::DataDir(_) | Self::Write { .. } => 1,
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            return print(&error.render().to_string())
                .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = io::stderr().write_all(error.render().to_string().as_bytes());
            return ExitCode::from(USAGE);
        }
        Err(error) => return fail(&fault(&error), USAGE),
    };
    let result = match cli.command {
        Command::Join(join) => run(&join),
        Command::Config { markdown: true } => print(&reference_markdown()),
        Command::Config { markdown: false } => print(&reference_text()),
        Command::Id { data_dir } => id(&data_dir),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure.to_string(), failure.status()),
    }
}

fn run(join: &Join) -> Result<(), Failure> {
    let config = join.settings()?.resolve()?;
    if let Some(path) = &join.save_config {
        std::fs::write(path, file_text(&config))
            .map_err(|reason| Failure::Write { what: path.display().to_string(), reason })?;
    }
    let console = Console::stderr();
    dnode::log::start(config.node.log_format, &console);
    let dir = DataDir::open(&config.node.data_dir)?;
    let identity = Identity::load_or_create(&dir)?;
    tracing::info!(peer = %identity.peer(), incarnation = dir.incarnation(), "starting");
    Ok(())
}

fn id(folder: &Path) -> Result<(), Failure> {
    // A running peer holds the lock; reading its name needs none.
    let identity = match Identity::load(folder)? {
        Some(identity) => identity,
        None => Identity::load_or_create(&DataDir::open(folder)?)?,
    };
    print(&format!("{}\n", identity.peer()))
}

fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        // `dnode config | head` is no fault.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => {
            other.map_err(|reason| Failure::Write { what: "standard output".to_owned(), reason })
        }
    }
}

fn fail(text: &str, status: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {text}");
    ExitCode::from(status)
}
