//! The columns of the list of peers: as many as fit.

use crate::telemetry::view::{Peer, UNKNOWN, figure, measure, span};

/// Largest width of a column of texts, characters.
const TEXT_WIDTH_MAX: u16 = 32;

/// A column of the list.
pub(super) struct Column {
    /// Its heading.
    pub(super) name: &'static str,
    /// Its width in characters.
    pub(super) width: u16,
    /// Its text for a peer, given the index of the peer in the list.
    pub(super) value: fn(&Peer, usize) -> String,
    /// Where there is no room for all columns, those with the smallest ranks are shown.
    rank: u8,
}

const fn column(
    name: &'static str,
    (rank, width): (u8, u16),
    value: fn(&Peer, usize) -> String,
) -> Column {
    Column { name, width, value, rank }
}

/// Every column, from left to right. A column of width 0 becomes as wide as its texts.
const ALL: [Column; 16] = [
    column("peer", (0, 0), |peer, _| {
        if peer.name.is_empty() { peer.short.clone() } else { peer.name.clone() }
    }),
    column("id", (1, 6), |peer, _| peer.short.clone()),
    column("state", (0, 10), |peer, _| peer.state.name().to_owned()),
    column("notes", (2, 0), |peer, _| peer.notes.join(", ")),
    column(
        "heard",
        (3, 7),
        |peer, index| if index == 0 { "here".to_owned() } else { span(peer.age_s) },
    ),
    column("step", (4, 7), |peer, _| peer.position.to_string()),
    column("commits", (7, 7), |peer, _| peer.commits.to_string()),
    column("loss", (0, 9), |peer, _| known(peer.loss)),
    column("held-out", (6, 9), |peer, _| known(peer.held_out)),
    column("samples/s", (0, 9), |peer, _| figure(peer.samples_per_s)),
    column("distance", (5, 8), |peer, _| known(peer.distance)),
    column("memory", (9, 8), |peer, _| memory(peer)),
    column("sent", (8, 8), |peer, _| measure(peer.sent_bytes as f64, "B")),
    column("host", (10, 0), |peer, _| peer.host.clone()),
    column("device", (11, 0), |peer, _| peer.device.clone()),
    column("busiest link", (12, 0), |peer, _| {
        peer.links.first().map_or_else(String::new, |link| link.path.clone())
    }),
];

/// The columns that fit in `room` characters.
pub(super) fn columns(peers: &[Peer], room: u16) -> Vec<Column> {
    let mut shown: Vec<(usize, Column)> = ALL.into_iter().enumerate().collect();
    for (_, column) in &mut shown {
        if column.width == 0 {
            let widest = peers.iter().map(|peer| (column.value)(peer, 1).chars().count()).max();
            let widest = u16::try_from(widest.unwrap_or(0)).unwrap_or(u16::MAX).min(TEXT_WIDTH_MAX);
            // A column without any text is not shown.
            column.width = if widest == 0 { 0 } else { widest.max(column.name.len() as u16) };
        }
    }
    shown.retain(|(_, column)| column.width > 0);
    shown.sort_by_key(|(_, column)| column.rank);
    let mut used = 0;
    shown.retain(|(_, column)| {
        let fits = column.rank == 0 || used + column.width < room;
        used += if fits { column.width + 1 } else { 0 };
        fits
    });
    shown.sort_by_key(|(index, _)| *index);
    shown.into_iter().map(|(_, column)| column).collect()
}

/// The heading of the list.
pub(super) fn title(peers: usize, first: usize, room: usize) -> String {
    if peers <= room {
        return format!("peers ({peers})");
    }
    format!("peers ({} to {} of {peers})", first + 1, (first + room).min(peers))
}

fn known(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), figure)
}

fn memory(peer: &Peer) -> String {
    if peer.memory_bytes == 0 { UNKNOWN.to_owned() } else { measure(peer.memory_bytes as f64, "B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(room: u16) -> Vec<&'static str> {
        let text = str::to_owned;
        let peer =
            Peer { name: text("gpu-7"), short: text("abc123"), host: text("h"), ..Peer::default() };
        columns(&[peer], room).iter().map(|column| column.name).collect()
    }

    #[test]
    fn a_wide_terminal_shows_more_columns_and_a_narrow_one_the_most_needed() {
        assert_eq!(names(39), ["peer", "state", "loss", "samples/s"]);
        assert_eq!(names(1), names(39));
        assert_eq!(names(60), ["peer", "id", "state", "heard", "step", "loss", "samples/s"]);
        let all = names(200);
        assert!(all.contains(&"host") && !all.contains(&"device") && !all.contains(&"notes"));
        assert!(all.windows(2).all(|pair| {
            let at = |name| ALL.iter().position(|column| column.name == name);
            at(pair[0]) < at(pair[1])
        }));
    }

    #[test]
    fn a_list_that_does_not_fit_says_what_is_seen() {
        assert_eq!(title(3, 0, 9), "peers (3)");
        assert_eq!(title(50, 10, 9), "peers (11 to 19 of 50)");
    }
}
