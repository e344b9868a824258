//! Logs: `tracing` events on standard error, for persons or as JSON.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::time::SystemTime;

use crate::config::LogFormat;
use crate::process::console::Console;
use crate::telemetry::progress::Significant;

/// What is logged unless `RUST_LOG` says otherwise: state changes of dnode's crates, whose names all
/// begin with this prefix, and warnings of other crates. Of the parts of libp2p named here only errors
/// are logged. dnode reports itself what they warn of, or it is no trouble: a first peer knows no
/// others, and a neighbour's address may not answer.
pub const FILTER: &str =
    "warn,dnode=info,libp2p_kad=error,libp2p_relay=error,libp2p_autonat=error,libp2p_dcutr=error";

/// What is logged, as `RUST_LOG` says it, and a warning where that cannot be read: then it is [`FILTER`].
#[must_use]
pub fn filter() -> (String, Option<String>) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let wanted = wanted.unwrap_or_else(|| FILTER.to_owned());
    match EnvFilter::try_new(&wanted) {
        Ok(_) => (wanted, None),
        Err(error) => {
            let warning = format!("RUST_LOG cannot be read ({error}); using \"{FILTER}\"");
            (FILTER.to_owned(), Some(warning))
        }
    }
}

/// Sends the events of this process to `console`. A filter in `RUST_LOG` that cannot be read is
/// ignored with a warning. A second call changes nothing.
pub fn start(format: LogFormat, console: &Console) {
    let (filter, problem) = filter();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(SystemTime)
        .with_writer(console.clone());
    let started = match format {
        LogFormat::Human => {
            let builder = builder.with_ansi(console.is_terminal()).with_target(false);
            builder.fmt_fields(Readable).try_init().is_ok()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init().is_ok(),
    };
    if started && let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
}

/// Writes fields for a person: numbers have as many digits as mean something.
#[derive(Debug)]
struct Readable;

impl<'writer> FormatFields<'writer> for Readable {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut rounding = Rounding(DefaultVisitor::new(writer, true));
        fields.record(&mut rounding);
        rounding.0.finish()
    }
}

struct Rounding<'writer>(DefaultVisitor<'writer>);

impl Visit for Rounding<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.record_debug(field, &format_args!("{}", Significant(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.0.record_error(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::console::tests::Buffer;

    #[test]
    fn persons_read_rounded_numbers_and_programs_all_digits() {
        let logged = |json: bool| {
            let buffer = Buffer::default();
            let console = Console::new(Box::new(buffer.clone()), false);
            let builder = tracing_subscriber::fmt().with_writer(console).with_ansi(false);
            let say = || tracing::info!(loss = 2.491_838_159_561_157, step = 7, "words");
            if json {
                let collector = builder.json().flatten_event(true).finish();
                tracing::subscriber::with_default(collector, say);
            } else {
                tracing::subscriber::with_default(builder.fmt_fields(Readable).finish(), say);
            }
            buffer.text()
        };
        let (human, json) = (logged(false), logged(true));
        assert!(human.contains("words loss=2.4918 step=7"), "{human}");
        assert!(json.contains("\"loss\":2.491838159561157"), "{json}");
    }

    #[test]
    fn peers_write_no_warnings_into_the_log() {
        let filter = EnvFilter::try_new(FILTER).unwrap().to_string();
        for directive in ["libp2p_autonat=error", "libp2p_relay=error", "dnode=info", "warn"] {
            assert!(filter.split(',').any(|part| part == directive), "{filter}");
        }
    }
}
