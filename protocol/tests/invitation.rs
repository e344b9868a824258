//! Certificates, chains and revocations: what holds, what does not, and what bytes do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use dnode_protocol::frame::{CONTROL_HEADER_BYTES, decode_control, encode_control};
use dnode_protocol::invitation::{
    Certificate, Chain, ChainError, Grant, IssuerKey, Pass, Revocation, RevocationError,
    Revocations, Role, Target,
};
use dnode_protocol::limits::{
    CHAIN_MAX, MEMBER_REVOCATIONS_MAX, OWNERS_MAX, REVOCATION_BYTES_MAX, REVOCATIONS_MAX,
};
use dnode_protocol::{Message, PeerId};
use proptest::prelude::*;

fn key(number: u8) -> IssuerKey {
    IssuerKey::from_seed(&[number; 32])
}

fn grant(holder: &IssuerKey, further: u8, number: u64) -> Grant {
    let (not_before_s, not_after_s) = (100, 200);
    let (role, uses) = (Role::Train, 1);
    Grant { holder: holder.peer(), role, further, uses, not_before_s, not_after_s, number }
}

/// Owner 1 → key 2 → key 3 → …, the number of each certificate that of its holder.
fn chain(length: u8) -> Chain {
    (2..2 + length).fold(Chain::default(), |chain, holder| {
        let further = length + 1 - holder;
        let given = grant(&key(holder), further, holder.into());
        chain.extended(&key(holder - 1), given).unwrap()
    })
}

fn owners() -> [PeerId; 2] {
    [key(1).peer(), key(9).peer()]
}

/// A chain of certificates that nobody has checked.
fn unchecked(certificates: &[Certificate]) -> Chain {
    let mut bytes = vec![u8::try_from(certificates.len()).unwrap()];
    certificates.iter().for_each(|certificate| bytes.extend(certificate.to_bytes()));
    Chain::from_bytes(&bytes).unwrap()
}

#[test]
fn a_chain_lets_its_holder_in_from_its_beginning_to_its_end() {
    for length in 1..=3 {
        let (chain, holder) = (chain(length), key(1 + length).peer());
        let at = |now_s| chain.verify(&owners(), &holder, now_s);
        assert_eq!(at(99), Err(ChainError::Early { not_before_s: 100 }));
        assert_eq!(at(100).unwrap().role, Role::Train);
        assert_eq!(at(200).unwrap().not_after_s, 200);
        assert_eq!(at(201), Err(ChainError::Expired { not_after_s: 200 }));
    }
}

#[test]
fn an_owner_needs_no_certificate_and_anybody_else_does() {
    let none = Chain::default();
    for owner in owners() {
        assert_eq!(none.verify(&owners(), &owner, 0).unwrap().role, Role::Train);
    }
    assert_eq!(none.verify(&owners(), &key(2).peer(), 150), Err(ChainError::Missing));
}

#[test]
fn a_chain_of_another_peer_or_owner_lets_nobody_in() {
    let chain = chain(2);
    let error = chain.verify(&owners(), &key(4).peer(), 150);
    assert_eq!(error, Err(ChainError::OtherHolder));
    let error = chain.verify(&owners()[1..], &key(3).peer(), 150);
    assert_eq!(error, Err(ChainError::NoOwner));
}

#[test]
fn nobody_gives_more_than_he_has() {
    let parent = Grant { role: Role::Observe, ..grant(&key(2), 2, 2) };
    let first = Chain::default().extended(&key(1), parent).unwrap();
    let least = Grant { holder: key(3).peer(), further: 1, number: 3, ..parent };
    assert!(first.extended(&key(2), least).is_ok());
    let more = [
        Grant { role: Role::Train, ..least },
        Grant { further: 2, ..least },
        Grant { not_before_s: 99, ..least },
        Grant { not_after_s: 201, ..least },
        Grant { not_before_s: 150, not_after_s: 149, ..least },
    ];
    for grant in more {
        assert_eq!(first.extended(&key(2), grant), Err(ChainError::Exceeds));
        // Nor does it help to sign it all the same.
        let forged = unchecked(&[first.certificates()[0], Certificate::sign(&key(2), grant)]);
        let error = forged.verify(&owners(), &key(3).peer(), 150);
        assert_eq!(error, Err(ChainError::Exceeds));
    }
    assert_eq!(first.extended(&key(3), least), Err(ChainError::OtherHolder));
}

