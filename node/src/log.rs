//! Logs: `tracing` events on standard error, for persons or as JSON.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::config::LogFormat;
use crate::console::Console;

/// What is logged unless `RUST_LOG` says otherwise: state changes of dnode's crates (all begin
/// with this prefix), warnings of others. What these parts of libp2p warn of, dnode says itself, or it
/// is no trouble: a first peer knows no others, a neighbour's address may not answer.
const FILTER: &str =
    "warn,dnode=info,libp2p_kad=error,libp2p_relay=error,libp2p_autonat=error,libp2p_dcutr=error";

/// Sends the events of this process to `console`. A filter in `RUST_LOG` that cannot be read is
/// ignored with a warning. A second call changes nothing.
pub fn start(format: LogFormat, console: &Console) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let parsed = wanted.as_deref().map(EnvFilter::try_new);
    let (filter, problem) = match parsed {
        None => (EnvFilter::new(FILTER), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(FILTER), Some(error)),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(SystemTime)
        .with_writer(console.clone());
    let started = match format {
        LogFormat::Human => {
            builder.with_ansi(console.is_terminal()).with_target(false).try_init().is_ok()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init().is_ok(),
    };
    if started && let Some(error) = problem {
        tracing::warn!(%error, "RUST_LOG cannot be read; using \"{FILTER}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_write_no_warnings_into_the_log() {
        let filter = EnvFilter::try_new(FILTER).unwrap().to_string();
        for directive in ["libp2p_autonat=error", "libp2p_relay=error", "dnode=info", "warn"] {
            assert!(filter.split(',').any(|part| part == directive), "{filter}");
        }
    }
}
