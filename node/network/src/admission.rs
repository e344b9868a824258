//! Who is let into a run that has owners: judges chains, and keeps who was removed. This is pure code.

mod uses;

use std::collections::{BTreeMap, BTreeSet};

use dnode_protocol::invitation::{
    Certificate, Chain, ChainError, Pass, Revocation, RevocationError, Revocations, Role, Target,
};
use dnode_protocol::limits::REVOCATION_BYTES_MAX;
use dnode_protocol::{PeerId, RunDifference};

use crate::slots::Issued;
pub use uses::InvitationUse;
use uses::Uses;

/// Name of the field in which a peer differs that has no valid invitation.
pub const INVITATION: &str = "run.invitation";

/// Who is let in. Without owners everybody is.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pass: Option<Pass>,
    /// This peer.
    me: Option<PeerId>,
    revocations: Revocations,
    /// The chains of peers that were let in and are connected.
    members: BTreeMap<PeerId, Chain>,
    uses: Uses,
    /// Peers that are being refused for want of an invitation.
    turned_away: BTreeSet<PeerId>,
    /// Whether it was told that this peer itself is in no longer.
    end_is_told: bool,
}

/// What the chain of a peer lets it do.
#[derive(Debug)]
pub(crate) struct Judged {
    /// Of a run with owners.
    chain: Option<Chain>,
    pub(crate) role: Role,
}

/// What follows from statements that were heard.
#[derive(Debug, Default)]
pub(crate) struct Learnt {
    /// Those that are new here.
    pub(crate) new: Vec<Revocation>,
    /// The first one that does not count, if there is one; or the one of which a signature is none, behind
    /// which no other was looked at.
    pub(crate) refused: Option<RevocationError>,
}

/// Who has said a statement here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This machine: its files, or whoever uses this network.
    Own,
    /// Another peer.
    Peer,
}

impl Admission {
    /// `known`: statements from before, of which those that do not count are left out; `used`: uses of
    /// invitations.
    pub(crate) fn new(
        (me, pass): (PeerId, Option<Pass>),
        (known, used): (Vec<Revocation>, &[InvitationUse]),
        now_s: u64,
    ) -> Self {
        let mut made = Self { pass, me: Some(me), uses: Uses::of(used), ..Self::default() };
        made.learn(known, Source::Own, now_s);
        if let Some(pass) = &made.pass {
            // The own invitation is used, too. Where it cannot be counted others count it.
            let _ = made.uses.count(pass.chain(), now_s);
        }
        made
    }

    /// The bytes of the own chain; empty in a run without owners.
    pub(crate) fn chain(&self) -> Vec<u8> {
        self.pass.as_ref().map_or_else(Vec::new, |pass| pass.chain().to_bytes())
    }

    /// What this peer itself may do.
    pub(crate) fn own_role(&self) -> Role {
        self.pass.as_ref().map_or(Role::Train, |pass| role_of(pass.chain()))
    }

    /// Judges the chain that a peer shows, and says what it lets the peer do.
    ///
    /// An error names what is wrong, as a difference between this peer and that one.
    pub(crate) fn judge(
        &mut self,
        peer: PeerId,
        chain: &[u8],
        now_s: u64,
    ) -> Result<Judged, RunDifference> {
        let Some(pass) = &self.pass else { return Ok(Judged { chain: None, role: Role::Train }) };
        self.verdict(pass, &peer, chain, now_s).map_err(|theirs| self.turn_away(peer, &theirs))
    }

    /// Lets in a peer whose chain was judged, which uses its invitation. An error says that it is used up.
    pub(crate) fn let_in(
        &mut self,
        peer: PeerId,
        judged: Judged,
        now_s: u64,
    ) -> Result<Role, RunDifference> {
        let Judged { chain: Some(chain), role } = judged else { return Ok(judged.role) };
        if let Err(theirs) = self.uses.count(&chain, now_s) {
            return Err(self.turn_away(peer, &theirs));
        }
        self.members.insert(peer, chain);
        self.turned_away.remove(&peer);
        Ok(role)
    }

    fn turn_away(&mut self, peer: PeerId, theirs: &str) -> RunDifference {
        self.turned_away.insert(peer);
        difference(theirs)
    }

