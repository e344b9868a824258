//! Owners who say that one of them is none any more: when that counts, and what a stolen key can do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use dnode_protocol::PeerId;
use dnode_protocol::invitation::{
    Chain, Grant, IssuerKey, Revocation, RevocationError, Revocations, Role, Target, votes_needed,
};
use dnode_protocol::limits::{OWNER_VOTES_MAX, OWNERS_MAX, REVOCATIONS_MAX};

/// The owner whose key is stolen.
const STOLEN: u8 = 1;

fn key(number: u8) -> IssuerKey {
    IssuerKey::from_seed(&[number; 32])
}

fn peer(number: u8) -> PeerId {
    key(number).peer()
}

/// Owners 1, 2, …
fn owners(count: u8) -> Vec<PeerId> {
    (1..=count).map(peer).collect()
}

/// What `owner` signs for `holder`, as early as it likes to say.
fn invited(owner: u8, holder: u8, not_before_s: u64) -> Chain {
    let (role, further, uses, not_after_s) = (Role::Train, 1, 1, 200);
    let (holder, number) = (peer(holder), holder.into());
    let grant = Grant { holder, role, further, uses, not_before_s, not_after_s, number };
    Chain::default().extended(&key(owner), grant).unwrap()
}

fn vote(by: u8, about: u8) -> Revocation {
    Revocation::sign(&key(by), Target::Holder(peer(about)), u64::MAX, Chain::default())
}

/// Takes back the certificates with the number of this peer.
fn removal(by: u8, number: u8) -> Revocation {
    Revocation::sign(&key(by), Target::Number(number.into()), 300, Chain::default())
}

fn is_in(known: &Revocations, holder: u8, chain: &Chain) -> bool {
    known.revokes(&peer(holder), chain).is_none()
}

#[test]
fn more_than_half_of_the_owners_end_what_one_has_signed_and_fewer_nothing() {
    assert_eq!([0, 1, 2, 3, 4].map(votes_needed), [None, None, Some(2), Some(2), Some(3)]);
    for count in 2..=4_u8 {
        let owners = owners(count);
        assert!(owners.len() <= OWNERS_MAX);
        let needed = u8::try_from(votes_needed(owners.len()).unwrap()).unwrap();
        let (old, new) = (invited(STOLEN, 20, 100), invited(count, 21, 100));
        let mut known = Revocations::default();
        for by in 1..=needed {
            assert!(!known.is_out(&peer(STOLEN)) && is_in(&known, 20, &old), "{by} of {count}");
            assert!(is_in(&known, STOLEN, &Chain::default()));
            assert_eq!(known.insert(vote(by, STOLEN), &owners, 150), Ok(true));
            assert_eq!(known.insert(vote(by, STOLEN), &owners, 150), Ok(false));
        }
        assert!(known.is_out(&peer(STOLEN)) && !is_in(&known, 20, &old));
        assert_eq!(known.votes_about(&peer(STOLEN)).count(), needed.into());
        assert!(!is_in(&known, STOLEN, &Chain::default()), "nor is the owner's own peer");
        assert!(is_in(&known, 21, &new) && is_in(&known, count, &Chain::default()));
        // They outlast every certificate, and are read back as they were.
        assert_eq!(
            known.insert(removal(count, 20), &owners, u64::MAX - 1),
            Err(RevocationError::Over)
        );
        let kept = Revocation::from_bytes(&Revocation::to_bytes(known.iter())).unwrap();
        assert!(Revocations::of(kept, &owners, u64::MAX - 1).is_out(&peer(STOLEN)));
    }
}

