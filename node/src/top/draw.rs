//! The screen: what is shown of a snapshot, in as much room as there is.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Bar, BarChart, Block, Cell, Chart, Dataset, Gauge, GraphType, List, Paragraph, Row, Table,
};

use super::source::{Curves, News};
use crate::progress::Scaled;
use crate::view::{Peer, Snapshot, State};

/// Curves that a terminal can tell apart.
const COLORS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::Red];
/// Rows from which on there is room for curves, histogram and events.
const ROWS_FOR_ALL: u16 = 22;
/// Columns from which on they stand beside each other.
const COLUMNS_FOR_ALL: u16 = 70;
/// Losses at or below this are drawn at it: the scale is logarithmic.
const LOSS_LEAST: f64 = 1e-6;

/// What is on the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    snapshot: Option<Box<Snapshot>>,
    curves: Curves,
    trouble: Option<String>,
    first: usize,
}

impl Screen {
    pub(super) fn take(&mut self, told: News) {
        match told {
            Ok((snapshot, curves)) => {
                self.snapshot = Some(snapshot);
                self.curves = curves;
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    /// Moves the list of peers.
    pub(super) fn scroll(&mut self, lines: isize) {
        let most = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.peers.len());
        self.first = self.first.saturating_add_signed(lines).min(most.saturating_sub(1));
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(snapshot) = &self.snapshot else {
            let text = self.trouble.as_deref().unwrap_or("asking the peer");
            return frame.render_widget(Paragraph::new(text), frame.area());
        };
        let area = frame.area();
        let whole = area.height >= ROWS_FOR_ALL && area.width >= COLUMNS_FOR_ALL;
        let plots = if whole { Constraint::Percentage(40) } else { Constraint::Length(0) };
        let rows = [Constraint::Length(4), plots, Constraint::Min(3), Constraint::Length(1)];
        let [head, middle, table, foot] = Layout::vertical(rows).areas(area);
        self.head(frame, head, snapshot);
        if whole {
            let columns = [Constraint::Percentage(46), Constraint::Length(24), Constraint::Min(20)];
            let [curves, lags, events] = Layout::horizontal(columns).areas(middle);
            self.losses(frame, curves, snapshot);
            histogram(frame, lags, snapshot);
            happened(frame, events, snapshot);
        }
        self.peers(frame, table, snapshot);
        let foot_text = match &self.trouble {
            Some(trouble) => Line::styled(trouble.clone(), Color::Red),
            None => Line::styled("q quits · ↑ ↓ scroll", Modifier::DIM),
        };
        frame.render_widget(foot_text, foot);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let Snapshot { node, progress, traffic, .. } = snapshot;
        let [title, numbers, more, bar] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
        let state = Span::styled(snapshot.state.name(), color(snapshot.state));
        let rest = format!(
            " · {} · {} · run {} · up {}",
            node.model,
            node.rule,
            node.run.get(..8).unwrap_or(&node.run),
            span(snapshot.time_s)
        );
        let name = Span::styled(format!("dnode {} ", node.name), Modifier::BOLD);
        frame.render_widget(Line::from(vec![name, state, rest.into()]), title);
        let living = snapshot.peers.iter().filter(|peer| is_living(peer)).count();
        let rate: f64 = snapshot
            .peers
            .iter()
            .filter(|peer| is_living(peer))
            .map(|peer| peer.samples_per_s)
            .sum();
        let accuracy = progress.evaluated.map_or_else(String::new, |evaluated| {
            format!(" · accuracy {:.2} %", 100.0 * evaluated.accuracy)
        });
        let text = format!(
            "{living} peers · loss {}{accuracy} · {} samples/s here, {} in all",
            loss(progress.loss),
            Scaled(progress.samples_per_s),
            Scaled(rate),
        );
        frame.render_widget(Line::from(text), numbers);
        let apart = snapshot.consensus.map_or_else(
            || "distance unknown".to_owned(),
            |consensus| format!("distance {:.2e} of the norm", consensus.relative),
        );
        let text = format!(
            "lag {} · {apart} · blocked {} · ↑ {}B/s ↓ {}B/s",
            progress.staleness,
            span(progress.wait_s),
            Scaled(traffic.sent_bytes_per_s),
            Scaled(traffic.received_bytes_per_s),
        );
        frame.render_widget(Line::from(text), more);
        let part = if node.steps == 0 { 0.0 } else { progress.position as f64 / node.steps as f64 };
        let label = format!("step {} of {}", progress.position, node.steps);
        let gauge = Gauge::default().ratio(part.clamp(0.0, 1.0)).label(label);
        frame.render_widget(gauge.gauge_style(Color::Blue).use_unicode(true), bar);
    }

    fn losses(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let known = snapshot.peers.iter().filter_map(|peer| self.curves.get(&peer.id));
        let curves: Vec<Vec<(f64, f64)>> = known
            .map(|curve| {
                curve.iter().map(|(at, loss)| (*at as f64, loss.max(LOSS_LEAST).log10())).collect()
            })
            .collect();
        let points = || curves.iter().flatten();
        let block = Block::bordered().title("loss of all peers");
        if points().count() < 2 {
            return frame.render_widget(block, area);
        }
        let bounds = |values: &dyn Fn(&(f64, f64)) -> f64| {
            let least = points().map(values).fold(f64::INFINITY, f64::min);
            let most = points().map(values).fold(f64::NEG_INFINITY, f64::max);
            [least, if most > least { most } else { least + 1.0 }]
        };
        let (x, y) = (bounds(&|point| point.0), bounds(&|point| point.1));
        let sets = curves.iter().zip(COLORS.iter().cycle()).map(|(curve, color)| {
            let set = Dataset::default().data(curve).marker(Marker::Braille);
            set.graph_type(GraphType::Line).style(*color)
        });
        let dim = Style::default().add_modifier(Modifier::DIM);
        let steps = x.map(|step| Scaled(step).to_string());
        let losses = y.map(|power| loss(Some(10_f64.powf(power))));
        let chart = Chart::new(sets.collect())
            .block(block)
            .x_axis(Axis::default().bounds(x).labels(steps).style(dim))
            .y_axis(Axis::default().bounds(y).labels(losses).style(dim));
        frame.render_widget(chart, area);
    }

    fn peers(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let rows = snapshot.peers.iter().enumerate().skip(self.first).map(|(index, peer)| {
            let heard = if index == 0 { "here".to_owned() } else { span(peer.age_s) };
            let distance = peer.distance.map_or_else(|| "–".to_owned(), |far| format!("{far:.3}"));
            Row::new([
                Cell::from(peer.name.clone()),
                Cell::from(peer.state.name()).style(color(peer.state)),
                Cell::from(heard),
                Cell::from(peer.commits.to_string()),
                Cell::from(loss(peer.loss)),
                Cell::from(Scaled(peer.samples_per_s).to_string()),
                Cell::from(distance),
                Cell::from(Scaled(peer.sent_bytes as f64).to_string()),
                Cell::from(peer.links.first().map_or_else(String::new, |link| link.path.clone())),
            ])
        });
        let names = [
            "peer",
            "state",
            "heard",
            "commits",
            "loss",
            "samples/s",
            "distance",
            "sent B",
            "busiest link",
        ];
        let widths = [7, 11, 8, 9, 9, 9, 9, 7, 16].map(Constraint::Length);
        let header = Row::new(names).style(Modifier::BOLD);
        let title = format!("peers ({})", snapshot.peers.len());
        let table = Table::new(rows, widths).header(header).block(Block::bordered().title(title));
        frame.render_widget(table, area);
    }
}

fn histogram(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let mut counts = [0_u64; 9];
    for peer in &snapshot.peers {
        for (sum, count) in counts.iter_mut().zip(&peer.lags) {
            *sum = sum.saturating_add(*count);
        }
    }
    let bars: Vec<Bar<'_>> = counts
        .iter()
        .enumerate()
        .map(|(lag, count)| {
            let label = if lag == 8 { "8+".to_owned() } else { lag.to_string() };
            Bar::default().value(*count).label(Line::from(label)).text_value(String::new())
        })
        .collect();
    let chart = BarChart::vertical(bars).bar_width(2).bar_gap(0).bar_style(Color::Blue);
    frame.render_widget(chart.block(Block::bordered().title("lag of exchanges")), area);
}

fn happened(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let room = usize::from(area.height.saturating_sub(2));
    let lines = snapshot.events.iter().rev().take(room).map(|event| {
        let time = span((snapshot.time_s - event.time_s).max(0.0));
        let name = Span::styled(event.name.clone(), Modifier::BOLD);
        // Details may come from peers: nothing that moves the cursor gets through.
        let detail: String = event.detail.chars().filter(|letter| !letter.is_control()).collect();
        Line::from(vec![format!("{time:>7} ").into(), name, " ".into(), detail.into()])
    });
    frame.render_widget(List::new(lines).block(Block::bordered().title("events")), area);
}

const fn color(state: State) -> Color {
    match state {
        State::Training => Color::Blue,
        State::Exchanging => Color::Green,
        State::Joining => Color::Yellow,
        State::Finished | State::Gone => Color::DarkGray,
        State::Suspected => Color::Red,
    }
}

const fn is_living(peer: &Peer) -> bool {
    !matches!(peer.state, State::Suspected | State::Gone)
}

fn loss(loss: Option<f64>) -> String {
    match loss {
        None => "–".to_owned(),
        Some(loss) if loss != 0.0 && loss.abs() < 1e-3 => format!("{loss:.1e}"),
        Some(loss) => format!("{loss:.4}"),
    }
}

/// A span of time in a few characters.
fn span(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.1} s")
    } else if seconds < 5400.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::view::{Event, NodeFacts};