#[test]
fn a_certificate_of_somebody_else_cannot_be_put_behind_another() {
    let stolen =
        unchecked(&[chain(2).certificates()[0], Certificate::sign(&key(5), grant(&key(3), 0, 3))]);
    assert_eq!(stolen.verify(&owners(), &key(3).peer(), 150), Err(ChainError::Unsigned));
}

#[test]
fn a_chain_is_no_longer_than_it_may_be() {
    let longest = chain(u8::try_from(CHAIN_MAX).unwrap());
    let bytes = longest.to_bytes();
    assert_eq!(bytes.len(), Chain::BYTES_MAX);
    assert_eq!(Chain::from_bytes(&bytes), Ok(longest.clone()));
    let next = grant(&key(99), 0, 1);
    let last = key(1 + u8::try_from(CHAIN_MAX).unwrap());
    assert_eq!(longest.extended(&last, next), Err(ChainError::Exceeds));
    let mut more = bytes;
    more[0] += 1;
    more.extend([0; Certificate::BYTES]);
    assert_eq!(Chain::from_bytes(&more), Err(ChainError::Bytes));
    assert_eq!(chain(3).to_bytes().len(), 1 + 3 * Certificate::BYTES);
}

#[test]
fn a_pass_is_read_back_and_has_an_owner() {
    let pass = Pass::new(owners().to_vec(), chain(2)).unwrap();
    assert_eq!(Pass::from_bytes(&pass.to_bytes()), Some(pass.clone()));
    assert!(Pass::new(Vec::new(), chain(2)).is_none());
    let many = (1..=OWNERS_MAX + 1).map(|n| key(u8::try_from(n).unwrap()).peer()).collect();
    assert!(Pass::new(many, chain(2)).is_none());
    let mut swapped = pass.to_bytes();
    swapped[1..65].rotate_left(32);
    assert_eq!(Pass::from_bytes(&swapped), None);
}

fn revoke(by: u8, target: Target, chain: Chain) -> Revocation {
    Revocation::sign(&key(by), target, 200, chain)
}

#[test]
fn an_owner_takes_back_a_peer_or_all_who_came_by_an_invitation() {
    for target in [Target::Holder(key(3).peer()), Target::Number(2)] {
        for by in [1, 9] {
            let mut known = Revocations::default();
            assert!(known.revokes(&key(3).peer(), &chain(2)).is_none());
            let statement = revoke(by, target, Chain::default());
            assert_eq!(known.insert(statement.clone(), &owners(), 150), Ok(true));
            assert_eq!(known.insert(statement, &owners(), 150), Ok(false));
            assert_eq!(
                known.revokes(&key(3).peer(), &chain(2)).map(Revocation::target),
                Some(target)
            );
            assert!(known.revokes(&key(4).peer(), &chain(3)).is_some(), "and what follows from it");
            assert!(
                known.revokes(&key(2).peer(), &chain(1)).is_some() == (target == Target::Number(2))
            );
        }
    }
}

#[test]
fn a_member_takes_back_what_it_has_issued_and_nothing_else() {
    let mut known = Revocations::default();
    let own = revoke(3, Target::Holder(key(4).peer()), chain(2));
    assert_eq!(known.insert(own, &owners(), 150), Ok(true));
    assert!(known.revokes(&key(4).peer(), &chain(3)).is_some());
    let another = Chain::default().extended(&key(1), grant(&key(4), 0, 70)).unwrap();
    assert!(known.revokes(&key(4).peer(), &another).is_none(), "that one is the owner's");
    let above = revoke(3, Target::Number(2), chain(2));
    assert_eq!(known.insert(above, &owners(), 150), Ok(true));
    assert!(known.revokes(&key(3).peer(), &chain(2)).is_none(), "it has not issued that");
}

