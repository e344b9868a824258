//! Whether this peer's run is closed, and by which secret.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
#[cfg(unix)]
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use dnode_network::{InvitationUse, Multiaddr, NetworkConfig, role_of, unix_s};
use dnode_protocol::invitation::{ChainError, Grant, Pass, Revocation, Revocations, Role};
use dnode_protocol::limits::TICKET_TEXT_BYTES_MAX;
use dnode_protocol::membership::{Invitation, RunSecret, Ticket, TicketError};
use rand::Rng as _;

use crate::config::Config;
#[cfg(unix)]
use crate::storage::data_dir::others_may;
use crate::storage::data_dir::{DataDir, DataDirError};
use crate::storage::identity::Identity;
use crate::storage::pass::{self, OWN_REVOCATIONS_FILE, REVOCATIONS_FILE};
use crate::storage::secret;

/// The environment variable that may hold a ticket or a secret.
pub const SECRET_VARIABLE: &str = "DNODE_SECRET";

/// Why it cannot be said who may take part. The configuration is at fault; no secret is shown.
#[derive(thiserror::Error)]
pub enum MembershipError {
    /// A file with a ticket cannot be read.
    #[error(
        "cannot read the ticket in {place}: {reason}; name a file that holds what a member printed"
    )]
    Read {
        /// Where it was looked for.
        place: String,
        /// What the system says.
        reason: io::Error,
    },
    /// What was given is no ticket.
    #[error(
        "the ticket in {place} cannot be used: {error}; copy it again from a member's `ticket` file"
    )]
    Ticket {
        /// Where it came from.
        place: String,
        /// What is wrong with it.
        error: TicketError,
    },
    /// A ticket was given, and the run was to be open.
    #[error(
        "an open run has no secret: leave out --open (network.open), or the ticket, --secret-file and DNODE_SECRET"
    )]
    OpenWithSecret,
    /// The data directory is that of a closed run, and the run was to be open.
    #[error(
        "data directory {} is that of a closed run: leave out --open, or choose another with --data-dir",
        .0.display()
    )]
    WasClosed(PathBuf),
    /// The invitation does not let this machine in.
    #[error("{0}: ask an owner of the run for a new invitation, which `dnode invite` prints")]
    Invitation(ChainError),
    /// No address of a member is known.
    #[error(
        "no address of a member is known: name one with --bootstrap, or use an invitation that holds one"
    )]
    NobodyToAsk,
    /// This machine was removed from the run.
    #[error("{0}: ask an owner of the run for a new invitation, or choose another --data-dir")]
    Removed(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
}

/// The ticket or secret in a file that a person or a program has written; symbolic links are followed.
/// Where others may read it, that is told once.
///
/// # Errors
/// [`MembershipError`].
pub fn read_ticket_file(path: &Path) -> Result<Ticket, MembershipError> {
    let place = path.display().to_string();
    let failed = |reason| MembershipError::Read { place: place.clone(), reason };
    let file = File::open(path).map_err(failed)?;
    if others_may_read(&file) && !TOLD.swap(true, Ordering::Relaxed) {
        tell(&format!(
            "others on this machine may read the ticket in {place}, and whoever has it is a member: `chmod 600` it"
        ));
    }
    let text = read_ticket(file).map_err(failed)?;
    parse_ticket(&text, &place)
}

/// Whether this process has told that others may read a ticket; its files are read several times.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Warns in the log, or where there is none yet, on standard error.
fn tell(warning: &str) {
    if tracing::enabled!(tracing::Level::WARN) {
        tracing::warn!("{warning}");
    } else {
        // Nobody may read it.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
}

/// Whether it is a file that other users of the machine may read. Pipes and terminals are none.
#[cfg(unix)]
pub(crate) fn others_may_read(open: &impl AsFd) -> bool {
    let file = open.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| others_may(&file)).unwrap_or(false)
}

/// Whether it is a file that other users of the machine may read, which is not known here.
#[cfg(not(unix))]
pub(crate) fn others_may_read<T>(_open: &T) -> bool {
    false
}

