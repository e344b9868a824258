//! Where the command line finds a ticket: in its first word, a file, standard input or the environment.

use std::io;
use std::path::Path;

use dnode_protocol::membership::{TICKET_PREFIX, Ticket};

use crate::config::Config;
use crate::peer::membership::{
    MembershipError, SECRET_VARIABLE, parse_ticket, read_ticket, read_ticket_file,
};

/// Whether a word is a ticket or says where one is, and no address.
pub(super) fn names_ticket(word: &str) -> bool {
    word == "-" || word.starts_with('@') || word.starts_with(TICKET_PREFIX)
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
            let text = read_ticket(io::stdin().lock());
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