#[test]
fn a_statement_without_a_right_to_it_does_not_count() {
    let target = Target::Holder(key(3).peer());
    let mut known = Revocations::default();
    let mut refused =
        |statement: Revocation, now_s| known.insert(statement, &owners(), now_s).unwrap_err();
    let stranger = refused(revoke(5, target, Chain::default()), 150);
    assert_eq!(stranger, RevocationError::Issuer(ChainError::Missing));
    let thief = refused(revoke(5, target, chain(2)), 150);
    assert_eq!(thief, RevocationError::Issuer(ChainError::OtherHolder));
    assert_eq!(refused(revoke(1, target, Chain::default()), 201), RevocationError::Over);
    for until_s in [201, 199, 151] {
        let other = Revocation::sign(&key(3), target, until_s, chain(2));
        assert_eq!(refused(other, 150), RevocationError::OtherEnd);
    }
    let mut bytes = Revocation::to_bytes([&revoke(1, target, Chain::default())]);
    bytes[40] ^= 1;
    let changed = Revocation::from_bytes(&bytes).unwrap().remove(0);
    assert_eq!(refused(changed, 150), RevocationError::Unsigned);
    assert!(known.is_empty());
    let removed = revoke(1, Target::Holder(key(3).peer()), Chain::default());
    assert_eq!(known.insert(removed, &owners(), 150), Ok(true));
    let late = known.insert(revoke(3, Target::Number(4), chain(2)), &owners(), 150);
    assert_eq!(late, Err(RevocationError::Revoked));
}

#[test]
fn the_latest_to_end_are_kept_and_those_of_owners_before_those_of_members() {
    let mut known = Revocations::default();
    let by_member = |number: usize, until_s| {
        let chain = late_chain(3, 2, until_s);
        Revocation::sign(&key(3), Target::Number(number as u64), until_s, chain)
    };
    for number in 0..MEMBER_REVOCATIONS_MAX {
        assert_eq!(known.insert(by_member(number, 180), &owners(), 150), Ok(true));
    }
    let full = known.insert(by_member(9999, 180), &owners(), 150);
    assert_eq!(full, Err(RevocationError::Full));
    assert_eq!(known.insert(by_member(9999, 190), &owners(), 150), Ok(true));
    assert_eq!(known.len(), MEMBER_REVOCATIONS_MAX);
    let by_owner = |number: usize, until_s| {
        Revocation::sign(&key(1), Target::Number(number as u64), until_s, Chain::default())
    };
    for number in 0..REVOCATIONS_MAX {
        assert_eq!(known.insert(by_owner(number, 300), &owners(), 150), Ok(true));
    }
    assert_eq!(known.len(), REVOCATIONS_MAX);
    let full = known.insert(by_owner(9999, 300), &owners(), 150);
    assert_eq!(full, Err(RevocationError::Full));
    assert_eq!(known.insert(by_owner(9999, 301), &owners(), 150), Ok(true));
    let again = Revocation::from_bytes(&Revocation::to_bytes(known.iter())).unwrap();
    assert_eq!(again.len(), REVOCATIONS_MAX);
    // What has ended makes room by itself.
    assert_eq!(known.insert(by_owner(1, 999), &owners(), 302), Ok(true));
    assert_eq!(known.len(), 1);
}

/// A member by an invitation of its own, whose number is `number`, that ends then.
fn late_chain(holder: u8, number: u64, not_after_s: u64) -> Chain {
    let given = Grant { not_after_s, ..grant(&key(holder), 0, number) };
    Chain::default().extended(&key(1), given).unwrap()
}

#[test]
fn what_is_taken_back_already_is_new_only_where_it_lasts_much_longer() {
    let mut known = Revocations::default();
    let mut says = |until_s, now_s| {
        let statement =
            Revocation::sign(&key(3), Target::Number(7), until_s, late_chain(3, 1, until_s));
        known.insert(statement, &owners(), now_s).unwrap()
    };
    assert!(says(1150, 150));
    for until_s in [1150, 1151, 1275, 500] {
        assert!(!says(until_s, 150), "{until_s}");
    }
    assert!(says(1276, 150));
    assert!(says(1277, 1276), "little is left of the first");
    let news = (1278..=100_000).step_by(10).filter(|until_s| says(*until_s, 1276)).count();
    assert!(news < 100, "{news} in a day");
}

#[test]
fn who_has_said_the_most_gives_way_and_nobody_pushes_out_who_has_said_little() {
    let mut known = Revocations::default();
    let mut says = |issuer: u8, root: u64, number: u64, until_s| {
        let target = Target::Number(number);
        let chain = late_chain(issuer, root, until_s);
        let statement = Revocation::sign(&key(issuer), target, until_s, chain);
        known.insert(statement, &owners(), 150).map_err(|error| error.to_string())
    };
    let most = MEMBER_REVOCATIONS_MAX as u64;
    // An honest member, and one that says what it can, for longer.
    assert_eq!(says(20, 1, 1, 200), Ok(true));
    for number in 0..4 * most {
        let _ = says(21, 2, number, 90_000 + number);
    }
    // By the same invitation under other names: they take from each other.
    for name in 22..40 {
        for number in 0..most {
            let _ = says(name, 2, number, 99_000);
        }
    }
    // Others come later and have their say all the same.
    assert_eq!(says(40, 3, 1, 200), Ok(true));
    assert_eq!(says(41, 4, 1, 200), Ok(true));
    let by = |issuer: u8| known.iter().filter(|kept| *kept.issuer() == key(issuer).peer()).count();
    assert_eq!((by(20), by(40), by(41)), (1, 1, 1));
    assert_eq!(known.len(), MEMBER_REVOCATIONS_MAX);
}

