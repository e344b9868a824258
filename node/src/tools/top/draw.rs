//! The screen: draws a snapshot in the room that there is.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Bar, BarChart, Block, Cell, Chart, Dataset, Gauge, GraphType, List, Paragraph, Row, Table,
};

use super::columns::{columns, title};
use super::source::{Curves, News};
use super::text::cleaned;
use crate::telemetry::view::{
    Peer, Snapshot, State, UNKNOWN, ends, figure, measure, percent, span,
};

/// Colours of curves that a terminal can tell apart.
const COLORS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::Red];
/// Least number of rows of a terminal with room for curves, histogram and events.
const ROWS_FOR_ALL: u16 = 22;
/// Least number of columns of a terminal with room for them beside each other.
const COLUMNS_FOR_ALL: u16 = 70;
/// Rows that curves, histogram and events have at least where there is room for them.
const ROWS_OF_PLOTS: u16 = 9;
/// Rows of the table that show no peer: two of the frame, and the names of the columns.
const ROWS_OF_FRAME: u16 = 3;
/// Losses at or below this value are drawn at this value, because the scale is logarithmic.
const LOSS_LEAST: f64 = 1e-6;

/// What is on the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    snapshot: Option<Box<Snapshot>>,
    curves: Curves,
    trouble: Option<String>,
    /// The first peer that is visible in the list, and how many peers fit on the screen.
    first: usize,
    room: usize,
}

