//! What an audit log says of each peer, as a table, and its verdicts and removals, a sentence each.

use std::time::{Duration, UNIX_EPOCH};

use dnode_audit::{Account, Accounts, Entry, Local, Record, Trust};
use dnode_protocol::PeerId;

use crate::progress::Significant;

/// The last second that has a date of four digits for its year.
const TIME_MAX_S: u64 = 253_402_300_799;
const HEAD: [&str; 12] = [
    "peer",
    "name",
    "way",
    "from",
    "until",
    "samples",
    "share",
    "mixed",
    "influence",
    "shortened",
    "refused",
    "verdicts",
];

/// So many of something.
pub(super) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A time of the machine's clock.
fn time(unix_ms: u64) -> String {
    let since = Duration::from_secs((unix_ms / 1000).min(TIME_MAX_S));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// A row for each peer: the own one first, then by influence.
pub(super) fn table(accounts: &Accounts) -> String {
    let sums = Sums::of(accounts);
    let mut peers: Vec<_> = accounts.peers().collect();
    peers.sort_by(|(_, one), (_, other)| {
        other.moved.get().total_cmp(&one.moved.get()).then(other.samples.cmp(&one.samples))
    });
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(accounts.own().map(|(peer, account)| row(&peer.short(), account, &sums, true)));
    rows.extend(peers.iter().map(|(peer, account)| row(&peer.short(), account, &sums, false)));
    rows.extend(accounts.others().map(|account| row("others", account, &sums, false)));
    let widths: [usize; HEAD.len()] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// What the shares are of.
struct Sums {
    samples: f64,
    moved: f64,
}

impl Sums {
    fn of(accounts: &Accounts) -> Self {
        let others = accounts.peers().map(|(_, account)| account).chain(accounts.others());
        let own = accounts.own().map_or(0, |(_, account)| account.samples);
        let nothing = Self { samples: own as f64, moved: 0.0 };
        others.fold(nothing, |sums, account| Self {
            samples: sums.samples + account.samples as f64,
            moved: sums.moved + account.moved.get(),
        })
    }
}

fn row(peer: &str, account: &Account, sums: &Sums, own: bool) -> [String; HEAD.len()] {
    let share = |part: f64, whole: f64| {
        if whole > 0.0 { format!("{:.1} %", 100.0 * part / whole) } else { "-".to_owned() }
    };
    let of_others = |number: u64| if own { "-".to_owned() } else { number.to_string() };
    let way = account.way.map_or("-", |way| way.name());
    let until = if account.here { "here".to_owned() } else { time(account.last_ms) };
    [
        peer.to_owned(),
        if account.name.as_str().is_empty() { "-" } else { account.name.as_str() }.to_owned(),
        if own { "itself" } else { way }.to_owned(),
        time(account.first_ms),
        until,
        account.samples.to_string(),
        share(account.samples as f64, sums.samples),
        of_others(account.contributions),
        if own { "-".to_owned() } else { share(account.moved.get(), sums.moved) },
        of_others(account.shortened),
        of_others(account.refused),
        verdicts(account),
    ]
}

/// By which invitations peers came, a line each; nothing in a run without owners.
pub(super) fn invitations(accounts: &Accounts) -> String {
    let mut text = String::new();
    for (peer, account) in accounts.peers() {
        let Some(by) = &account.by else { continue };
        let (number, issuer, role) = (by.number.as_str(), by.issuer.short(), by.role.as_str());
        let peer = peer.short();
        text += &format!("  {peer} by invitation {number} of {issuer}, role {role}\n");
    }
    if text.is_empty() { text } else { format!("how they came in:\n{text}") }
}

/// Settings on one line.
pub(super) fn settings(local: &Local) -> String {
    let pairs = local.fields.iter();
    let pairs = pairs.map(|(name, value)| format!("{}={}", name.as_str(), value.as_str()));
    pairs.collect::<Vec<_>>().join(" ")
}

/// What became of a peer.
fn verdicts(account: &Account) -> String {
    let mut told = Vec::new();
    if account.trust != Trust::Trusted {
        told.push(account.trust.name().to_owned());
    }
    for (times, what) in [
        (account.weighed_down, "weighed down"),
        (account.left_out, "left out"),
        (account.offences, "offence"),
        (account.denied, "denied"),
        (account.snapshots, "snapshots"),
    ] {
        if times > 0 {
            told.push(format!("{what} {times}x"));
        }
    }
    if told.is_empty() { "-".to_owned() } else { told.join(", ") }
}

/// The sentence of a verdict, a removal or a refusal; `None` for other lines.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other lines are no verdicts")]
pub(super) fn verdict(record: &Record, accounts: &Accounts) -> Option<String> {
    let named = |peer: &PeerId| {
        let mut accounts = accounts.peers();
        let account = accounts.find(|(other, _)| *other == peer);
        let name = account.map(|(_, account)| account.name.as_str()).filter(|it| !it.is_empty());
        name.map_or_else(|| peer.short(), |name| format!("{} ({name})", peer.short()))
    };
    let text = match &record.entry {
        Entry::Judged(judged) => {
            let mut text = format!("{} is {}: ", named(&judged.peer), judged.trust.name());
            text += judged.why.as_str();
            let (length, most) = (judged.length.get(), judged.most.get());
            if most > 0.0 {
                text += &format!(
                    " ({} times the own weights, at most {})",
                    Significant(length),
                    Significant(most)
                );
            } else if length > 0.0 {
                text += &format!(" ({} times as long)", Significant(length));
            }
            text
        }
        Entry::Offended(offended) => {
            format!("{} broke the rules: {}", named(&offended.peer), offended.what.as_str())
        }
        Entry::Denied(denied) => {
            let (field, ours, theirs) =
                (denied.field.as_str(), denied.ours.as_str(), denied.theirs.as_str());
            let who = if denied.by_us { "was refused" } else { "refused this peer" };
            format!(
                "{} {who}: {field} is \"{ours}\" here and \"{theirs}\" there",
                named(&denied.peer)
            )
        }
        Entry::Revoked(revoked) => {
            let by = revoked.issuer.short();
            match &revoked.peer {
                // As owners say it of owners, of whom enough have to.
                Some(peer) if revoked.until_s == u64::MAX => {
                    format!("{by} has said that {} is out for good", named(peer))
                }
                Some(peer) => format!("{} was removed by {by}", named(peer)),
                None => format!("invitation {} was revoked by {by}", revoked.invitation.as_str()),
            }
        }
        Entry::Expelled(expelled) => {
            format!("this peer is no member any more: {}", expelled.why.as_str())
        }
        _ => return None,
    };
    Some(format!("{} {text}", time(record.unix_ms)))
}
