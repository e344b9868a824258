//! The commands that hand out tickets: to a file that nobody else can read, or to standard output.

use std::io::{self, Write as _};
use std::path::Path;

use super::making::not_made;
use super::{Failure, print};
use crate::cli::Invite;
use crate::membership;
use crate::tools::members::{self, Wanted};

pub(super) fn invite(flags: &Invite) -> Result<(), Failure> {
    let Invite { role, expires, uses, further, address, data_dir, out } = flags;
    let wanted =
        Wanted { role: *role, expires, uses: *uses, further: *further, addresses: address };
    let (ticket, told) = members::invite(data_dir, &wanted)?;
    // Standard output has the ticket alone, for another program.
    let _ = writeln!(io::stderr(), "{told}");
    let has = "the invitation; whoever has it may join";
    hand_out(&ticket, out.as_deref(), (has, "dnode invite --out FILE"))
}

pub(super) fn make_ticket(file: Option<&Path>) -> Result<(), Failure> {
    let ticket = membership::fresh_ticket().to_text();
    hand_out(&ticket, file, ("the ticket; whoever has it is a member", "dnode ticket FILE"))
}

/// Writes a ticket to a new file, or else to standard output. `has`: what the file has then. `instead`:
/// what to do where others may read the file that standard output is.
fn hand_out(
    ticket: &str,
    file: Option<&Path>,
    (has, instead): (&str, &str),
) -> Result<(), Failure> {
    let text = format!("{ticket}\n");
    let Some(file) = file else {
        if membership::others_may_read(&io::stdout()) {
            let warning = format!(
                "warning: others on this machine may read the file with this secret: `chmod 600` it, or use {instead}"
            );
            let _ = writeln!(io::stderr(), "{warning}");
        }
        return print(&text);
    };
    membership::write_new(file, &text).map_err(not_made(file))?;
    print(&format!("{} has {has}\n", file.display()))
}
