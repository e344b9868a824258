//! Bytes of a stranger as what a member shows: passes, chains and revocations.

use dnode_protocol::PeerId;
use dnode_protocol::invitation::{Chain, IssuerKey, Pass, Revocation, Revocations};
use dnode_protocol::limits::{
    CHAIN_MAX, MEMBER_REVOCATIONS_MAX, OWNER_VOTES_MAX, OWNERS_MAX, REVOCATIONS_MAX,
};

/// Reads `data` as a chain, as a pass and as revocations, and judges what was read.
pub fn invitation(data: &[u8]) {
    let owner = IssuerKey::from_seed(&[1; 32]).peer();
    let stranger = PeerId::from_public_key([7; 32]);
    if let Ok(chain) = Chain::from_bytes(data) {
        assert!(chain.certificates().len() <= CHAIN_MAX, "the number is checked");
        assert_eq!(chain.to_bytes(), data, "a chain has one form");
        assert!(chain.verify(&[owner], &stranger, 150).is_err(), "nobody signs for a stranger");
    }
    if let Some(pass) = Pass::from_bytes(data) {
        assert!((1..=OWNERS_MAX).contains(&pass.owners().len()), "the number is checked");
        assert_eq!(pass.to_bytes(), data, "a pass has one form");
    }
    if let Some(statements) = Revocation::from_bytes(data) {
        let most = REVOCATIONS_MAX + OWNER_VOTES_MAX;
        assert!(statements.len() <= most, "the number is checked");
        assert_eq!(Revocation::to_bytes(&statements), data, "a statement has one form");
        let mut known = Revocations::default();
        for statement in statements {
            // Only the seeds are signed.
            let _ = known.insert(statement, &[owner], 150);
        }
        assert!(known.len() <= most, "they are bounded");
        assert!(!known.is_out(&owner), "a single owner stays");
        let by_members = known.iter().filter(|it| *it.issuer() != owner).count();
        assert!(by_members <= MEMBER_REVOCATIONS_MAX, "so are those of members");
    }
}
