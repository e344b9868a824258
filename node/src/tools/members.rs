//! Runs with owners: makes one, invites to it, and removes members. No server is asked, and the peer
//! itself may run meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dnode_network::{Multiaddr, unix_s};
use dnode_protocol::PeerId;
use dnode_protocol::invitation::{
    Chain, ChainError, Grant, IssuerKey, Pass, Revocation, Revocations, Role, Target, votes_needed,
};
use dnode_protocol::limits::{CHAIN_MAX, MEMBER_REVOCATIONS_MAX, OWNERS_MAX, REVOCATIONS_MAX};
use dnode_protocol::membership::{Invitation, Ticket, TicketError};
use rand::Rng as _;

use crate::membership::{MembershipError, draw, parse_ticket};
use crate::storage::data_dir::{DataDir, DataDirError, read_private};
use crate::storage::identity::Identity;
use crate::storage::pass::{self, OWN_REVOCATIONS_FILE, REVOCATIONS_FILE};
use crate::storage::secret;
use crate::tools::audit;

/// How much earlier than it was made an invitation begins, for clocks that are slow.
const SLOW_CLOCKS: Duration = Duration::from_secs(3600);
/// How long the machine that makes a run is a member of it: ten years.
const FOUNDER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Longest time of an invitation, likewise.
const EXPIRES_MAX: Duration = FOUNDER;
/// Shortest time of one: less than this is over before a person has copied it.
const EXPIRES_MIN: Duration = Duration::from_secs(1);
/// How long a limit that is told holds, so that there is time to type it.
const LIMIT_HOLDS: Duration = Duration::from_secs(60);

/// Why a run cannot be made, nobody invited, or nobody removed.
#[derive(thiserror::Error)]
pub(crate) enum MembersError {
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Its ticket cannot be read.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// There is a run already.
    #[error("data directory {} has a run already: choose another with --data-dir", .0.display())]
    Taken(PathBuf),
    /// It is not a member's.
    #[error(
        "data directory {} is not of a run with owners: name that of a member with --data-dir, or make a run with `dnode run create`", .0.display()
    )]
    NoOwners(PathBuf),
    /// Its peer may not invite anybody.
    #[error(
        "{} is no owner of the run, and its invitation does not let it invite others: ask an owner, whose `dnode invite --further N` allows that", .0.short()
    )]
    NotAllowed(PeerId),
    /// The text is no length of time.
    #[error("--expires {0} is no time from 1s to 10 years: write for example 12h, 7d or 4weeks")]
    Expires(String),
    /// The invitation would give more than its issuer has.
    #[error("the invitation would {what} than that of this member: {limit}")]
    Exceeds {
        /// In what.
        what: &'static str,
        /// What it may be.
        limit: String,
    },
    /// No address is known to put into a ticket.
    #[error(
        "no address to put into the invitation: start the peer first (dnode join --data-dir {}), or name one with --address", .0.display()
    )]
    NoAddress(PathBuf),
    /// A text is no address.
    #[error("--address {0} is no multiaddress: write for example /ip4/192.0.2.7/udp/4001/quic-v1")]
    Address(String),
    /// A text is neither a peer nor a number.
    #[error(
        "{0} is neither a peer id (12D3KooW…) nor the number of an invitation (16 hexadecimal digits)"
    )]
    Target(String),
    /// The peer itself or an owner was named.
    #[error(
        "{0} cannot be removed: it is an owner of the run, and more than half of the owners, two at least, have to say so by `dnode revoke`"
    )]
    Owner(String),
    /// A text is no peer.
    #[error("--owner {0} is no peer id (12D3KooW…): `dnode id` prints that of a machine")]
    NoPeer(String),
    /// There are more owners than a run has.
    #[error("a run has at most {OWNERS_MAX} owners: name fewer with --owner")]
    Owners,
    /// This data directory has made as many revocations as a peer keeps.
    #[error(
        "a peer keeps at most {REVOCATIONS_MAX} revocations, and this one has made as many: begin a new run"
    )]
    Revocations,
    /// Other members have said as much as counts of those who are no owners.
    #[error(
        "this revocation does not count: a peer keeps at most {MEMBER_REVOCATIONS_MAX} by members that are no owners; ask an owner to make it"
    )]
    Uncounted,
    /// The ticket cannot be made.
    #[error("the invitation cannot be made: {0}")]
    Ticket(#[from] TicketError),
}

