//! Bytes of a file as an audit log, and changes to one that holds.

use std::sync::OnceLock;

use dnode_audit::{
    Carried, Entry, Figure, Joined, Judged, Log, Lost, Reading, Text, Trust, Way, decode, encode,
};
use dnode_protocol::PeerId;
use libp2p_identity::ed25519::{Keypair, SecretKey};

/// Reads `data` as a line, as a file, and as changes to a log that holds.
pub fn audit(data: &[u8]) {
    if let Ok(record) = decode(data) {
        assert_eq!(encode(&record), data, "a line has one text");
    }
    read(data);
    let sound = sound_log();
    let mut changed = sound.to_vec();
    // Three bytes are a change: where, and by what.
    for [high, low, by] in data.as_chunks::<3>().0 {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % changed.len();
        changed[at] ^= by;
    }
    assert_eq!(read(&changed), changed == sound, "nobody changes a sealed log unseen");
}

/// A log of a few lines, with the bytes that its peer wrote.
pub fn sound_log() -> &'static [u8] {
    static LOG: OnceLock<Vec<u8>> = OnceLock::new();
    LOG.get_or_init(|| {
        let Ok(secret) = SecretKey::try_from_bytes([1; 32]) else { unreachable!("any 32 bytes") };
        let key = Keypair::from(secret);
        let me = PeerId::from_public_key(key.public().to_bytes());
        let sign =
            move |words: &[u8]| -> [u8; 64] { key.sign(words).try_into().expect("64 bytes") };
        let mut log = Log::new(me, Box::new(sign));
        let mut bytes = log.next_file(1);
        for entry in entries() {
            bytes.extend(log.add(2, entry));
        }
        bytes.extend(log.seal(3).expect("lines without a seal"));
        bytes
    })
}

fn entries() -> Vec<Entry> {
    let peer = PeerId::from_public_key([7; 32]);
    let address = Text::new("/ip4/192.0.2.7/udp/4001/quic-v1");
    let (why, length, most) = (Text::new("too far away"), Figure::new(2.5), Figure::new(1.7));
    vec![
        Entry::Joined(Joined { peer, way: Way::Secret, incarnation: 9, address, by: None }),
        Entry::Judged(Judged { peer, trust: Trust::LeftOut, why, length, most }),
        Entry::Carried(Carried { peer: None, account: dnode_audit::Account::default() }),
        Entry::Lost(Lost { lines: 3 }),
    ]
}

/// Whether all lines of a file hold.
fn read(file: &[u8]) -> bool {
    let mut reading = Reading::new();
    reading.begin_file();
    for line in file.split_inclusive(|byte| *byte == b'\n') {
        let before = reading.clone();
        if reading.line(line.strip_suffix(b"\n").unwrap_or(line)).is_err() {
            assert_eq!(reading, before, "what is refused changes nothing");
            return false;
        }
        assert_eq!(reading.findings().unsigned == 0, reading.findings().last == 0 || is_seal(line));
    }
    true
}

fn is_seal(line: &[u8]) -> bool {
    line.windows(13).any(|part| part == b"\"kind\":\"seal\"")
}