impl Screen {
    pub(super) fn take(&mut self, told: News) {
        match told {
            Ok((snapshot, curves)) => {
                self.snapshot = Some(cleaned(snapshot));
                self.curves = curves;
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    /// Scrolls the list of peers, at most until its end is visible.
    pub(super) fn scroll(&mut self, lines: isize) {
        self.first = self.first.saturating_add_signed(lines).min(self.last_first());
    }

    /// The first visible peer when the end of the list is visible.
    fn last_first(&self) -> usize {
        let peers = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.peers.len());
        peers.saturating_sub(self.room.max(1))
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let Some(peers) = self.snapshot.as_ref().map(|snapshot| snapshot.peers.len()) else {
            let text = self.trouble.as_deref().unwrap_or("asking the peer");
            return frame.render_widget(Paragraph::new(text), frame.area());
        };
        let area = frame.area();
        let whole = area.height >= ROWS_FOR_ALL && area.width >= COLUMNS_FOR_ALL;
        // The list takes the rows that it needs; the plots take the rest.
        let rest = area.height.saturating_sub(5);
        let wanted = u16::try_from(peers).unwrap_or(u16::MAX).saturating_add(ROWS_OF_FRAME);
        let list = if whole { wanted.min(rest.saturating_sub(ROWS_OF_PLOTS)) } else { rest };
        self.room = usize::from(list.saturating_sub(ROWS_OF_FRAME));
        self.first = self.first.min(self.last_first());
        let rows = [
            Constraint::Length(4),
            Constraint::Length(list),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let areas = Layout::vertical(rows).areas(area);
        self.parts(frame, areas, whole);
    }

    fn parts(&self, frame: &mut Frame<'_>, [head, table, middle, foot]: [Rect; 4], whole: bool) {
        let Some(snapshot) = &self.snapshot else { return };
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
        let name = Span::styled(format!("dnode {} {} ", node.name, node.short), Modifier::BOLD);
        frame.render_widget(Line::from(vec![name, state, rest.into()]), title);
        let living = snapshot.peers.iter().filter(|peer| is_living(peer)).count();
        let rate: f64 = snapshot
            .peers
            .iter()
            .filter(|peer| is_living(peer))
            .map(|peer| peer.samples_per_s)
            .sum();
        let accuracy = progress.evaluated.map_or_else(String::new, |evaluated| {
            let said = |what, number: Option<String>| {
                number.map_or_else(String::new, |number| format!(" · {what} {number}"))
            };
            let accuracy = said("accuracy", evaluated.accuracy.map(percent));
            said("held-out", evaluated.loss.map(figure)) + &accuracy
        });
        let text = format!(
            "{living} peers · loss {}{accuracy} · {} of {} samples/s",
            known(progress.loss),
            figure(progress.samples_per_s),
            figure(rate),
        );
        frame.render_widget(Line::from(text), numbers);
        let apart = snapshot.consensus.map_or_else(
            || "distance unknown".to_owned(),
            |consensus| format!("distance {} of the norm", figure(consensus.relative)),
        );
        let text = format!(
            "lag {} · {apart} · waited {} · ↑ {} ↓ {}",
            progress.staleness,
            span(progress.wait_s),
            measure(traffic.sent_bytes_per_s, "B/s"),
            measure(traffic.received_bytes_per_s, "B/s"),
        );
        frame.render_widget(Line::from(text), more);
        let part = if node.steps == 0 { 0.0 } else { progress.position as f64 / node.steps as f64 };
        let label = format!("step {} of {}", progress.position, node.steps);
        let gauge = Gauge::default().ratio(part.clamp(0.0, 1.0)).label(label);
        frame.render_widget(gauge.gauge_style(Color::Blue).use_unicode(true), bar);
    }

    fn losses(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let known = snapshot.peers.iter().filter_map(|peer| {
            let curve = self.curves.get(&peer.id)?;
            let point = |(at, loss): &(f64, f64)| (*at, loss.max(LOSS_LEAST).log10());
            Some((color_of(peer), curve.iter().map(point).collect()))
        });
        let curves: Vec<(Color, Vec<(f64, f64)>)> = known.collect();
        let points = || curves.iter().flat_map(|(_, curve)| curve);
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
        let sets = curves.iter().map(|(color, curve)| {
            let set = Dataset::default().data(curve).marker(Marker::Braille);
            set.graph_type(GraphType::Line).style(*color)
        });
        let dim = Style::default().add_modifier(Modifier::DIM);
        let steps = ends(x[0].round(), x[1].round());
        let losses = ends(10_f64.powf(y[0]), 10_f64.powf(y[1]));
        let chart = Chart::new(sets.collect())
            .block(block)
            .x_axis(Axis::default().bounds(x).labels(steps).style(dim))
            .y_axis(Axis::default().bounds(y).labels(losses).style(dim));
        frame.render_widget(chart, area);
    }

    fn peers(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        let shown = columns(&snapshot.peers, area.width.saturating_sub(2));
        let rows = snapshot.peers.iter().enumerate().skip(self.first).map(|(index, peer)| {
            Row::new(shown.iter().map(|column| {
                let cell = Cell::from((column.value)(peer, index));
                match column.name {
                    "peer" => cell.style(color_of(peer)),
                    "state" => cell.style(color(peer.state)),
                    _ => cell,
                }
            }))
        });
        let widths = shown.iter().map(|column| Constraint::Length(column.width));
        let header = Row::new(shown.iter().map(|column| column.name)).style(Modifier::BOLD);
        let title = title(snapshot.peers.len(), self.first, self.room);
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
        let detail = event.detail.as_str();
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

const fn color_of(peer: &Peer) -> Color {
    COLORS[peer.color as usize % COLORS.len()]
}

fn known(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), figure)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::telemetry::view::{Event, NodeFacts};

    fn screen(peers: usize) -> Screen {
        let peer = |index: usize| Peer {
            id: format!("{index:016x}"),
            short: format!("id{index}"),
            name: format!("peer{index}"),
            color: u32::try_from(index).unwrap(),
            notes: if index == 1 { vec!["left out\x1b[2J".to_owned()] } else { Vec::new() },
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
        let node = NodeFacts { name: "peer0\x07".to_owned(), steps: 10, ..NodeFacts::default() };
        let peers: Vec<Peer> = (0..peers).map(peer).collect();
        let curve = |peer: &Peer| (peer.id.clone(), vec![(0.0, 2.0), (5.0, 0.5)]);
        let curves = peers.iter().map(curve).collect();
        let snapshot = Snapshot { node, peers, events: vec![event], ..Snapshot::default() };
        let mut screen = Screen::default();
        screen.take(Ok((Box::new(snapshot), curves)));
        screen
    }

    fn text(screen: &mut Screen, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_usual_terminal_shows_all_and_a_small_one_the_peers() {
        let mut screen = screen(3);
        let whole = text(&mut screen, (100, 30));
        for part in ["dnode peer0", "loss of all peers", "peer-up", "peers (3)", "suspected", "8+"]
        {
            assert!(whole.contains(part), "{part}\n{whole}");
        }
        assert!(!whole.contains('\x1b'));
        let small = text(&mut screen, (60, 12));
        assert!(small.contains("peer2") && !small.contains("loss of all peers"), "{small}");
    }

    #[test]
    fn every_size_can_be_drawn() {
        for peers in [1, 300] {
            let mut screen = screen(peers);
            for width in [1, 2, 10, 69, 70, 200] {
                for height in [1, 2, 5, 21, 22, 60] {
                    text(&mut screen, (width, height));
                    screen.scroll(3);
                }
            }
            screen.scroll(1000);
            text(&mut screen, (80, 24));
        }
        let mut lost = Screen::default();
        lost.take(Err(super::super::SourceError::Address("x".to_owned())));
        assert!(text(&mut lost, (80, 3)).contains("read the address"));
    }

    #[test]
    fn the_list_of_peers_moves_within_its_ends() {
        let mut screen = screen(50);
        text(&mut screen, (80, 24));
        screen.scroll(-5);
        assert_eq!(screen.first, 0);
        screen.scroll(10);
        assert!(!text(&mut screen, (80, 24)).contains("peer9 "));
        screen.scroll(isize::MAX);
        let end = text(&mut screen, (80, 24));
        assert!(end.contains("peer49 ") && screen.first == 50 - screen.room, "{end}");
        // A taller terminal shows more peers, and no empty lines at the end of the list.
        let tall = text(&mut screen, (80, 60));
        assert!(tall.contains("peer49 ") && tall.contains("peer10 "), "{tall}");
    }

    #[test]
    fn nobody_scrolls_away_while_there_is_room() {
        let mut screen = screen(3);
        for height in [22, 30, 60] {
            text(&mut screen, (100, height));
            screen.scroll(10);
            let shown = text(&mut screen, (100, height));
            for name in ["peer0 ", "peer1 ", "peer2 "] {
                assert!(shown.contains(name), "{height}: {name}\n{shown}");
            }
        }
    }

    #[test]
    fn the_plots_take_the_lines_that_the_list_leaves() {
        let rows_of = |peers: usize| {
            let shown = text(&mut screen(peers), (100, 40));
            let at = |part: &str| shown.lines().position(|line| line.contains(part)).unwrap();
            (at("loss of all peers") - at("peers ("), at("q quits") - at("loss of all peers"))
        };
        assert_eq!(rows_of(3), (6, 29));
        assert_eq!(rows_of(300), (26, 9));
    }

    #[test]
    fn names_and_notes_are_shown_and_hostile_ones_do_nothing() {
        let mut screen = screen(3);
        let shown = text(&mut screen, (140, 30));
        assert!(shown.contains("left out[2J") && shown.contains("id1"), "{shown}");
        assert!(!shown.contains('\x1b') && !shown.contains('\x07'), "{shown:?}");
    }
}