/// Reads as much as a ticket may have, and a little more.
///
/// # Errors
/// What the system says.
pub fn read_ticket(from: impl io::Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(TICKET_TEXT_BYTES_MAX as u64 + 64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The ticket that `text` spells; `place` says where it came from.
///
/// # Errors
/// [`MembershipError::Ticket`].
pub fn parse_ticket(text: &str, place: &str) -> Result<Ticket, MembershipError> {
    let failed = |error| MembershipError::Ticket { place: place.to_owned(), error };
    let ticket: Ticket = text.parse().map_err(failed)?;
    addresses(&ticket).map(|_| ticket).ok_or(TicketError::Addresses).map_err(failed)
}

/// Where members may be, by a ticket; `None` when it names what is no address.
fn addresses(ticket: &Ticket) -> Option<Vec<Multiaddr>> {
    ticket.addresses().iter().map(|bytes| Multiaddr::try_from(bytes.clone()).ok()).collect()
}

/// What was given by hand: the ticket, or what the file of the configuration holds.
fn given(config: &Config, ticket: Option<Ticket>) -> Result<Option<Ticket>, MembershipError> {
    let file = config.network.secret_file.as_deref();
    let given = match (ticket, file) {
        (Some(ticket), _) => Some(ticket),
        (None, Some(file)) => Some(read_ticket_file(file)?),
        (None, None) => None,
    };
    if given.is_some() && config.network.open {
        return Err(MembershipError::OpenWithSecret);
    }
    Ok(given)
}

/// The configuration with the addresses of a ticket, or of the file that it names, as further ones to
/// begin with; and the ticket that was given by hand.
///
/// # Errors
/// [`MembershipError`].
pub(crate) fn with_ticket(
    mut config: Config,
    ticket: Option<Ticket>,
) -> Result<(Config, Option<Ticket>), MembershipError> {
    let Some(ticket) = given(&config, ticket)? else { return Ok((config, None)) };
    for address in addresses(&ticket).unwrap_or_default() {
        let text = address.to_string();
        if !config.network.bootstrap.contains(&text) {
            config.network.bootstrap.push(text);
        }
    }
    Ok((config, Some(ticket)))
}

/// The configuration with the addresses of a ticket, and the secret of the run that is to be asked: the
/// one given by hand, else the one in the data directory.
///
/// # Errors
/// [`MembershipError`].
pub fn to_ask(
    config: Config,
    ticket: Option<Ticket>,
) -> Result<(Config, Option<RunSecret>), MembershipError> {
    let (config, given) = with_ticket(config, ticket)?;
    let secret = match given {
        None if !config.network.open => secret::load(&config.node.data_dir)?,
        given => given.map(|ticket| ticket.secret().clone()),
    };
    Ok((config, secret))
}

/// What this peer may do in its run: what the invitation in the ticket says, else the one that the data
/// directory holds. Everything in a run without owners.
///
/// # Errors
/// [`MembershipError`].
pub fn role(config: &Config, ticket: Option<&Ticket>) -> Result<Role, MembershipError> {
    let folder = &config.node.data_dir;
    let given = given(config, ticket.cloned())?;
    if let Some(invitation) = given.as_ref().and_then(Ticket::invitation) {
        return Ok(role_of(invitation.pass.chain()));
    }
    let other = |given: &Ticket| Ok(secret::load(folder)?.as_ref() != Some(given.secret()));
    if given.as_ref().map_or(Ok::<_, DataDirError>(false), other)? {
        // The ticket is of another run than the data directory was.
        return Ok(Role::Train);
    }
    Ok(pass::load(folder)?.map_or(Role::Train, |pass| role_of(pass.chain())))
}

/// The secret of this peer's run; `None` when the run is open. It is kept in the data directory.
///
/// `given`: by hand. Else the data directory says what the run is. A peer that begins a run draws a
/// secret, unless the run is to be open. A peer that is told of others alone joins theirs as an open
/// one; where it is closed, they let nobody in.
///
/// # Errors
/// [`MembershipError`].
pub(super) fn settle(
    config: &Config,
    given: Option<RunSecret>,
    (dir, began): (&DataDir, bool),
) -> Result<Option<RunSecret>, MembershipError> {
    let kept = secret::load(dir.path())?;
    let secret = match (given, kept) {
        (Some(given), Some(kept)) if given == kept => Some(kept),
        (Some(given), _) => {
            secret::keep(dir, &given)?;
            Some(given)
        }
        (None, Some(_)) if config.network.open => {
            return Err(MembershipError::WasClosed(dir.path().to_owned()));
        }
        (None, Some(kept)) => Some(kept),
        (None, None) if config.network.open || began || !config.network.bootstrap.is_empty() => {
            None
        }
        (None, None) => {
            let drawn = draw();
            secret::keep(dir, &drawn)?;
            Some(drawn)
        }
    };
    if secret.is_some() {
        tracing::info!("a closed run: who has its ticket is a member");
    } else {
        tracing::info!("an open run: whoever knows an address may join it and read the model");
    }
    Ok(secret)
}

/// How this peer came into a run that has owners, and what it knows of other members.
#[derive(Debug)]
pub(super) struct Member {
    pass: Pass,
    removed: Vec<Revocation>,
    uses: Vec<InvitationUse>,
}

impl Member {
    pub(super) const fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The configuration of the network of such a member.
    pub(super) fn with(member: Option<Self>, network: NetworkConfig) -> NetworkConfig {
        match member {
            Some(Self { pass, removed: revocations, uses }) => {
                NetworkConfig { pass: Some(pass), revocations, uses, ..network }
            }
            None => network,
        }
    }
}

/// How this peer came into a run that has owners, and what it knows of other members; `None` where
/// the run has none. It is kept in the data directory. Where an invitation is given, this peer signs its
/// own name with it, once.
///
/// `secret`: that of the data directory before this start.
///
/// # Errors
/// [`MembershipError`].
pub(super) fn take_in(
    dir: &DataDir,
    identity: &Identity,
    (given, secret): (Option<&Ticket>, Option<RunSecret>),
) -> Result<Option<Member>, MembershipError> {
    let folder = dir.path();
    let others = |ticket: &&Ticket| secret.as_ref().is_some_and(|it| it != ticket.secret());
    if given.as_ref().is_some_and(others) {
        // The ticket is of another run than the data directory was.
        pass::forget(folder)?;
    }
    let kept = pass::load(folder)?;
    let pass = match (given.and_then(Ticket::invitation), kept) {
        (None, None) => return Ok(None),
        (None, Some(kept)) => kept,
        (Some(invitation), Some(kept)) if is_taken(invitation, &kept) => kept,
        (Some(invitation), _) => {
            let taken = take(invitation, identity)?;
            pass::keep(folder, &taken)?;
            taken
        }
    };
    let (now_s, me) = (unix_s(), identity.peer());
    pass.chain().verify(pass.owners(), &me, now_s).map_err(MembershipError::Invitation)?;
    let mut statements = pass::revocations(folder, REVOCATIONS_FILE)?;
    statements.extend(pass::revocations(folder, OWN_REVOCATIONS_FILE)?);
    let known = Revocations::of(statements.iter().cloned(), pass.owners(), now_s);
    if let Some(by) = known.revokes(pass.chain()) {
        let by = by.issuer().short();
        return Err(MembershipError::Removed(format!(
            "this peer was removed from the run by {by}"
        )));
    }
    Ok(Some(Member { pass, removed: statements, uses: pass::uses(folder)? }))
}

/// Whether this peer has come by that invitation before.
fn is_taken(invitation: &Invitation, kept: &Pass) -> bool {
    let number = |pass: &Pass| pass.chain().last().map(|last| last.number);
    invitation.pass.owners() == kept.owners() && number(&invitation.pass) == number(kept)
}

/// The pass of this peer, by an invitation.
fn take(invitation: &Invitation, identity: &Identity) -> Result<Pass, MembershipError> {
    let Invitation { pass, key } = invitation;
    let given = pass.chain().last().ok_or(MembershipError::Invitation(ChainError::Missing))?;
    let further = given.further.saturating_sub(1);
    let own = Grant { holder: identity.peer(), further, uses: 1, ..*given };
    let chain = pass.chain().extended(key, own).map_err(MembershipError::Invitation)?;
    Pass::new(pass.owners().to_vec(), chain).ok_or(MembershipError::Invitation(ChainError::Bytes))
}

/// A fresh secret.
pub(crate) fn draw() -> RunSecret {
    let mut bytes = [0; RunSecret::BYTES];
    rand::rng().fill_bytes(&mut bytes);
    RunSecret::from_bytes(bytes)
}

/// A ticket with a fresh secret and no address.
#[must_use]
pub fn fresh_ticket() -> Ticket {
    secret::alone(draw())
}

/// Writes `text` to a file that only this user may read, and that is not there yet; a symbolic link of
/// that name counts as there.
///
/// # Errors
/// What the system says.
pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(open: bool, bootstrap: &[&str]) -> Config {
        let mut config = Config::default();
        config.network.open = open;
        config.network.bootstrap = bootstrap.iter().map(|&it| it.to_owned()).collect();
        config
    }

    const ELSEWHERE: &str = "/ip4/192.0.2.7/udp/1/quic-v1";

    #[test]
    fn who_begins_a_run_draws_its_secret_once_and_who_joins_draws_none() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        let settle = |config: &Config, given, began| settle(config, given, (&dir, began));
        assert_eq!(settle(&config(true, &[]), None, false).unwrap(), None);
        assert_eq!(settle(&config(false, &[ELSEWHERE]), None, false).unwrap(), None);
        assert_eq!(settle(&config(false, &[]), None, true).unwrap(), None, "it was open before");
        let drawn = settle(&config(false, &[]), None, false).unwrap();
        assert!(drawn.is_some());
        let other = tempfile::tempdir().unwrap();
        let other = DataDir::open(other.path()).unwrap();
        assert_ne!(super::settle(&config(false, &[]), None, (&other, false)).unwrap(), drawn);
        // The data directory says what the run is, whatever it is started with.
        assert_eq!(settle(&config(false, &[ELSEWHERE]), None, true).unwrap(), drawn);
        let error = settle(&config(true, &[]), None, true).unwrap_err();
        assert!(matches!(error, MembershipError::WasClosed(_)));
        let given = Some(RunSecret::from_bytes([4; 32]));
        assert_eq!(settle(&config(false, &[]), given.clone(), true).unwrap(), given);
        assert_eq!(settle(&config(false, &[]), None, true).unwrap(), given, "it was kept");
    }

    #[test]
    fn a_ticket_brings_addresses_and_a_file_is_read_where_none_is_given() {
        let address: Multiaddr = ELSEWHERE.parse().unwrap();
        let ticket = Ticket::new(RunSecret::from_bytes([4; 32]), [address.to_vec()]).unwrap();
        let known = config(false, &["/ip4/192.0.2.8/tcp/1"]);
        let (with, given) = with_ticket(known, Some(ticket.clone())).unwrap();
        assert_eq!(with.network.bootstrap, ["/ip4/192.0.2.8/tcp/1", ELSEWHERE]);
        assert_eq!(given.as_ref(), Some(&ticket));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ticket");
        std::fs::write(&file, format!("{}\n", ticket.to_text())).unwrap();
        let mut by_file = config(false, &[]);
        by_file.network.secret_file = Some(file.clone());
        let (with, given) = with_ticket(by_file.clone(), None).unwrap();
        assert_eq!(
            (with.network.bootstrap, given.as_ref()),
            (vec![ELSEWHERE.to_owned()], Some(&ticket))
        );
        by_file.network.open = true;
        assert!(matches!(with_ticket(by_file, None), Err(MembershipError::OpenWithSecret)));
        let text = ticket.to_text();
        std::fs::write(&file, &text[..text.len() - 1]).unwrap();
        let error = read_ticket_file(&file).unwrap_err().to_string();
        assert!(error.contains("checksum") && !error.contains(&text[8..16]), "{error}");
        std::fs::write(&file, "x".repeat(1 << 20)).unwrap();
        assert!(matches!(read_ticket_file(&file), Err(MembershipError::Ticket { .. })));
        let nowhere = read_ticket_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(
            nowhere.starts_with("cannot read the ticket in ") && nowhere.contains("none"),
            "{nowhere}"
        );
    }

    #[test]
    fn a_ticket_whose_addresses_are_none_is_refused() {
        let ticket = Ticket::new(RunSecret::from_bytes([4; 32]), [vec![1, 2, 3]]).unwrap();
        let error = parse_ticket(&ticket.to_text(), "here").unwrap_err();
        let is_of_addresses =
            matches!(error, MembershipError::Ticket { error: TicketError::Addresses, .. });
        assert!(is_of_addresses);
    }

    #[cfg(unix)]
    #[test]
    fn a_ticket_is_written_for_nobody_else_and_over_nothing() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new");
        write_new(&file, "text").unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!others_may_read(&File::open(&file).unwrap()));
        let again = write_new(&file, "other").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        let (link, elsewhere) = (folder.path().join("link"), folder.path().join("elsewhere"));
        symlink(&elsewhere, &link).unwrap();
        assert!(write_new(&link, "text").is_err() && !elsewhere.exists());
        for mode in [0o640, 0o604, 0o622] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(others_may_read(&File::open(&file).unwrap()), "{mode:o}");
        }
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!others_may_read(&reader), "a pipe");
    }
}
