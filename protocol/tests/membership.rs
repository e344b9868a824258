//! The proof of membership and tickets: their bytes, and what holds for all of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dnode_protocol::PeerId;
use dnode_protocol::invitation::{Chain, Grant, IssuerKey, Pass, Role};
use dnode_protocol::limits::{
    TICKET_ADDRESS_BYTES_MAX, TICKET_ADDRESSES_MAX, TICKET_TEXT_BYTES_MAX,
};
use dnode_protocol::membership::{
    ANSWER_BYTES, Answering, Ends, HELLO_BYTES, Invitation, NONCE_BYTES, Opening, PROOF_BYTES,
    PROOF_VERSION, ProofError, RunSecret, Ticket, TicketError,
};
use proptest::collection::vec;
use proptest::prelude::*;

const DIALERS: [u8; NONCE_BYTES] = [3; NONCE_BYTES];
const LISTENERS: [u8; NONCE_BYTES] = [4; NONCE_BYTES];

fn secret(byte: u8) -> RunSecret {
    RunSecret::from_bytes([byte; RunSecret::BYTES])
}

fn ends(dialer: u8, listener: u8) -> Ends {
    let peer = |byte| PeerId::from_public_key([byte; 32]);
    Ends { dialer: peer(dialer), listener: peer(listener) }
}

type Words = ([u8; HELLO_BYTES], [u8; ANSWER_BYTES], [u8; PROOF_BYTES]);

/// All that two members say.
fn honest() -> Words {
    let opening = Opening::new(&secret(7), ends(1, 2), DIALERS);
    let hello = opening.hello();
    let answering = Answering::new(&secret(7), ends(1, 2), LISTENERS, &hello).unwrap();
    let answer = answering.answer();
    let proof = opening.prove(&answer).unwrap();
    answering.verify(&proof).unwrap();
    (hello, answer, proof)
}

#[test]
fn the_bytes_are_those_of_the_specification() {
    let (hello, answer, proof) = honest();
    assert_eq!((hello[0], &hello[1..]), (PROOF_VERSION, &DIALERS[..]));
    assert_eq!(answer[..NONCE_BYTES], LISTENERS);
    let key = blake3::derive_key("dnode 2026-11-25 proof of membership v1", &[7; 32]);
    let hash = |role: u8| {
        let parts = [&[1, role][..], &[1; 32], &[2; 32], &DIALERS, &LISTENERS].concat();
        *blake3::keyed_hash(&key, &parts).as_bytes()
    };
    assert_eq!(answer[NONCE_BYTES..], hash(0));
    assert_eq!(proof, hash(1));
    // As docs/protocol.md has them.
    let hex = |bytes: [u8; 32]| blake3::Hash::from_bytes(bytes).to_hex().to_string();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md"));
    let text = text.unwrap();
    for bytes in [hash(0), hash(1)] {
        assert!(text.contains(&hex(bytes)), "docs/protocol.md lacks {}", hex(bytes));
    }
}

/// What a listener of `ends` with that secret and nonce says to a dialer's words.
fn judged(key: u8, ends: Ends, nonce: [u8; NONCE_BYTES], words: &Words) -> Result<(), ProofError> {
    let answering = Answering::new(&secret(key), ends, nonce, &words.0)?;
    answering.verify(&words.2)
}

#[test]
fn a_proof_is_good_for_one_secret_one_connection_and_one_direction() {
    let words = honest();
    assert_eq!(judged(7, ends(1, 2), LISTENERS, &words), Ok(()));
    let stranger = Err(ProofError::Stranger);
    assert_eq!(judged(8, ends(1, 2), LISTENERS, &words), stranger, "another secret");
    assert_eq!(judged(7, ends(1, 2), [5; 32], &words), stranger, "said again to a fresh nonce");
    assert_eq!(judged(7, ends(9, 2), LISTENERS, &words), stranger, "said by another peer");
    assert_eq!(judged(7, ends(1, 9), LISTENERS, &words), stranger, "passed on to another peer");
    // A listener that gives back the hash it was given proves nothing, and neither does a dialer that
    // gives back the listener's.
    let (hello, answer, proof) = words;
    let mut reflected = answer;
    reflected[NONCE_BYTES..].copy_from_slice(&proof);
    let opening = || Opening::new(&secret(7), ends(1, 2), DIALERS);
    assert_eq!(opening().prove(&reflected), Err(ProofError::Stranger));
    let mut echoed = [0; PROOF_BYTES];
    echoed.copy_from_slice(&answer[NONCE_BYTES..]);
    assert_eq!(judged(7, ends(1, 2), LISTENERS, &(hello, answer, echoed)), stranger);
    // An answer to another dialer, or to an earlier word, proves nothing to this one.
    let other = |ends, nonce| Opening::new(&secret(7), ends, nonce).prove(&answer);
    assert_eq!(other(ends(9, 2), DIALERS), Err(ProofError::Stranger));
    assert_eq!(other(ends(1, 2), [5; 32]), Err(ProofError::Stranger));
    assert!(opening().prove(&answer).is_ok());
}

#[test]
fn another_version_is_named() {
    let (mut hello, answer, proof) = honest();
    hello[0] = 9;
    let judged = judged(7, ends(1, 2), LISTENERS, &(hello, answer, proof));
    assert_eq!(judged, Err(ProofError::Version(9)));
}

