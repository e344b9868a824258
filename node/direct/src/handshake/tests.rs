//! Handshakes of which somebody in between changes, or withholds, any byte.

use std::cell::Cell;
use std::time::Duration;

use dnode_quic::tls::Identity;
use libp2p_identity::Keypair;
use tokio::io::duplex;

use super::*;

/// How long a handshake may take that nobody changes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long both ends may wait for each other in one that is changed.
const STALLED: Duration = Duration::from_millis(100);

/// By how much one end may say less than another time.
const DIFFERENCE_MAX: usize = 64;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// The byte at this place is another one.
    Flip(usize),
    /// Nothing comes from here on.
    Cut(usize),
}

/// Hands on what `from` says, changed, and counts it.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    change: Change,
    said: &Cell<usize>,
) {
    let mut piece = [0; 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut piece).await else { return };
        let (before, mut bytes) = (said.get(), &mut piece[..count]);
        match change {
            Change::Flip(at) if (before..before + count).contains(&at) => {
                bytes[at - before] ^= 0x15;
            }
            Change::Cut(at) if before + count > at => {
                bytes = &mut bytes[..at.saturating_sub(before)];
            }
            Change::Nothing | Change::Flip(_) | Change::Cut(_) => {}
        }
        let is_cut = bytes.len() < count;
        if to.write_all(bytes).await.is_err() || is_cut {
            return;
        }
        said.set(before + count);
    }
}

struct Both {
    opener: Keypair,
    acceptor: Keypair,
}

impl Both {
    /// One handshake, of which each direction is changed. Returns what both ends agreed on, where they did, and the
    /// bytes that each said.
    async fn meet(
        &self,
        [there, back]: [Change; 2],
        most: Duration,
    ) -> ([Option<Kind>; 2], [usize; 2]) {
        let names = [Kind::Tls, Kind::Plain].map(|kind| kind.name(Usage::Path));
        let expected = Some(self.acceptor.public().to_peer_id());
        let (client, _) = Identity::new(&self.opener).unwrap().client(&names, expected).unwrap();
        let server = Identity::new(&self.acceptor).unwrap().server(&names).unwrap();
        let (mut near, between) = duplex(1 << 16);
        let (other, mut far) = duplex(1 << 16);
        let [(from_near, to_near), (from_far, to_far)] = [between, other].map(tokio::io::split);
        let opens = async {
            let opened = open(&mut near, Arc::new(client)).await;
            drop(near);
            opened.ok().map(|(kind, _)| kind)
        };
        let accepts = async {
            let accepted = accept(&mut far, Arc::new(server)).await;
            drop(far);
            let accepted = accepted.ok()?;
            assert_eq!(accepted.peer, self.opener.public().to_peer_id());
            Some(accepted.kind)
        };
        let (said, answered) = (Cell::new(0), Cell::new(0));
        // Each end hears that it is over when this drops its other end.
        let carries = async {
            tokio::select! {
                () = carry(from_near, to_far, there, &said) => {}
                () = carry(from_far, to_near, back, &answered) => {}
                // A length that was changed: both wait for the other.
                () = tokio::time::sleep(most) => {}
            }
        };
        let (opened, accepted, ()) = tokio::join!(opens, accepts, carries);
        ([opened, accepted], [said.get(), answered.get()])
    }
}
#[tokio::test]
async fn whoever_is_in_between_changes_neither_who_is_met_nor_what_is_agreed() {
    let both = Both { opener: Keypair::generate_ed25519(), acceptor: Keypair::generate_ed25519() };
    let (agreed, said) = both.meet([Change::Nothing; 2], PATIENCE).await;
    assert_eq!(agreed, [Some(Kind::Tls); 2], "the first that the acceptor takes");
    let (mut failed, mut tried) = (0, 0);
    for (direction, bytes) in said.into_iter().enumerate() {
        // Certificates and signatures differ in length from one time to the next.
        let cuts = (0..bytes - DIFFERENCE_MAX).step_by(16).map(Change::Cut);
        for change in (0..bytes).map(Change::Flip).chain(cuts) {
            let mut changes = [Change::Nothing; 2];
            changes[direction] = change;
            let (found, _) = both.meet(changes, STALLED).await;
            for kind in found.into_iter().flatten() {
                assert_eq!(Some(kind), agreed[0], "{direction}: {change:?}");
            }
            tried += 1;
            failed += usize::from(found != agreed);
            if let Change::Cut(_) = change {
                assert_ne!(found, agreed, "{direction}: {change:?}");
            }
        }
    }
    // Some bytes say nothing: the versions in the heads of records.
    assert!(failed * 20 >= tried * 19, "{failed} of {tried}");
}