    fn verdict(
        &self,
        pass: &Pass,
        peer: &PeerId,
        chain: &[u8],
        now_s: u64,
    ) -> Result<Judged, String> {
        let chain = if chain.is_empty() { Ok(Chain::default()) } else { Chain::from_bytes(chain) };
        let chain = chain.map_err(|error| error.to_string())?;
        let member = chain.verify(pass.owners(), peer, now_s).map_err(|error| error.to_string())?;
        if let Some(why) = self.taken_back(peer, &chain) {
            return Err(why);
        }
        let over = pairs(&chain).any(|(invitation, holder)| self.uses.is_over(invitation, &holder));
        if over {
            return Err("the invitation is used up".to_owned());
        }
        Ok(Judged { chain: Some(chain), role: member.role })
    }

    /// By which invitation a member came, and how many may: the first of its chain, with all that were
    /// invited in turn.
    pub(crate) fn invitation(&self, peer: PeerId) -> Option<(Issued, u8)> {
        let (invitation, _) = pairs(self.members.get(&peer)?).next()?;
        Some((issued(invitation), invitation.grant().uses))
    }

    /// All uses of invitations, if some came since the last call.
    pub(crate) fn take_new_uses(&mut self) -> Option<Vec<InvitationUse>> {
        self.uses.take_new()
    }

    /// The statement that takes the chain of this peer back, or the votes that do, as bytes.
    pub(crate) fn against(&self, peer: &PeerId, chain: &[u8]) -> Option<Vec<u8>> {
        self.pass.as_ref()?;
        let chain = Chain::from_bytes(chain).ok()?;
        let statement = self.revocations.revokes(peer, &chain)?;
        Some(match self.voted_out(statement) {
            Some(owner) => Revocation::to_bytes(self.revocations.votes_about(&owner)),
            None => Revocation::to_bytes([statement]),
        })
    }

    /// The owner that is none any more, where this is one of the votes about it.
    fn voted_out(&self, statement: &Revocation) -> Option<PeerId> {
        let Target::Holder(holder) = statement.target() else { return None };
        self.revocations.is_out(&holder).then_some(holder)
    }

    /// How the chain of this peer was taken back, if it was.
    fn taken_back(&self, peer: &PeerId, chain: &Chain) -> Option<String> {
        let statement = self.revocations.revokes(peer, chain)?;
        Some(self.voted_out(statement).map_or_else(
            || removed(statement),
            |owner| format!("{} was removed by the other owners", owner.short()),
        ))
    }

    /// The owners of the run.
    pub(crate) fn owners(&self) -> Vec<PeerId> {
        self.pass.as_ref().map_or_else(Vec::new, |pass| pass.owners().to_vec())
    }

    /// Whether a peer is being refused for want of an invitation; it may come again with one soon.
    pub(crate) fn take_turned_away(&mut self, peer: PeerId) -> bool {
        self.turned_away.remove(&peer)
    }

    /// Forgets a peer whose session has ended.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.members.remove(&peer);
        self.turned_away.remove(&peer);
    }

    /// Keeps the statements that count and are new. Those of a peer that has forged one are not looked at
    /// further: each may cost a few signatures.
    pub(crate) fn learn(
        &mut self,
        statements: Vec<Revocation>,
        source: Source,
        now_s: u64,
    ) -> Learnt {
        let mut learnt = Learnt::default();
        let Some(pass) = &self.pass else { return learnt };
        for statement in statements {
            match self.revocations.insert(statement.clone(), pass.owners(), now_s) {
                Ok(true) => learnt.new.push(statement),
                Ok(false) => {}
                Err(error) if source == Source::Peer && error.is_forged() => {
                    learnt.refused = Some(error);
                    break;
                }
                Err(error) => learnt.refused = learnt.refused.or(Some(error)),
            }
        }
        learnt
    }

    /// The members that are in no longer: removed, or with a chain that has ended.
    pub(crate) fn gone(&self, now_s: u64) -> Vec<(PeerId, RunDifference)> {
        let members = self.members.iter();
        let gone =
            members.filter_map(|(peer, chain)| Some((*peer, self.why_out(peer, chain, now_s)?)));
        gone.map(|(peer, why)| (peer, difference(&why))).collect()
    }

    /// The members whose chain has ended, which costs less to find.
    pub(crate) fn has_ended(&self, now_s: u64) -> bool {
        self.members.values().any(|chain| ended(chain, now_s).is_some())
    }

    /// Why this peer itself is in no longer, if so; said once.
    pub(crate) fn own_end(&mut self, now_s: u64) -> Option<String> {
        let end = self.end(now_s).filter(|_| !self.end_is_told);
        self.end_is_told |= end.is_some();
        end
    }

    fn end(&self, now_s: u64) -> Option<String> {
        self.why_out(self.me.as_ref()?, self.pass.as_ref()?.chain(), now_s)
    }

    /// Why the chain of this peer lets it in no longer, if so.
    fn why_out(&self, peer: &PeerId, chain: &Chain, now_s: u64) -> Option<String> {
        self.taken_back(peer, chain).or_else(|| ended(chain, now_s))
    }

    /// Whether this peer itself is in no longer, and has not been told.
    pub(crate) fn is_over(&self, now_s: u64) -> bool {
        !self.end_is_told && self.end(now_s).is_some()
    }

    /// All statements, in as many parts as messages that tell them.
    pub(crate) fn statements(&self) -> Vec<Vec<u8>> {
        parts(self.revocations.iter())
    }

    /// All statements, to be kept.
    pub(crate) fn known(&self) -> Vec<u8> {
        Revocation::to_bytes(self.revocations.iter())
    }
}

