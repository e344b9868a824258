//! What a person sees while a variant runs: one live table on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Body, Line, STEPS_DONE, config_integer};
use crate::report::units;

/// Time between two drawings of the table.
const REDRAW: Duration = Duration::from_millis(250);
/// Time between two plain lines.
const PLAIN: Duration = Duration::from_secs(5);
/// Peers shown in the table, so that it fits a terminal of 24 lines.
const ROWS_MAX: usize = 18;

/// The newest numbers of one peer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgressView {
    /// Steps made.
    pub step: u64,
    /// Where it stands in the run, in steps; more than its own when it has come back.
    pub position: u64,
    /// Steps to make, once the peer has said so.
    pub steps: Option<u64>,
    /// Training loss of the last report, in nats.
    pub loss: Option<f64>,
    /// Samples per second of the last report; at the end those of the whole run, while it trained.
    pub samples_per_s: f64,
    /// Connected peers.
    pub peers: u64,
    /// Largest clock lag seen, in commits.
    pub staleness: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Held-out accuracy of the last evaluation, in `[0, 1]`.
    pub accuracy: Option<f64>,
    /// Whether a final line was read that says that all steps were made.
    pub finished: bool,
    /// The step at which the peer was killed, until it comes back.
    pub killed_at: Option<u64>,
    /// How often it has come back.
    pub returns: usize,
}

impl ProgressView {
    /// Takes over what a line says.
    pub fn apply(&mut self, line: &Line) {
        let at = line.stamp;
        self.step = self.step.max(at.step);
        self.position = self.position.max(at.position);
        match &line.body {
            Body::Start(start) => self.steps = config_integer(&start.config, "run", "steps"),
            Body::Train(train) => {
                self.loss = Some(train.loss);
                self.samples_per_s = train.samples_per_s;
                self.peers = train.peers;
                self.staleness = train.staleness;
                self.bytes_out = train.bytes_out;
            }
            Body::Evaluate(evaluate) => self.accuracy = evaluate.accuracy,
            Body::Staleness(_) | Body::Shares(_) | Body::Event(_) => {}
            Body::Final(end) => {
                self.finished = end.reason == STEPS_DONE;
                self.accuracy = end.accuracy;
                self.bytes_out = end.bytes_out;
                // The whole run's, without waiting and mixing at its end, in the place of the last
                // report's. Samples of earlier lives took none of this one's time.
                if self.returns == 0 && end.train_s > 0.0 {
                    self.samples_per_s = units::to_f64(at.samples) / end.train_s;
                }
            }
        }
    }

    /// Whether it trains, or has trained.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.step > 0 || self.finished || self.killed_at.is_some() || self.returns > 0
    }

    /// It starts again after it was killed.
    pub fn return_from_death(&mut self) {
        (self.killed_at, self.returns) = (None, self.returns + 1);
    }

    fn state(&self) -> &'static str {
        if self.killed_at.is_some() {
            "killed"
        } else if self.finished {
            "done"
        } else if self.step == 0 {
            "starting"
        } else {
            "training"
        }
    }
}

/// Share of a run that is done, in percent, for whoever shows many runs at once.
pub type Done = Rc<Cell<u64>>;

/// Where progress goes and in which form.
pub struct Progress {
    out: Box<dyn Write>,
    done: Option<Done>,
    live: bool,
    drawn_rows: usize,
    last: Option<Instant>,
    title: String,
    begun: Instant,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { live, title, .. } = self;
        write!(formatter, "Progress {{ live: {live}, title: {title:?} }}")
    }
}

impl Progress {
    /// Progress on the standard output: live if that is a terminal.
    pub fn stdout() -> Self {
        Self::new(Box::new(io::stdout()), io::stdout().is_terminal())
    }

    /// Progress into `out`; `live` redraws a table in place with terminal codes.
    pub fn new(out: Box<dyn Write>, live: bool) -> Self {
        let (drawn_rows, last, begun) = (0, None, Instant::now());
        Self { out, done: None, live, drawn_rows, last, title: String::new(), begun }
    }

    /// Progress that only keeps `done` up to date.
    pub fn quiet(done: Done) -> Self {
        Self { done: Some(done), ..Self::new(Box::new(io::sink()), false) }
    }

    /// A new variant begins.
    pub fn begin(&mut self, title: String) {
        self.title = title;
        self.drawn_rows = 0;
        self.begun = Instant::now();
        // A table appears at once; a plain line waits until there is something to say.
        self.last = (!self.live).then_some(self.begun);
    }