#[test]
fn a_ticket_is_read_back_and_damage_is_told_without_showing_it() {
    let ticket = Ticket::new(secret(7), [vec![4, 127, 0, 0, 1], vec![9; 255]]).unwrap();
    let text = ticket.to_text();
    assert!(text.starts_with("dnode1"), "{text}");
    assert_eq!(text.parse::<Ticket>().as_ref(), Ok(&ticket));
    assert_eq!(format!(" {text}\n").parse(), Ok(ticket.clone()));
    assert!(!ticket.to_string().contains(&text[6..20]));
    let other = if text.as_bytes()[20] == b'x' { "y" } else { "x" };
    let damaged = format!("{}{other}{}", &text[..20], &text[21..]);
    assert_eq!(damaged.parse::<Ticket>(), Err(TicketError::Checksum));
    assert_eq!(text[..60].parse::<Ticket>(), Err(TicketError::Checksum));
    assert_eq!("dnode1".parse::<Ticket>(), Err(TicketError::Text));
    assert_eq!("dnode10O".parse::<Ticket>(), Err(TicketError::Text));
    assert_eq!("/ip4/192.0.2.7/udp/1".parse::<Ticket>(), Err(TicketError::Prefix));
    let long = format!("dnode1{}", "1".repeat(TICKET_TEXT_BYTES_MAX));
    assert_eq!(long.parse::<Ticket>(), Err(TicketError::Text));
}

#[test]
fn an_invitation_is_read_back_and_its_key_is_the_one_that_its_chain_leads_to() {
    let [owner, key] = [1, 2].map(|byte| IssuerKey::from_seed(&[byte; 32]));
    let grant = Grant {
        holder: key.peer(),
        role: Role::Train,
        further: 1,
        uses: 1,
        not_before_s: 1,
        not_after_s: 2,
        number: 3,
    };
    let chain = Chain::default().extended(&owner, grant).unwrap();
    let pass = Pass::new(vec![owner.peer()], chain).unwrap();
    let ticket = Ticket::new(secret(7), [vec![4, 127, 0, 0, 1]]).unwrap();
    let wrong = Invitation { pass: pass.clone(), key: owner };
    assert_eq!(ticket.clone().inviting(wrong), Err(TicketError::Invitation));
    let ticket = ticket.inviting(Invitation { pass, key }).unwrap();
    let text = ticket.to_text();
    assert_eq!(text.parse::<Ticket>().as_ref(), Ok(&ticket));
    let shown = format!("{ticket:?}{ticket}");
    assert!(!shown.contains("[2, 2") && !shown.contains("0202"), "{shown}");
}

#[test]
fn the_text_of_a_ticket_is_that_of_the_specification() {
    let ticket = Ticket::new(secret(7), [vec![4, 127, 0, 0, 1, 6, 0, 1]]).unwrap();
    let text = ticket.to_text();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md"));
    assert!(docs.unwrap().contains(&format!("`{text}`")), "docs/protocol.md lacks {text}");
}

/// A ticket of another version, or whose parts contradict each other, behind a right checksum.
#[test]
fn what_no_dnode_writes_is_refused() {
    let text = |body: &[u8]| {
        let context = "dnode 2026-11-25 checksum of a ticket v1";
        let sum = blake3::Hasher::new_derive_key(context).update(body).finalize();
        let bytes = [body, &sum.as_bytes()[..4]].concat();
        format!("dnode1{}", bs58::encode(bytes).into_string())
    };
    let body = |version: u8, rest: &[u8]| [&[version][..], &[7; 32], rest].concat();
    let read = |body: &[u8]| text(body).parse::<Ticket>().map(|ticket| ticket.addresses().len());
    assert_eq!(read(&body(1, &[0])), Ok(0));
    assert_eq!(read(&body(3, &[0])), Err(TicketError::Version(3)));
    assert_eq!(read(&body(2, &[0])), Err(TicketError::Invitation));
    assert_eq!(read(&body(1, &[1, 2, 9, 9])), Ok(1));
    for rest in [&[1, 2, 9][..], &[1], &[0, 9], &[1, 0], &[9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]] {
        assert_eq!(read(&body(1, rest)), Err(TicketError::Addresses), "{rest:?}");
    }
    let nine: Vec<u8> = [9].into_iter().chain([1, 5].repeat(9)).collect();
    assert_eq!(read(&body(1, &nine)), Err(TicketError::Addresses));
    assert_eq!(Ticket::new(secret(1), [vec![0; 256]]), Err(TicketError::Addresses));
    assert_eq!(Ticket::new(secret(1), vec![vec![1]; 9]), Err(TicketError::Addresses));
}

proptest! {
    #[test]
    fn any_ticket_is_read_back(
        key in any::<[u8; 32]>(),
        addresses in vec(vec(any::<u8>(), 1..=TICKET_ADDRESS_BYTES_MAX), 0..=TICKET_ADDRESSES_MAX),
    ) {
        let ticket = Ticket::new(RunSecret::from_bytes(key), addresses).unwrap();
        let text = ticket.to_text();
        prop_assert!(text.len() <= TICKET_TEXT_BYTES_MAX);
        prop_assert_eq!(text.parse(), Ok(ticket));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}", tail in "[1-9A-HJ-NP-Za-km-z]{0,120}") {
        let _ = text.parse::<Ticket>();
        let _ = format!("dnode1{tail}").parse::<Ticket>();
    }

    #[test]
    fn no_other_words_pass(answer in any::<[u8; 32]>(), proof in any::<[u8; 32]>()) {
        let opening = Opening::new(&secret(7), ends(1, 2), DIALERS);
        let hello = opening.hello();
        let answering = Answering::new(&secret(7), ends(1, 2), LISTENERS, &hello).unwrap();
        let mut word = answering.answer();
        if answer != word[NONCE_BYTES..] {
            word[NONCE_BYTES..].copy_from_slice(&answer);
            prop_assert_eq!(opening.prove(&word), Err(ProofError::Stranger));
        }
        if proof != honest().2 {
            prop_assert_eq!(answering.verify(&proof), Err(ProofError::Stranger));
        }
    }
}