/// Statements in as many parts as messages that tell them.
pub(crate) fn parts<'a>(statements: impl IntoIterator<Item = &'a Revocation>) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for statement in statements {
        let bytes = Revocation::to_bytes([statement]);
        match parts.last_mut().filter(|part| part.len() + bytes.len() <= REVOCATION_BYTES_MAX) {
            Some(part) => part.extend(bytes),
            None => parts.push(bytes),
        }
    }
    parts
}

/// Each certificate that has another one behind it, with the holder of that.
fn pairs(chain: &Chain) -> impl Iterator<Item = (&Certificate, PeerId)> {
    let certificates = chain.certificates();
    let behind = certificates.iter().skip(1).map(|next| next.grant().holder);
    certificates.iter().zip(behind)
}

fn issued(invitation: &Certificate) -> Issued {
    (*invitation.issuer(), invitation.grant().number)
}

fn ended(chain: &Chain, now_s: u64) -> Option<String> {
    let not_after_s = chain.last()?.not_after_s;
    (now_s > not_after_s).then(|| ChainError::Expired { not_after_s }.to_string())
}

/// What a chain that holds lets its holder do; an owner's is empty.
#[must_use]
pub fn role_of(chain: &Chain) -> Role {
    chain.last().map_or(Role::Train, |last| last.role)
}

/// That a statement takes something back, in words.
fn removed(statement: &Revocation) -> String {
    let by = statement.issuer().short();
    match statement.target() {
        Target::Holder(holder) => format!("{} was removed by {by}", holder.short()),
        Target::Number(number) => format!("invitation {number:016x} was revoked by {by}"),
    }
}

