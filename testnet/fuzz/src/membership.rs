//! Bytes of a stranger as a ticket, and as words of the proof of membership.

use dnode_protocol::PeerId;
use dnode_protocol::limits::{
    TICKET_ADDRESS_BYTES_MAX, TICKET_ADDRESSES_MAX, TICKET_TEXT_BYTES_MAX,
};
use dnode_protocol::membership::{
    Answering, Ends, Opening, PROOF_VERSION, RunSecret, TICKET_PREFIX, Ticket,
};

/// Reads `data` as the text of a ticket, as the bytes behind a right checksum, which no fuzzer would
/// find, and as what each end of a connection says to the other.
pub fn membership(data: &[u8]) {
    ticket(&String::from_utf8_lossy(data));
    let context = "dnode 2026-11-25 checksum of a ticket v1";
    let sum = blake3::Hasher::new_derive_key(context).update(data).finalize();
    let bytes = [data, &sum.as_bytes()[..4]].concat();
    if bytes.len() <= TICKET_TEXT_BYTES_MAX {
        ticket(&format!("{TICKET_PREFIX}{}", bs58::encode(bytes).into_string()));
    }
    proof(data);
}

fn ticket(text: &str) {
    let Ok(ticket) = text.parse::<Ticket>() else { return };
    let addresses = ticket.addresses();
    assert!(addresses.len() <= TICKET_ADDRESSES_MAX, "the number is checked");
    let fits = |bytes: &Vec<u8>| (1..=TICKET_ADDRESS_BYTES_MAX).contains(&bytes.len());
    assert!(addresses.iter().all(fits), "lengths are checked");
    assert_eq!(ticket.to_text(), text.trim(), "a ticket has one text");
}

fn proof(data: &[u8]) {
    let secret = RunSecret::from_bytes([7; RunSecret::BYTES]);
    let peer = |byte| PeerId::from_public_key([byte; 32]);
    let ends = Ends { dialer: peer(1), listener: peer(2) };
    let opening = Opening::new(&secret, ends, [3; 32]);
    if let Some((hello, rest)) = data.split_first_chunk() {
        let answering = Answering::new(&secret, ends, [4; 32], hello);
        assert_eq!(answering.is_ok(), hello[0] == PROOF_VERSION, "the version alone is refused");
        if let (Ok(answering), Some(word)) = (answering, rest.first_chunk()) {
            assert!(answering.verify(word).is_err(), "nobody guesses a proof");
        }
    }
    if let Some(answer) = data.first_chunk() {
        assert!(opening.prove(answer).is_err(), "nobody guesses an answer");
    }
}