impl MembersError {
    /// Whether the person is at fault (exit status 2) rather than the machine (1).
    #[must_use]
    pub(crate) const fn is_usage(&self) -> bool {
        match self {
            Self::DataDir(error) | Self::Membership(MembershipError::DataDir(error)) => {
                error.is_usage()
            }
            Self::Membership(_)
            | Self::Taken(_)
            | Self::NoOwners(_)
            | Self::NotAllowed(_)
            | Self::Expires(_)
            | Self::Exceeds { .. }
            | Self::NoAddress(_)
            | Self::Address(_)
            | Self::Target(_)
            | Self::Owner(_)
            | Self::NoPeer(_)
            | Self::Owners
            | Self::Revocations
            | Self::Uncounted
            | Self::Ticket(_) => true,
        }
    }
}

/// What an invitation is to be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    /// What it lets its holder do.
    pub(crate) role: Role,
    /// How long it lasts, as a person writes it.
    pub(crate) expires: &'a str,
    /// How many machines may use it; 0 is no bound.
    pub(crate) uses: u8,
    /// How many times it may be handed on.
    pub(crate) further: u8,
    /// Where members are; without any, where the peer of this data directory listens.
    pub(crate) addresses: &'a [String],
}

/// Makes a run with an owner's key in `folder`, and further `owners`. Returns what a person is told.
///
/// # Errors
/// [`MembersError`].
pub(crate) fn create(folder: &Path, owners: &[String]) -> Result<String, MembersError> {
    let parse =
        |text: &String| text.parse::<PeerId>().map_err(|_| MembersError::NoPeer(text.clone()));
    let mut all = owners.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let dir = DataDir::open(folder)?;
    let taken = dir.is_bound() || secret::load(folder)?.is_some() || pass::owner(folder)?.is_some();
    if taken || pass::load(folder)?.is_some() {
        return Err(MembersError::Taken(folder.to_owned()));
    }
    let identity = Identity::load_or_create(&dir)?;
    let owner = fresh_key();
    all.push(owner.peer());
    let now_s = unix_s();
    let grant = Grant {
        holder: identity.peer(),
        role: Role::Train,
        further: u8::try_from(CHAIN_MAX - 1).unwrap_or(0),
        uses: 1,
        not_before_s: now_s.saturating_sub(SLOW_CLOCKS.as_secs()),
        not_after_s: now_s.saturating_add(FOUNDER.as_secs()),
        number: rand::random(),
    };
    let chain = Chain::default().extended(&owner, grant);
    let chain = chain.map_err(|_| MembersError::Owners)?;
    let member = Pass::new(all, chain).ok_or(MembersError::Owners)?;
    pass::keep_owner(folder, &owner)?;
    pass::keep(folder, &member)?;
    // The last: who has a secret and no pass is a member of a run without owners.
    secret::keep(&dir, &draw())?;
    let at = folder.display();
    Ok(format!(
        "owner {}: its key is {at}/owner.key; who has it may invite and remove members, so keep a copy off-line\nstart with:  dnode join --data-dir {at}\nthen invite: dnode invite --data-dir {at}\n",
        owner.peer()
    ))
}

