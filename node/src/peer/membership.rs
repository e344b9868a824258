//! Whether this peer's run is closed, and by which secret.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
#[cfg(unix)]
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use dnode_network::{InvitationUse, Multiaddr, NetworkConfig, role_of, unix_s};
use dnode_protocol::invitation::{
    Chain, ChainError, Grant, Pass, Revocation, Revocations, Role, Target,
};
use dnode_protocol::limits::TICKET_TEXT_BYTES_MAX;
use dnode_protocol::membership::{Invitation, RunSecret, Ticket, TicketError};
use rand::Rng as _;

use crate::config::Config;
#[cfg(unix)]
use crate::storage::data_dir::{self, DataDir, DataDirError, others_may};
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

/// Who may take part, by what this peer was given and what its data directory holds.
#[derive(Debug)]
pub(super) struct Entrance {
    /// The secret of the run; `None` when the run is open.
    pub(super) secret: Option<RunSecret>,
    /// How this peer came in, where the run has owners.
    pub(super) member: Option<Member>,
}

/// Finds out who may take part, and keeps it in the data directory. Where this peer is not let in, the
/// data directory stays as it was.
///
/// `given`: a ticket given by hand. Where it has an invitation, this peer signs its own name with it, once.
///
/// # Errors
/// [`MembershipError`].
pub(super) fn enter(
    config: &Config,
    given: Option<&Ticket>,
    (dir, identity): (&DataDir, &Identity),
) -> Result<Entrance, MembershipError> {
    let folder = dir.path();
    let before = secret::load(folder)?;
    let secret = choose(config, given.map(Ticket::secret), (before.clone(), folder))?;
    // The ticket is of another run than the data directory was.
    let is_other = before.is_some() && secret != before;
    let kept = if is_other { Kept::default() } else { Kept::load(folder)? };
    let member = take_in(given.and_then(Ticket::invitation), kept, identity)?;
    // The secret comes last: what is cut off before it is done again.
    if is_other {
        pass::forget(folder)?;
    }
    if let Some(Member { pass, is_new: true, .. }) = &member {
        pass::keep(folder, pass)?;
    }
    match &secret {
        Some(secret) if before.as_ref() != Some(secret) => secret::keep(dir, secret)?,
        None if config.network.open => secret::keep_open(folder)?,
        Some(_) | None => {}
    }
    if secret.is_some() {
        tracing::info!("a closed run: who has its ticket is a member");
    } else {
        tracing::info!("an open run: whoever knows an address may join it and read the model");
    }
    Ok(Entrance { secret, member })
}

/// The secret of this peer's run; `None` when the run is open.
///
/// `given`: by hand. Else the data directory says what the run is. A peer that begins a run draws a
/// secret, unless the run is to be open. A peer that is told of others alone joins theirs as an open
/// one; where it is closed, they let nobody in.
fn choose(
    config: &Config,
    given: Option<&RunSecret>,
    (kept, folder): (Option<RunSecret>, &Path),
) -> Result<Option<RunSecret>, MembershipError> {
    match (given, kept) {
        (Some(given), _) => Ok(Some(given.clone())),
        (None, Some(_)) if config.network.open => {
            Err(MembershipError::WasClosed(folder.to_owned()))
        }
        (None, Some(kept)) => Ok(Some(kept)),
        (None, None) => {
            let network = &config.network;
            let is_open = network.open || !network.bootstrap.is_empty() || secret::is_open(folder)?;
            Ok((!is_open).then(draw))
        }
    }
}

/// How this peer came into a run that has owners, and what it knows of other members.
#[derive(Debug)]
pub(super) struct Member {
    pass: Pass,
    /// Whether the data directory lacks the pass.
    is_new: bool,
    removed: Vec<Revocation>,
    uses: Vec<InvitationUse>,
}

/// What a data directory holds of that.
#[derive(Default)]
struct Kept {
    pass: Option<Pass>,
    removed: Vec<Revocation>,
    uses: Vec<InvitationUse>,
}