#[test]
fn one_stolen_key_removes_no_owner_and_a_single_owner_is_never_removed() {
    for count in 1..=4_u8 {
        let owners = owners(count);
        let mut known = Revocations::default();
        for about in 1..=count {
            assert_eq!(known.insert(vote(STOLEN, about), &owners, 150), Ok(true));
            assert!((1..=count).all(|owner| !known.is_out(&peer(owner))), "{about} of {count}");
        }
        // Others have no vote, whatever they show.
        let stranger = known.insert(vote(30, STOLEN), &owners, 150);
        assert!(matches!(stranger, Err(RevocationError::Issuer(_))), "{stranger:?}");
        let member =
            Revocation::sign(&key(31), Target::Holder(peer(STOLEN)), 200, invited(STOLEN, 31, 100));
        assert_eq!(known.insert(member, &owners, 150), Ok(true), "of what it has issued: nothing");
        assert!(is_in(&known, 20, &invited(STOLEN, 20, 100)));
        let brief = Target::Holder(peer(count));
        let brief = Revocation::sign(&key(count), brief, 200, Chain::default());
        let mut without = Revocations::default();
        assert_eq!(without.insert(brief, &owners, 150), Err(RevocationError::Brief));
        let mut forged = Revocation::to_bytes([&vote(count, STOLEN)]);
        let at = forged.len() - 10;
        forged[at] ^= 1;
        let forged = Revocation::from_bytes(&forged).unwrap().remove(0);
        assert_eq!(without.insert(forged, &owners, 150), Err(RevocationError::Unsigned));
        assert!(without.is_empty());
    }
}

#[test]
fn what_counts_at_last_is_the_same_in_whatever_order_it_is_heard() {
    let owners = owners(3);
    let theirs = Revocation::sign(&key(31), Target::Number(9), 200, invited(STOLEN, 31, 100));
    let all = [
        vote(2, STOLEN),
        vote(3, STOLEN),
        removal(STOLEN, 21),
        removal(2, 22),
        theirs,
        vote(STOLEN, 2),
    ];
    let mut orders = vec![Vec::new()];
    for _ in 0..all.len() {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let rest: Vec<_> = (0..all.len()).filter(|it| !order.contains(it)).collect();
                rest.into_iter().map(move |next| [&order[..], &[next]].concat())
            })
            .collect();
    }
    assert_eq!(orders.len(), 720);
    for order in orders {
        let mut known = Revocations::default();
        for at in &order {
            // Whether it counts at once depends on the order.
            let _ = known.insert(all[*at].clone(), &owners, 150);
        }
        let mut left: Vec<_> = known.iter().cloned().collect();
        left.sort_by_key(|statement| all.iter().position(|it| it == statement));
        let expected = [0, 1, 3, 5].map(|at: usize| all[at].clone());
        assert_eq!(left, expected, "{order:?}");
        assert!(known.is_out(&peer(STOLEN)) && !known.is_out(&peer(2)));
        assert!(is_in(&known, 21, &invited(2, 21, 100)), "the stolen key removes nobody");
        assert!(!is_in(&known, 22, &invited(2, 22, 100)));
    }
}

#[test]
fn no_flood_of_a_stolen_key_leaves_no_room_for_the_votes_against_it() {
    let owners = owners(2);
    let mut known = Revocations::default();
    for number in 0..REVOCATIONS_MAX {
        let target = Target::Number(number as u64);
        let statement = Revocation::sign(&key(STOLEN), target, u64::MAX, Chain::default());
        assert_eq!(known.insert(statement, &owners, 150), Ok(true));
    }
    for by in 1..=2 {
        assert_eq!(known.insert(vote(by, STOLEN), &owners, 150), Ok(true));
        let all = Revocation::from_bytes(&Revocation::to_bytes(known.iter())).unwrap();
        assert!(all.len() <= REVOCATIONS_MAX + OWNER_VOTES_MAX);
    }
    assert_eq!(known.len(), 2, "what the stolen key has said is gone");
}

#[test]
fn a_certificate_has_the_time_that_its_issuer_likes() {
    // Why no date parts what an owner has signed from what a thief of its key signs: see ADR 0059.
    let (before, after_theft) = (invited(STOLEN, 20, 100), invited(STOLEN, 66, 100));
    for (holder, chain) in [(20, &before), (66, &after_theft)] {
        assert!(chain.verify(&owners(2), &peer(holder), 150).is_ok());
    }
    let times = |chain: &Chain| chain.last().map(|last| (last.not_before_s, last.not_after_s));
    assert_eq!(times(&before), times(&after_theft));
}