/// Makes an invitation. Returns its ticket, and what a person is told of it.
///
/// # Errors
/// [`MembersError`].
pub(crate) fn invite(folder: &Path, wanted: &Wanted<'_>) -> Result<(String, String), MembersError> {
    let bad = || MembersError::Expires(wanted.expires.to_owned());
    let lasts = humantime::parse_duration(wanted.expires).map_err(|_| bad())?;
    if !(EXPIRES_MIN..=EXPIRES_MAX).contains(&lasts) {
        return Err(bad());
    }
    let (member, key, chain) = issuer(folder)?;
    let now_s = unix_s();
    // One certificate for the invitation and one for who takes it, each time it is handed on.
    let further = wanted.further.saturating_mul(2).saturating_add(1);
    let mut not_before_s = now_s.saturating_sub(SLOW_CLOCKS.as_secs());
    let not_after_s = now_s.saturating_add(lasts.as_secs());
    if let Some(last) = chain.last() {
        not_before_s = not_before_s.max(last.not_before_s);
        if not_after_s > last.not_after_s {
            // In whole minutes where there are some, so that it still holds when it is typed.
            let left = last.not_after_s.saturating_sub(now_s);
            let minutes = left.saturating_sub(LIMIT_HOLDS.as_secs()) / 60;
            let left = Duration::from_secs(if minutes > 0 { 60 * minutes } else { left });
            let limit = format!("give --expires at most {}", humantime::format_duration(left));
            return Err(MembersError::Exceeds { what: "last longer", limit });
        }
    }
    let most =
        chain.last().map_or(CHAIN_MAX - 1, |last| usize::from(last.further).saturating_sub(1));
    if usize::from(further) > most {
        if most == 0 {
            return Err(MembersError::NotAllowed(key.peer()));
        }
        let limit = format!("give --further at most {}", (most - 1) / 2);
        return Err(MembersError::Exceeds { what: "be handed on more often", limit });
    }
    let invited = fresh_key();
    let number: u64 = rand::random();
    let (holder, role, uses) = (invited.peer(), wanted.role, wanted.uses);
    let grant = Grant { holder, role, further, uses, not_before_s, not_after_s, number };
    let chain = chain.extended(&key, grant);
    let chain = chain.map_err(|_| MembersError::NotAllowed(key.peer()))?;
    let pass = Pass::new(member.owners().to_vec(), chain).ok_or(MembersError::Owners)?;
    let ticket = Ticket::new(
        secret::load(folder)?.ok_or_else(|| MembersError::NoOwners(folder.to_owned()))?,
        addresses(folder, wanted.addresses)?,
    )?;
    let ticket = ticket.inviting(Invitation { pass, key: invited })?;
    let times = match uses {
        0 => "any number of machines".to_owned(),
        1 => "one machine".to_owned(),
        uses => format!("{uses} machines"),
    };
    let told = format!(
        "invitation {number:016x}: {role}, for {times}, for {}; take it back with: dnode revoke {number:016x}",
        humantime::format_duration(lasts)
    );
    Ok((ticket.to_text(), told))
}

/// Removes a member, or all who came by an invitation, as of now. Returns what a person is told.
///
/// # Errors
/// [`MembersError`].
pub(crate) fn revoke(folder: &Path, what: &str) -> Result<String, MembersError> {
    let (member, key, chain) = issuer(folder)?;
    let target =
        target(what).ok_or_else(|| MembersError::Target(what.chars().take(64).collect()))?;
    if let Target::Holder(holder) = target
        && member.owners().contains(&holder)
    {
        return vote(folder, (&member, &key), holder);
    }
    // That of an owner outlasts every certificate.
    let longest = unix_s().saturating_add(EXPIRES_MAX.as_secs());
    let until_s = chain.last().map_or(longest, |last| last.not_after_s);
    let add = |target| {
        let statement = Revocation::sign(&key, target, until_s, chain.clone());
        let added = pass::add_revocation(folder, statement.clone())?;
        if !added {
            return Err(MembersError::Revocations);
        }
        // One of a member may not count where members have said too much. One that says the same is as good.
        let same = |it: &Revocation| (it.issuer(), it.target()) == (statement.issuer(), target);
        let counts = known(folder, &member)?.iter().any(same);
        counts.then_some(()).ok_or(MembersError::Uncounted)
    };
    add(target)?;
    let mut told = format!(
        "{what} is revoked: the peer of {} tells the others within a second if it runs, else when it starts\n",
        folder.display()
    );
    if let Target::Holder(holder) = target {
        let by = audit::invitation_of(folder, &holder).filter(|by| by.issuer == key.peer());
        let number = by.as_ref().and_then(|by| u64::from_str_radix(by.number.as_str(), 16).ok());
        match (by, number) {
            // Under another name it could come by it again, where nobody has counted it.
            (Some(by), Some(number)) if by.uses == 1 => {
                add(Target::Number(number))?;
                told += &format!(
                    "the invitation {number:016x} by which it came was for it alone, and is revoked, too\n"
                );
            }
            (Some(_), Some(number)) => {
                told += &format!(
                    "it came by invitation {number:016x}, as others may have: `dnode revoke {number:016x}` removes them all; without that it can come again under another name while uses are left\n"
                );
            }
            _ => {
                told += "if somebody has its invitation, it can come again under another name: revoke the number of that, too\n";
            }
        }
    }
    Ok(told)
}