impl Kept {
    fn load(folder: &Path) -> Result<Self, DataDirError> {
        let mut removed = pass::revocations(folder, REVOCATIONS_FILE)?;
        removed.extend(pass::revocations(folder, OWN_REVOCATIONS_FILE)?);
        Ok(Self { pass: pass::load(folder)?, removed, uses: pass::uses(folder)? })
    }
}

impl Member {
    pub(super) const fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The configuration of the network of such a member.
    pub(super) fn with(member: Option<Self>, network: NetworkConfig) -> NetworkConfig {
        match member {
            Some(Self { pass, removed: revocations, uses, .. }) => {
                NetworkConfig { pass: Some(pass), revocations, uses, ..network }
            }
            None => network,
        }
    }
}

/// How this peer came into a run that has owners; `None` where the run has none. An invitation that does
/// not let it in is as if it were not given, where the data directory holds one that does.
fn take_in(
    given: Option<&Invitation>,
    Kept { pass, removed, uses }: Kept,
    identity: &Identity,
) -> Result<Option<Member>, MembershipError> {
    let now_s = unix_s();
    let me = identity.peer();
    let let_in = |pass: Pass| {
        // An owner needs no invitation, so that it stays when who has invited it is an owner no more.
        let is_owner = pass.owners().contains(&me);
        let own = if is_owner { Chain::default() } else { pass.chain().clone() };
        let verified = own.verify(pass.owners(), &me, now_s);
        verified.map_err(MembershipError::Invitation)?;
        let known = Revocations::of(removed.iter().cloned(), pass.owners(), now_s);
        let Some(by) = known.revokes(&me, &own) else {
            let pass = Pass::new(pass.owners().to_vec(), own);
            return pass.ok_or(MembershipError::Invitation(ChainError::Bytes));
        };
        Err(MembershipError::Removed(match by.target() {
            Target::Holder(owner) if known.is_out(&owner) && owner == me => {
                "this owner was removed from the run by the other owners".to_owned()
            }
            Target::Holder(owner) if known.is_out(&owner) => {
                let by = owner.short();
                format!("this peer is in the run by {by}, which is no owner any more")
            }
            Target::Holder(_) | Target::Number(_) => {
                format!("this peer was removed from the run by {}", by.issuer().short())
            }
        }))
    };
    let (pass, is_new) = match (given, pass) {
        (None, None) => return Ok(None),
        (None, Some(kept)) => (let_in(kept)?, false),
        (Some(invitation), Some(kept)) if is_taken(invitation, &kept) => (let_in(kept)?, false),
        (Some(invitation), kept) => match take(invitation, identity).and_then(let_in) {
            Ok(taken) => (taken, true),
            Err(error) => {
                let kept = kept.and_then(|kept| let_in(kept).ok()).ok_or(error)?;
                tracing::warn!(
                    "the invitation that was given lets nobody in: this peer goes on by the one in its data directory"
                );
                (kept, false)
            }
        },
    };
    Ok(Some(Member { pass, is_new, removed, uses }))
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
    data_dir::write_new(path, text.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use dnode_protocol::invitation::IssuerKey;

    use super::*;

    fn config(open: bool, bootstrap: &[&str]) -> Config {
        let mut config = Config::default();
        config.network.open = open;
        config.network.bootstrap = bootstrap.iter().map(|&it| it.to_owned()).collect();
        config
    }

    const ELSEWHERE: &str = "/ip4/192.0.2.7/udp/1/quic-v1";

    fn fresh() -> (tempfile::TempDir, DataDir, Identity) {
        let folder = tempfile::tempdir().unwrap();
        let dir = DataDir::open(folder.path()).unwrap();
        let identity = Identity::load_or_create(&dir).unwrap();
        (folder, dir, identity)
    }

    /// The secret of the run that a peer enters.
    fn secret_of(
        config: &Config,
        given: Option<&Ticket>,
        (_, dir, identity): &(tempfile::TempDir, DataDir, Identity),
    ) -> Result<Option<RunSecret>, MembershipError> {
        enter(config, given, (dir, identity)).map(|entrance| entrance.secret)
    }

    #[test]
    fn who_begins_a_run_draws_its_secret_once_and_who_joins_draws_none() {
        let place = fresh();
        let secret = |config: &Config| secret_of(config, None, &place).unwrap();
        assert_eq!(secret(&config(false, &[ELSEWHERE])), None);
        // It has met nobody there, so this begins a run.
        let drawn = secret(&config(false, &[]));
        assert!(drawn.is_some());
        assert_ne!(secret_of(&config(false, &[]), None, &fresh()).unwrap(), drawn);
        // The data directory says what the run is, whatever it is started with.
        assert_eq!(secret(&config(false, &[ELSEWHERE])), drawn);
        let error = secret_of(&config(true, &[]), None, &place).unwrap_err();
        assert!(matches!(error, MembershipError::WasClosed(_)));
        let given = Ticket::new(RunSecret::from_bytes([4; 32]), []).unwrap();
        let taken = secret_of(&config(false, &[]), Some(&given), &place).unwrap();
        assert_eq!(taken.as_ref(), Some(given.secret()));
        assert_eq!(secret(&config(false, &[])), taken, "it was kept");
    }

    #[test]
    fn only_a_run_that_was_begun_open_or_found_so_stays_open() {
        let place = fresh();
        assert_eq!(secret_of(&config(true, &[]), None, &place).unwrap(), None);
        assert_eq!(secret_of(&config(false, &[]), None, &place).unwrap(), None, "it was begun so");
        let place = fresh();
        assert_eq!(secret_of(&config(false, &[ELSEWHERE]), None, &place).unwrap(), None);
        secret::keep_open(place.1.path()).unwrap();
        assert_eq!(secret_of(&config(false, &[]), None, &place).unwrap(), None, "it was met so");
    }

    /// An invitation of the owner `seed` that ends at `not_after_s`, in a ticket of the run `secret`.
    fn invitation((seed, number): (u8, u64), not_after_s: u64, secret: u8) -> Ticket {
        let (owner, key) = (IssuerKey::from_seed(&[seed; 32]), IssuerKey::from_seed(&[99; 32]));
        let (holder, role) = (key.peer(), Role::Train);
        let grant =
            Grant { holder, role, further: 1, uses: 0, not_before_s: 0, not_after_s, number };
        let chain = Chain::default().extended(&owner, grant).unwrap();
        let pass = Pass::new(vec![owner.peer()], chain).unwrap();
        let ticket = Ticket::new(RunSecret::from_bytes([secret; 32]), []).unwrap();
        ticket.inviting(Invitation { pass, key }).unwrap()
    }

    #[test]
    fn an_invitation_that_has_ended_takes_nothing_from_a_member() {
        let (place, config) = (fresh(), config(false, &[]));
        let (_, dir, identity) = &place;
        let entered = |ticket: &Ticket| enter(&config, Some(ticket), (dir, identity));
        let (good, ended) = (invitation((1, 7), u64::MAX, 4), invitation((1, 8), 1, 4));
        assert!(matches!(entered(&ended), Err(MembershipError::Invitation(_))));
        assert!(
            pass::load(dir.path()).unwrap().is_none()
                && secret::load(dir.path()).unwrap().is_none()
        );
        let number =
            |entrance: Entrance| entrance.member.unwrap().pass.chain().last().unwrap().number;
        assert_eq!(number(entered(&good).unwrap()), 7);
        assert_eq!(number(entered(&ended).unwrap()), 7, "it goes on by what it has");
        let again = enter(&config, None, (dir, identity)).unwrap();
        assert_eq!(number(again), 7);
        // Nor does one of another run.
        let other = invitation((2, 9), 1, 5);
        assert!(matches!(entered(&other), Err(MembershipError::Invitation(_))));
        assert_eq!(number(enter(&config, None, (dir, identity)).unwrap()), 7);
        let other = invitation((2, 9), u64::MAX, 5);
        assert_eq!(number(entered(&other).unwrap()), 9);
        assert_eq!(secret::load(dir.path()).unwrap().as_ref(), Some(other.secret()));
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
