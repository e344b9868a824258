//! Where the command line finds a ticket: in its first word, a file, standard input or the environment.

use std::io::{self, BufRead, Read as _};
use std::path::Path;

use dnode_protocol::limits::TICKET_TEXT_BYTES_MAX;
use dnode_protocol::membership::{TICKET_PREFIX, Ticket};

use crate::config::Config;
use crate::peer::membership::{MembershipError, SECRET_VARIABLE, parse_ticket, read_ticket_file};

/// Most bytes of a line with a ticket, with room for what does not belong there.
const LINE_BYTES_MAX: u64 = TICKET_TEXT_BYTES_MAX as u64 + 64;
/// Letters and digits behind the prefix from which a word is a ticket: the secret alone has more.
const TICKET_LETTERS_MIN: usize = 20;

/// Whether a word is a ticket or says where one is, and no address.
pub(super) fn names_ticket(word: &str) -> bool {
    word == "-" || word.starts_with('@') || word.starts_with(TICKET_PREFIX)
}

/// The first line of `from` alone: whoever writes it may hold the pipe open, so that this process ends with it.
fn first_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `text` in which no ticket can be read: what a person has typed at the wrong place is shown as it is else.
pub(crate) fn without_tickets(text: &str) -> String {
    let mut parts = text.split(TICKET_PREFIX);
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|character: char| !character.is_ascii_alphanumeric());
        let (word, rest) = part.split_at(end.unwrap_or(part.len()));
        // Shorter words may be names of hosts.
        let shown = if word.len() < TICKET_LETTERS_MIN { word } else { "…" };
        told.extend([TICKET_PREFIX, shown, rest]);
    }
    told
}

/// The ticket that `word` is or names: itself, `@FILE`, or `-` for standard input. Without a word, what
/// the environment holds, unless the configuration names a file. An empty variable does not count.
///
/// # Errors
/// [`MembershipError`]; no secret is shown.
pub(super) fn ticket(
    word: Option<&str>,
    config: &Config,
) -> Result<Option<Ticket>, MembershipError> {
    match word {
        None if config.network.secret_file.is_some() => Ok(None),
        None => match std::env::var(SECRET_VARIABLE) {
            Ok(text) if !text.is_empty() => parse_ticket(&text, SECRET_VARIABLE).map(Some),
            Ok(_) | Err(_) => Ok(None),
        },
        Some("-") => {
            let place = "standard input".to_owned();
            let text = first_line(&mut io::stdin().lock());
            let text =
                text.map_err(|reason| MembershipError::Read { place: place.clone(), reason })?;
            parse_ticket(&text, &place).map(Some)
        }
        Some(word) => match word.strip_prefix('@') {
            Some(file) => read_ticket_file(Path::new(file)).map(Some),
            None => parse_ticket(word, "the command line").map(Some),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ticket_is_told_and_hosts_are() {
        let ticket = format!("{TICKET_PREFIX}{}", "Vj4k".repeat(20));
        let told = without_tickets(&format!("node.ui = \"{ticket}\" in --ui, {ticket}"));
        assert_eq!(told, "node.ui = \"dnode1…\" in --ui, dnode1…");
        let host = "no peer at /dns4/dnode1/tcp/1 or dnode12";
        assert_eq!(without_tickets(host), host);
    }

    #[test]
    fn a_ticket_is_one_line_whatever_follows() {
        let mut from: &[u8] = b"dnode1abc\nmore";
        assert_eq!(first_line(&mut from).unwrap(), "dnode1abc\n");
        assert_eq!(from, b"more");
        assert_eq!(first_line(&mut &b"dnode1abc"[..]).unwrap(), "dnode1abc");
    }
}