#[test]
fn a_statement_of_which_a_signature_is_none_is_told_apart_from_others() {
    let mut known = Revocations::default();
    let mut forged = |statement: Revocation, now_s| {
        known.insert(statement, &owners(), now_s).unwrap_err().is_forged()
    };
    let target = Target::Number(4);
    let changed = |statement: Revocation, at: usize| {
        let mut bytes = Revocation::to_bytes([&statement]);
        let at = if at == 0 { bytes.len() - 1 } else { at };
        bytes[at] ^= 1;
        Revocation::from_bytes(&bytes).unwrap().remove(0)
    };
    // A byte of the target, and the last one of the signature of the last certificate.
    assert!(forged(changed(revoke(1, target, Chain::default()), 40), 150));
    assert!(forged(changed(revoke(3, target, chain(2)), 0), 150));
    assert!(!forged(revoke(3, target, chain(2)), 90), "it holds by another clock");
    assert!(!forged(revoke(3, target, chain(2)), 201), "the same");
}

#[test]
fn revocations_travel_in_messages_of_bounded_length_and_damaged_ones_in_none() {
    let statement = revoke(1, Target::Number(2), Chain::default());
    let one = Revocation::to_bytes([&statement]);
    let encode = |statements: Vec<u8>| encode_control(&Message::Revocations { statements });
    let most = REVOCATION_BYTES_MAX / one.len();
    let full = Message::Revocations { statements: one.repeat(most) };
    let frame = encode_control(&full).unwrap();
    assert_eq!(decode_control(&frame[CONTROL_HEADER_BYTES..]).unwrap(), full);
    assert!(encode(one.repeat(most + 1)).is_err());
    assert!(encode(Vec::new()).is_err() && encode(one[1..].to_vec()).is_err());
}

proptest! {
    #[test]
    fn a_changed_bit_lets_nobody_in(at in 0..1 + 3 * Certificate::BYTES, bit in 0..8_u32) {
        let mut bytes = chain(3).to_bytes();
        bytes[at] ^= 1 << bit;
        if let Ok(changed) = Chain::from_bytes(&bytes) {
            prop_assert!(changed.verify(&owners(), &key(4).peer(), 150).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_or_written_as_they_were(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
        if let Ok(chain) = Chain::from_bytes(&bytes) {
            prop_assert_eq!(chain.to_bytes(), bytes.clone());
        }
        if let Some(pass) = Pass::from_bytes(&bytes) {
            prop_assert_eq!(pass.to_bytes(), bytes.clone());
        }
        if let Some(statements) = Revocation::from_bytes(&bytes) {
            prop_assert_eq!(Revocation::to_bytes(&statements), bytes);
        }
    }

    /// However a chain is made longer: who is let in by it is let in by each beginning of it.
    #[test]
    fn a_longer_chain_never_gives_more(
        steps in prop::collection::vec((0..3_usize, 0..8_u8, 90..130_u64, 170..230_u64), 1..6),
        now_s in 80..240_u64,
    ) {
        let mut chain = Chain::default();
        let mut least = (Role::Train, u64::MAX);
        for (at, (role, further, not_before_s, not_after_s)) in (1_u8..).zip(steps) {
            let role = Role::ALL[role];
            let holder = key(at + 1).peer();
            let given = Grant { holder, role, further, uses: 0, not_before_s, not_after_s, number: 1 };
            let Ok(longer) = chain.extended(&key(at), given) else { break };
            let member = longer.verify(&owners(), &holder, now_s);
            if let Ok(member) = member {
                prop_assert!(member.role <= least.0 && member.not_after_s <= least.1);
                if let Some(before) = chain.last() {
                    prop_assert!(chain.verify(&owners(), &before.holder, now_s).is_ok());
                }
            }
            least = (role, not_after_s);
            chain = longer;
        }
    }
}