fn difference(theirs: &str) -> RunDifference {
    let (field, ours) = (INVITATION.to_owned(), "needed".to_owned());
    RunDifference { field, ours, theirs: theirs.to_owned() }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::invitation::{Grant, IssuerKey};

    use super::*;

    fn key(byte: u8) -> IssuerKey {
        IssuerKey::from_seed(&[byte; 32])
    }

    /// Owner 1 invites by key 2; `holder` comes by it.
    fn chain(holder: u8, uses: u8, role: Role) -> Chain {
        let grant = |holder: u8, further, uses| Grant {
            holder: key(holder).peer(),
            role,
            further,
            uses,
            not_before_s: 100,
            not_after_s: 200,
            number: 7,
        };
        let invitation = Chain::default().extended(&key(1), grant(2, 1, uses)).unwrap();
        invitation.extended(&key(2), grant(holder, 0, 1)).unwrap()
    }

    fn admission(own: &Chain) -> Admission {
        let pass = Pass::new(vec![key(1).peer()], own.clone());
        Admission::new((key(3).peer(), pass), (Vec::new(), &[]), 150)
    }

    /// Judges the chain of `holder` and lets it in; what is wrong, if anything is.
    fn judge(admission: &mut Admission, holder: u8, chain: &Chain, now_s: u64) -> Option<String> {
        let peer = key(holder).peer();
        let judged = admission.judge(peer, &chain.to_bytes(), now_s);
        let let_in = judged.and_then(|judged| admission.let_in(peer, judged, now_s));
        let_in.err().map(|difference| difference.to_string())
    }

    #[test]
    fn who_has_no_valid_invitation_is_told_what_is_wrong() {
        let mut admission = admission(&chain(3, 0, Role::Train));
        let mut says = |holder, chain: &Chain, now_s| {
            judge(&mut admission, holder, chain, now_s).unwrap_or_default()
        };
        assert_eq!(says(4, &chain(4, 0, Role::Train), 150), "");
        assert_eq!(says(1, &Chain::default(), 150), "", "an owner");
        let missing = "run.invitation is \"needed\" here and \"there is no invitation\" there";
        assert_eq!(says(5, &Chain::default(), 150), missing);
        assert!(says(5, &chain(4, 0, Role::Train), 150).contains("that of another peer"));
        assert!(says(4, &chain(4, 0, Role::Train), 201).contains("has expired"));
        assert!(admission.take_turned_away(key(5).peer()));
        assert!(!admission.take_turned_away(key(5).peer()));
        let mut without = Admission::default();
        assert_eq!(judge(&mut without, 5, &Chain::default(), 150), None);
    }

    #[test]
    fn a_chain_says_what_its_holder_may_do() {
        let mut admission = admission(&chain(3, 0, Role::Relay));
        assert_eq!(admission.own_role(), Role::Relay);
        for role in [Role::Relay, Role::Observe, Role::Train] {
            let shown = chain(4, 0, role).to_bytes();
            assert_eq!(admission.judge(key(4).peer(), &shown, 150).unwrap().role, role);
        }
        // An owner may do everything, and so may everybody in a run without owners.
        let owner = admission.judge(key(1).peer(), &Chain::default().to_bytes(), 150);
        assert_eq!(owner.unwrap().role, Role::Train);
        let mut without = Admission::default();
        assert_eq!(without.own_role(), Role::Train);
        assert_eq!(without.judge(key(5).peer(), &[], 150).unwrap().role, Role::Train);
    }

    #[test]
    fn an_invitation_is_used_as_often_as_it_says_and_again_by_the_same_peer() {
        let mut admission = admission(&Chain::default());
        for _ in 0..2 {
            for holder in [3, 4] {
                assert_eq!(
                    judge(&mut admission, holder, &chain(holder, 2, Role::Train), 150),
                    None
                );
            }
            let error = judge(&mut admission, 5, &chain(5, 2, Role::Train), 150).unwrap();
            assert!(error.contains("used up"), "{error}");
            admission.forget(key(3).peer());
        }
    }

    #[test]
    fn who_is_refused_for_something_else_has_not_used_its_invitation() {
        let mut admission = admission(&Chain::default());
        let shown = |holder| chain(holder, 1, Role::Train).to_bytes();
        assert!(admission.judge(key(3).peer(), &shown(3), 150).is_ok());
        // It comes again under another name.
        assert_eq!(judge(&mut admission, 4, &chain(4, 1, Role::Train), 150), None);
        assert!(admission.judge(key(3).peer(), &shown(3), 150).is_err());
    }

    #[test]
    fn uses_that_are_kept_count_at_the_next_start() {
        let mut first = admission(&Chain::default());
        assert_eq!(first.take_new_uses(), None);
        assert_eq!(judge(&mut first, 3, &chain(3, 1, Role::Train), 150), None);
        let kept = InvitationUse::to_bytes(&first.take_new_uses().unwrap());
        assert_eq!(first.take_new_uses(), None, "they were told");
        let kept = InvitationUse::from_bytes(&kept).unwrap();
        let mut again =
            Admission::new((key(3).peer(), first.pass.clone()), (Vec::new(), &kept), 150);
        assert_eq!(judge(&mut again, 3, &chain(3, 1, Role::Train), 150), None, "the same one");
        let error = judge(&mut again, 4, &chain(4, 1, Role::Train), 150).unwrap();
        assert!(error.contains("used up"), "{error}");
        assert_eq!(again.take_new_uses(), None, "nothing is new");
    }

    #[test]
    fn who_is_removed_or_whose_time_is_over_is_found() {
        let mut admission = admission(&chain(3, 0, Role::Train));
        assert_eq!(judge(&mut admission, 4, &chain(4, 0, Role::Train), 150), None);
        assert!(admission.gone(200).is_empty() && !admission.has_ended(200));
        assert_eq!(admission.gone(201).len(), 1);
        assert!(admission.has_ended(201) && admission.end(201).unwrap().contains("expired"));
        let remove = |holder: u8, by: u8| {
            Revocation::sign(&key(by), Target::Holder(key(holder).peer()), 200, Chain::default())
        };
        let learnt = admission.learn(vec![remove(4, 5)], Source::Own, 150);
        assert!(
            learnt.new.is_empty() && learnt.refused.is_some() && admission.gone(150).is_empty()
        );
        assert_eq!(
            admission.learn(vec![remove(4, 1), remove(4, 1)], Source::Own, 150).new.len(),
            1
        );
        let gone = admission.gone(150);
        assert_eq!(gone[0].0, key(4).peer());
        assert!(gone[0].1.theirs.contains("was removed by"), "{:?}", gone[0].1);
        assert_eq!(admission.end(150), None);
        let back = chain(4, 0, Role::Train);
        assert!(judge(&mut admission, 4, &back, 150).is_some());
        let against = admission.against(&key(4).peer(), &back.to_bytes()).unwrap();
        assert_eq!(Revocation::from_bytes(&against).unwrap(), [remove(4, 1)]);
        assert_eq!(admission.learn(vec![remove(3, 1)], Source::Own, 150).new.len(), 1);
        assert!(admission.own_end(150).unwrap().contains("was removed"));
        assert_eq!(admission.own_end(150), None, "it was told");
        let known = Revocation::from_bytes(&admission.known()).unwrap();
        assert_eq!(known.len(), 2);
        let again = Admission::new((key(3).peer(), admission.pass.clone()), (known, &[]), 150);
        assert!(again.end(150).is_some());
    }

    #[test]
    fn whom_an_owner_has_let_in_is_out_once_enough_owners_say_that_it_is_none() {
        // Owner 8 beside owner 1; this peer is owner 8.
        let pass = Pass::new(vec![key(1).peer(), key(8).peer()], Chain::default());
        let mut admission = Admission::new((key(8).peer(), pass), (Vec::new(), &[]), 150);
        let shown = chain(4, 0, Role::Train);
        assert_eq!(judge(&mut admission, 4, &shown, 150), None);
        assert_eq!(judge(&mut admission, 1, &Chain::default(), 150), None);
        let vote = |by: u8| {
            let about = Target::Holder(key(1).peer());
            Revocation::sign(&key(by), about, u64::MAX, Chain::default())
        };
        assert_eq!(admission.learn(vec![vote(8)], Source::Peer, 150).new.len(), 1);
        assert!(
            admission.gone(150).is_empty() && admission.against(&key(4).peer(), &[0]).is_none()
        );
        assert_eq!(admission.learn(vec![vote(1)], Source::Peer, 150).new.len(), 1);
        let gone: BTreeSet<_> = admission.gone(150).into_iter().map(|(peer, _)| peer).collect();
        assert_eq!(gone, BTreeSet::from([key(1).peer(), key(4).peer()]));
        for (holder, shown) in [(4, &shown), (1, &Chain::default())] {
            let error = judge(&mut admission, holder, shown, 150).unwrap();
            assert!(error.contains("was removed by the other owners"), "{error}");
            let told = admission.against(&key(holder).peer(), &shown.to_bytes()).unwrap();
            assert_eq!(Revocation::from_bytes(&told).unwrap().len(), 2, "as many as count");
        }
        assert_eq!(admission.end(150), None, "the other owner stays");
    }

    #[test]
    fn statements_are_told_in_messages_that_may_be_sent() {
        let statements: Vec<_> = (0..1024)
            .map(|number| Revocation::sign(&key(1), Target::Number(number), 200, Chain::default()))
            .collect();
        let parts = parts(&statements);
        assert!(parts.len() < 8 && parts.iter().all(|part| part.len() <= REVOCATION_BYTES_MAX));
        let read = parts.iter().flat_map(|part| Revocation::from_bytes(part).unwrap());
        assert_eq!(read.collect::<Vec<_>>(), statements);
    }
}