    fn screen(peers: usize) -> Screen {
        let peer = |index: usize| Peer {
            id: format!("{index:016x}"),
            name: format!("peer{index}"),
            state: if index == 1 { State::Suspected } else { State::Training },
            loss: Some(0.5),
            lags: vec![3, 1, 0],
            ..Peer::default()
        };
        let event = Event {
            name: "peer-up".to_owned(),
            detail: "somebody\x1b[2J".to_owned(),
            ..Event::default()
        };
        let node = NodeFacts { name: "peer0".to_owned(), steps: 10, ..NodeFacts::default() };
        let peers: Vec<Peer> = (0..peers).map(peer).collect();
        let curve = |peer: &Peer| (peer.id.clone(), vec![(0, 2.0), (5, 0.5)]);
        let curves = peers.iter().map(curve).collect();
        let snapshot = Snapshot { node, peers, events: vec![event], ..Snapshot::default() };
        let mut screen = Screen::default();
        screen.take(Ok((Box::new(snapshot), curves)));
        screen
    }

    fn text(screen: &Screen, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_usual_terminal_shows_all_and_a_small_one_the_peers() {
        let screen = screen(3);
        let whole = text(&screen, (100, 30));
        for part in ["dnode peer0", "loss of all peers", "peer-up", "peers (3)", "suspected", "8+"]
        {
            assert!(whole.contains(part), "{part}\n{whole}");
        }
        assert!(!whole.contains('\x1b'));
        let small = text(&screen, (60, 12));
        assert!(small.contains("peer2") && !small.contains("loss of all peers"), "{small}");
    }

    #[test]
    fn every_size_can_be_drawn() {
        for peers in [1, 300] {
            let mut screen = screen(peers);
            for width in [1, 2, 10, 69, 70, 200] {
                for height in [1, 2, 5, 21, 22, 60] {
                    text(&screen, (width, height));
                }
            }
            screen.scroll(1000);
            text(&screen, (80, 24));
        }
        let mut lost = Screen::default();
        lost.take(Err(super::super::SourceError::Address("x".to_owned())));
        assert!(text(&lost, (80, 3)).contains("read the address"));
    }

    #[test]
    fn the_list_of_peers_moves_within_its_ends() {
        let mut screen = screen(50);
        screen.scroll(-5);
        assert_eq!(screen.first, 0);
        screen.scroll(10);
        assert!(!text(&screen, (80, 24)).contains("peer9 "));
        screen.scroll(isize::MAX);
        assert_eq!(screen.first, 49);
    }
}