/// This owner says that one of the owners is none any more. Returns what a person is told.
fn vote(
    folder: &Path,
    (member, key): (&Pass, &IssuerKey),
    owner: PeerId,
) -> Result<String, MembersError> {
    let is_owner = member.owners().contains(&key.peer());
    let Some(needed) = votes_needed(member.owners().len()).filter(|_| is_owner) else {
        return Err(MembersError::Owner(owner.to_string()));
    };
    let statement = Revocation::sign(key, Target::Holder(owner), u64::MAX, Chain::default());
    if !pass::add_revocation(folder, statement)? {
        return Err(MembersError::Revocations);
    }
    let known = known(folder, member)?;
    let votes = known.votes_about(&owner).count();
    let at = folder.display();
    Ok(if known.is_out(&owner) {
        format!(
            "{owner} is no owner any more, by {votes} votes: the peer of {at} tells the others within a second if it runs, else when it starts; whom that key has let in is out, and whom it has removed is not\n"
        )
    } else {
        format!(
            "{votes} of {needed} votes that {owner} is no owner any more, as far as {at} knows; each other owner gives its own by: dnode revoke {owner}\nuntil then nothing changes, and then all are out whom that key has let in: invite them anew by another owner before\n"
        )
    })
}

/// Who was removed, as far as this data directory knows.
fn known(folder: &Path, member: &Pass) -> Result<Revocations, MembersError> {
    let mut known = pass::revocations(folder, REVOCATIONS_FILE)?;
    known.extend(pass::revocations(folder, OWN_REVOCATIONS_FILE)?);
    Ok(Revocations::of(known, member.owners(), unix_s()))
}

/// What the person means: a peer, or the number of an invitation.
fn target(what: &str) -> Option<Target> {
    if what.len() == 16 && what.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return u64::from_str_radix(what, 16).ok().map(Target::Number);
    }
    what.parse().ok().map(Target::Holder)
}

/// Who signs in this data directory: an owner with an empty chain, or else the peer with its own chain.
fn issuer(folder: &Path) -> Result<(Pass, IssuerKey, Chain), MembersError> {
    let member = pass::load(folder)?.ok_or_else(|| MembersError::NoOwners(folder.to_owned()))?;
    let known = known(folder, &member)?;
    let as_owner = |member: Pass, key: IssuerKey| {
        if known.is_out(&key.peer()) {
            return Err(MembersError::NotAllowed(key.peer()));
        }
        Ok((member, key, Chain::default()))
    };
    if let Some(key) = pass::owner(folder)?
        && member.owners().contains(&key.peer())
    {
        return as_owner(member, key);
    }
    let identity = Identity::load(folder)?;
    let identity = identity.ok_or_else(|| MembersError::NoOwners(folder.to_owned()))?;
    let key = IssuerKey::from_seed(identity.secret_key());
    if member.owners().contains(&key.peer()) {
        return as_owner(member, key);
    }
    let chain = member.chain().clone();
    let now_s = unix_s();
    match chain.verify(member.owners(), &key.peer(), now_s) {
        Ok(_) => {}
        Err(error @ (ChainError::Expired { .. } | ChainError::Early { .. })) => {
            return Err(MembershipError::Invitation(error).into());
        }
        Err(_) => return Err(MembersError::NotAllowed(key.peer())),
    }
    if known.revokes(&key.peer(), &chain).is_some() {
        return Err(MembersError::NotAllowed(key.peer()));
    }
    Ok((member, key, chain))
}