    /// Shows the peers, if enough time has passed since the last showing.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn show(&mut self, views: &[ProgressView]) -> io::Result<()> {
        if let Some(done) = &self.done {
            done.set(percent_done(views));
            return Ok(());
        }
        let pause = if self.live { REDRAW } else { PLAIN };
        if self.last.is_some_and(|last| last.elapsed() < pause) {
            return Ok(());
        }
        self.show_now(views)
    }

    /// Shows the peers.
    ///
    /// # Errors
    /// The output is closed or full.
    pub fn show_now(&mut self, views: &[ProgressView]) -> io::Result<()> {
        self.last = Some(Instant::now());
        if self.live {
            self.draw(views)
        } else {
            let line = plain_line(&self.title, self.begun.elapsed(), views);
            writeln!(self.out, "{line}")?;
            self.out.flush()
        }
    }

    fn draw(&mut self, views: &[ProgressView]) -> io::Result<()> {
        let table = table(&self.title, self.begun.elapsed(), views);
        if self.drawn_rows > 0 {
            // Cursor up, then erase to the end of the screen.
            write!(self.out, "\x1b[{}A\x1b[J", self.drawn_rows)?;
        }
        self.drawn_rows = table.lines().count();
        self.out.write_all(table.as_bytes())?;
        self.out.flush()
    }
}

/// Share of all steps that is done, in percent; 0 while unknown. Killed peers do not count.
fn percent_done(views: &[ProgressView]) -> u64 {
    let alive = views.iter().filter(|view| view.killed_at.is_none());
    let (mut done, mut all) = (0, 0);
    for view in alive {
        let Some(steps) = view.steps else { return 0 };
        done += view.step.min(steps);
        all += steps;
    }
    (100 * done).checked_div(all).unwrap_or(0)
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

fn table(title: &str, elapsed: Duration, views: &[ProgressView]) -> String {
    let mut text = format!(
        "{title}: {} % after {}\n",
        percent_done(views),
        units::seconds(elapsed.as_secs_f64())
    );
    let _ = writeln!(
        text,
        "{:>4} {:>9} {:>8} {:>9} {:>9} {:>5} {:>5} {:>9}  state",
        "peer", "step", "loss", "accuracy", "samples/s", "peers", "stale", "sent"
    );
    for (index, view) in views.iter().take(ROWS_MAX).enumerate() {
        let _ = writeln!(
            text,
            "{index:>4} {:>9} {:>8} {:>9} {:>9.0} {:>5} {:>5} {:>9}  {}",
            view.step,
            number(view.loss, 4),
            number(view.accuracy.map(|share| 100.0 * share), 2),
            view.samples_per_s,
            view.peers,
            view.staleness,
            units::bytes(view.bytes_out),
            view.state(),
        );
    }
    if views.len() > ROWS_MAX {
        let _ = writeln!(text, "     … and {} more", views.len() - ROWS_MAX);
    }
    text
}

fn plain_line(title: &str, elapsed: Duration, views: &[ProgressView]) -> String {
    let steps = views.iter().map(|view| view.step);
    let losses: Vec<f64> = views.iter().filter_map(|view| view.loss).collect();
    let mean = losses.iter().sum::<f64>() / units::to_f64(losses.len() as u64);
    let speed: f64 = views.iter().map(|view| view.samples_per_s).sum();
    let sent: u64 = views.iter().map(|view| view.bytes_out).sum();
    format!(
        "{title}: {} % after {}, steps {}..{}, loss {}, {speed:.0} samples/s, staleness {}, sent {}",
        percent_done(views),
        units::seconds(elapsed.as_secs_f64()),
        steps.clone().min().unwrap_or(0),
        steps.max().unwrap_or(0),
        number((!losses.is_empty()).then_some(mean), 4),
        views.iter().map(|view| view.staleness).max().unwrap_or(0),
        units::bytes(sent),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(step: u64) -> ProgressView {
        ProgressView {
            step,
            steps: Some(200),
            loss: Some(0.5),
            samples_per_s: 1000.0,
            bytes_out: 1_500_000,
            ..ProgressView::default()
        }
    }

    #[test]
    fn a_plain_line_sums_the_peers_up() {
        let line = plain_line("variant", Duration::from_secs(3), &[view(50), view(150)]);
        assert_eq!(
            line,
            "variant: 50 % after 3.0 s, steps 50..150, loss 0.5000, 2000 samples/s, staleness 0, \
             sent 3.0 MB"
        );
    }

    #[test]
    fn the_table_fits_eighty_columns_and_has_a_row_per_peer() {
        let mut killed = view(60);
        killed.killed_at = Some(60);
        let text = table("variant", Duration::from_secs(3), &[view(200), killed]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("killed") && text.starts_with("variant: 100 % after"), "{text}");
        let many = vec![view(1); ROWS_MAX + 3];
        assert!(table("variant", Duration::ZERO, &many).contains("… and 3 more"));
    }

    #[test]
    fn a_peer_that_said_nothing_yet_is_shown_as_starting() {
        let text = table("variant", Duration::ZERO, &[ProgressView::default()]);
        assert!(text.contains("starting") && text.contains("0 % after"), "{text}");
    }
}