fn addresses(folder: &Path, given: &[String]) -> Result<Vec<Vec<u8>>, MembersError> {
    if given.is_empty() {
        // The running peer writes where it listens; a stopped one was there last.
        let file = folder.join("ticket");
        let ticket = read_private(&file)?;
        let ticket = ticket.map(|text| parse_ticket(&text, &file.display().to_string()));
        let known = ticket.transpose()?.map_or_else(Vec::new, |it| it.addresses().to_vec());
        return if known.is_empty() {
            Err(MembersError::NoAddress(folder.to_owned()))
        } else {
            Ok(known)
        };
    }
    let parse = |text: &String| {
        let parsed = text.parse::<Multiaddr>().map(|address| address.to_vec());
        parsed.map_err(|_| MembersError::Address(text.chars().take(128).collect()))
    };
    given.iter().map(parse).collect()
}

fn fresh_key() -> IssuerKey {
    let mut seed = [0; 32];
    rand::rng().fill_bytes(&mut seed);
    IssuerKey::from_seed(&seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "/ip4/127.0.0.1/udp/1/quic-v1";

    fn wanted<'a>(expires: &'a str, addresses: &'a [String]) -> Wanted<'a> {
        Wanted { role: Role::Train, expires, uses: 1, further: 0, addresses }
    }

    #[test]
    fn an_owner_invites_and_revokes_and_nobody_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("owner");
        let here = [HERE.to_owned()];
        let error = invite(&at, &wanted("7d", &here)).unwrap_err();
        assert!(matches!(error, MembersError::NoOwners(_)) && error.is_usage());
        let told = create(&at, &[]).unwrap();
        assert!(told.contains("dnode invite --data-dir"), "{told}");
        assert!(matches!(create(&at, &[]), Err(MembersError::Taken(_))));
        let (text, told) = invite(&at, &wanted("7d", &here)).unwrap();
        let ticket: Ticket = text.parse().unwrap();
        assert_eq!(ticket.addresses().len(), 1);
        let invitation = ticket.invitation().unwrap();
        let number = invitation.pass.chain().last().unwrap().number;
        assert!(told.contains(&format!("dnode revoke {number:016x}")), "{told}");
        revoke(&at, &format!("{number:016x}")).unwrap();
        revoke(&at, &IssuerKey::from_seed(&[3; 32]).peer().to_string()).unwrap();
        assert_eq!(pass::revocations(&at, OWN_REVOCATIONS_FILE).unwrap().len(), 2);
        // The peer that runs has kept what was said a while ago: the same again counts, too.
        let key = pass::owner(&at).unwrap().unwrap();
        let until_s = unix_s() + EXPIRES_MAX.as_secs() - 100;
        let before = Revocation::sign(&key, Target::Number(number), until_s, Chain::default());
        pass::keep_known(&at, REVOCATIONS_FILE, &Revocation::to_bytes([&before])).unwrap();
        revoke(&at, &format!("{number:016x}")).unwrap();
        let owner = key.peer().to_string();
        assert!(matches!(revoke(&at, &owner), Err(MembersError::Owner(_))));
        assert!(matches!(revoke(&at, "somebody"), Err(MembersError::Target(_))));
    }

    #[test]
    fn owners_vote_about_each_other_and_one_that_is_out_does_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let second = Identity::load_or_create(&DataDir::open(&path("second")).unwrap()).unwrap();
        let third = IssuerKey::from_seed(&[3; 32]);
        let others = [second.peer().to_string(), third.peer().to_string()];
        create(&path("first"), &others).unwrap();
        let owners = pass::load(&path("first")).unwrap().unwrap().owners().to_vec();
        let first = pass::owner(&path("first")).unwrap().unwrap().peer();
        pass::keep(&path("second"), &Pass::new(owners, Chain::default()).unwrap()).unwrap();
        let told = revoke(&path("second"), &first.to_string()).unwrap();
        assert!(told.starts_with("1 of 2 votes that "), "{told}");
        assert!(revoke(&path("second"), &first.to_string()).unwrap().starts_with("1 of 2"));
        // The peer hears of another one's.
        let vote = Revocation::sign(&third, Target::Holder(first), u64::MAX, Chain::default());
        let bytes = Revocation::to_bytes([&vote]);
        pass::keep_known(&path("second"), REVOCATIONS_FILE, &bytes).unwrap();
        let told = revoke(&path("second"), &first.to_string()).unwrap();
        assert!(told.contains("is no owner any more, by 2 votes"), "{told}");
        let votes = pass::revocations(&path("second"), OWN_REVOCATIONS_FILE).unwrap();
        let votes = [Revocation::to_bytes(&votes), bytes].concat();
        pass::keep_known(&path("first"), REVOCATIONS_FILE, &votes).unwrap();
        let here = [HERE.to_owned()];
        let error = invite(&path("first"), &wanted("1h", &here)).unwrap_err();
        assert!(matches!(error, MembersError::NotAllowed(peer) if peer == first), "{error}");
        let error = revoke(&path("first"), &others[0]).unwrap_err();
        assert!(matches!(error, MembersError::NotAllowed(_)), "{error}");
    }

    #[test]
    fn who_came_by_an_invitation_for_it_alone_is_removed_together_with_that() {
        use dnode_audit::{Entry, Invited, Joined, Log, Text, Way};
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("owner");
        create(&at, &[]).unwrap();
        let owner = pass::owner(&at).unwrap().unwrap().peer();
        let peer = |byte: u8| IssuerKey::from_seed(&[byte; 32]).peer();
        let mut log = Log::new(owner, Box::new(|_| [0; 64]));
        let mut text = log.next_file(1);
        for (byte, issuer, uses) in [(3, owner, 1), (4, owner, 5), (5, peer(9), 1)] {
            let (number, role) = (Text::new(&format!("{byte:016x}")), Text::new("train"));
            let by = Some(Invited { issuer, number, uses, role });
            let (way, address) = (Way::Invitation, Text::new("/ip4/192.0.2.7/tcp/1"));
            let joined = Joined { peer: peer(byte), way, incarnation: 1, address, by };
            text.extend(log.add(2, Entry::Joined(joined)));
        }
        std::fs::write(at.join("audit.jsonl"), text).unwrap();
        let revoked = |byte: u8| {
            let told = revoke(&at, &peer(byte).to_string()).unwrap();
            let own = pass::revocations(&at, OWN_REVOCATIONS_FILE).unwrap();
            let number = Target::Number(byte.into());
            (told, own.iter().any(|statement| statement.target() == number))
        };
        let (told, with_number) = revoked(3);
        assert!(with_number && told.contains("was for it alone, and is revoked, too"), "{told}");
        let (told, with_number) = revoked(4);
        assert!(!with_number && told.contains("`dnode revoke 0000000000000004`"), "{told}");
        let (told, with_number) = revoked(5);
        assert!(!with_number && told.contains("revoke the number of that, too"), "{told}");
    }

    #[test]
    fn what_a_person_asks_for_wrongly_is_said_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("owner");
        create(&at, &[]).unwrap();
        let here = [HERE.to_owned()];
        for expires in ["", "soon", "0s", "99 years"] {
            let error = invite(&at, &wanted(expires, &here)).unwrap_err().to_string();
            assert!(error.contains("is no time from 1s"), "{error}");
        }
        let error = invite(&at, &wanted("1h", &[])).unwrap_err().to_string();
        assert!(error.starts_with("no address to put into the invitation: start"), "{error}");
        let error = invite(&at, &wanted("1h", &["here".to_owned()])).unwrap_err().to_string();
        assert!(error.starts_with("--address here is no multiaddress"), "{error}");
        let often = Wanted { further: 4, ..wanted("1h", &here) };
        let error = invite(&at, &often).unwrap_err().to_string();
        assert!(error.contains("handed on more often") && error.contains("at most 3"), "{error}");
        let none = folder.path().join("none");
        assert!(matches!(create(&none, &["me".to_owned()]), Err(MembersError::NoPeer(_))));
    }
}
