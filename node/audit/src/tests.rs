//! Whole logs: what holds, and what is found when somebody has changed them.

use dnode_protocol::PeerId;
use libp2p_identity::ed25519::{Keypair, SecretKey};

use super::*;

/// The key of the peer whose log it is.
fn keypair(of: u8) -> Keypair {
    SecretKey::try_from_bytes([of; 32]).unwrap().into()
}

fn me(of: u8) -> PeerId {
    PeerId::from_public_key(keypair(of).public().to_bytes())
}

fn signer(of: u8) -> Signer {
    let key = keypair(of);
    Box::new(move |words| key.sign(words).try_into().unwrap())
}

fn log() -> Log {
    Log::new(me(1), signer(1))
}

fn other(index: u64) -> PeerId {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&index.to_le_bytes());
    PeerId::from_public_key(key)
}

fn contributed(peer: PeerId, count: u64, moved: f64) -> Entry {
    Entry::Contributed(Contributed {
        peer,
        samples: 640,
        clock: (3, 9),
        count,
        fragments: vec![(0, 4), (9, 1)],
        weight: Figure::new(0.5),
        norm: Figure::new(1.25),
        norm_max: Figure::new(1.0 / 3.0),
        moved: Figure::new(moved),
        shortened: 1,
        undone: 0,
        refused: 2,
        refused_max: Figure::new(1e9),
    })
}

fn judged(peer: PeerId, trust: Trust) -> Entry {
    let (length, most) = (Figure::new(2.1), Figure::new(1.7));
    Entry::Judged(Judged { peer, trust, why: Text::new("far away"), length, most })
}

fn joined(peer: PeerId) -> Entry {
    let address = Text::new("/ip4/192.0.2.7/udp/4001/quic-v1");
    Entry::Joined(Joined { peer, way: Way::Secret, incarnation: 65_537, address, by: None })
}

fn invited() -> Invited {
    let (number, role) = (Text::new("00000000000000ab"), Text::new("train"));
    Invited { issuer: other(9), number, uses: 1, role }
}

/// The same in a run with owners.
fn joined_by(peer: PeerId) -> Entry {
    let address = Text::new("/ip4/192.0.2.7/udp/4001/quic-v1");
    let by = Some(invited());
    Entry::Joined(Joined { peer, way: Way::Invitation, incarnation: 65_537, address, by })
}

fn revoked(peer: Option<PeerId>, number: &str) -> Entry {
    let invitation = Text::new(number);
    Entry::Revoked(Revoked { issuer: other(9), peer, invitation, until_s: 99 })
}

fn start(incarnation: u64) -> Entry {
    let (version, samples) = (Text::new("0.0.0"), 640);
    let (resumed, closed) = (true, true);
    Entry::Start(Start { version, incarnation, resumed, closed, step: 20, samples, clock: 2 })
}

fn end() -> Entry {
    Entry::End(End { reason: Text::new("steps done"), step: 400, samples: 6400, clock: 16 })
}

/// One of each kind that a run has.
fn run() -> Vec<Entry> {
    let peer = other(2);
    let fields =
        vec![(Text::new("run.seed"), Text::new("1")), (Text::new("a"), Text::new("\"é\\"))];
    let content = Hash::from_bytes([5; 32]);
    vec![
        Entry::Opened(Opened { unsigned: 3, cut: 17, unsound: 2 }),
        start(1),
        Entry::Agreed(Agreed { names_run: true, digest: Hash::from_bytes([9; 32]), fields }),
        joined_by(peer),
        Entry::Named(Named { peer, name: Text::new("gpu-7") }),
        Entry::Snapshot(Snapshot { donor: peer, fragment: 4095, clock: 12, content }),
        contributed(peer, 4, 2.5),
        Entry::Trained(Trained { step: 200, samples: 3200, clock: 8 }),
        judged(peer, Trust::WeighedDown),
        judged(peer, Trust::LeftOut),
        Entry::Offended(Offended { peer, what: Text::new("bad parameters") }),
        Entry::Denied(Denied {
            peer: other(3),
            by_us: true,
            field: Text::new("run.seed"),
            ours: Text::new("1"),
            theirs: Text::new("2"),
        }),
        Entry::Group(Group { size: 4, rank: 3 }),
        Entry::Lost(Lost { lines: 8 }),
        Entry::Left(Left { peer, reason: Text::new("it left") }),
        revoked(Some(peer), ""),
        revoked(None, "00000000000000ab"),
        Entry::Expelled(Expelled { why: Text::new("was removed") }),
        Entry::Local(Local { fields: vec![(Text::new("gossip.guard"), Text::new("true"))] }),
        end(),
    ]
}

/// The bytes of a file with these lines, and a seal behind them.
fn file(log: &mut Log, entries: Vec<Entry>) -> Vec<u8> {
    let mut bytes = log.next_file(1_000);
    for (entry, at) in entries.into_iter().zip(2_000..) {
        bytes.extend(log.add(at, entry));
    }
    bytes.extend(log.seal(9_000).unwrap());
    bytes
}

/// Reads whole files; the fault with the number of its line, from 1.
fn read(files: &[&[u8]]) -> Result<Reading, (u64, Fault)> {
    let mut reading = Reading::new();
    for file in files {
        reading.begin_file();
        for (line, number) in file.split_inclusive(|byte| *byte == b'\n').zip(1..) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            reading.line(line).map_err(|fault| (number, fault))?;
        }
    }
    Ok(reading)
}

#[test]
fn every_kind_of_line_is_read_back_and_holds() {
    let bytes = file(&mut log(), run());
    let reading = read(&[&bytes]).unwrap();
    assert_eq!(reading.peer(), Some(me(1)));
    let found = reading.findings();
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!((found.first, found.last, found.unsigned), (1, lines, 0));
    assert_eq!((found.vouched, found.cut, found.unsound, found.lost), (3, 1, 1, 8));
    assert!(found.ended && found.starts == 1 && found.unended == 0, "{found:?}");
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        assert_eq!(encode(&decode(line).unwrap()), line);
    }
}

#[test]
fn no_byte_of_a_sealed_log_can_be_changed() {
    let bytes = file(&mut log(), run());
    for at in 0..bytes.len() {
        for change in [1, 0x20, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(read(&[&changed]).is_err(), "byte {at} ^ {change:#x}");
        }
    }
}

#[test]
fn a_line_that_is_missing_doubled_or_moved_is_found_where_it_is() {
    let bytes = file(&mut log(), run());
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let fault = |order: &[usize]| {
        let changed: Vec<u8> = order.iter().flat_map(|line| lines[*line].to_vec()).collect();
        read(&[&changed]).unwrap_err()
    };
    let number = |found, expected| Fault::Number { found, expected };
    assert_eq!(fault(&[0, 1, 3, 4]), (3, number(4, 3)));
    assert_eq!(fault(&[0, 1, 1, 2]), (3, number(2, 3)));
    assert_eq!(fault(&[0, 2, 1, 3]), (2, number(3, 2)));
    assert_eq!(fault(&[1, 2]), (1, Fault::Headless));
    assert_eq!(fault(&[0, 0]), (2, Fault::Head));
    let text = String::from_utf8_lossy(&bytes);
    // Who changes a line and not those behind it.
    let changed = text.replace("gpu-7", "gpu-8");
    assert_eq!(read(&[changed.as_bytes()]).unwrap_err(), (7, Fault::Previous));
    let changed = text.replace("\"kind\":\"group\",\"size\":4", "\"kind\":\"group\", \"size\":4");
    let (line, fault) = read(&[changed.as_bytes()]).unwrap_err();
    assert_eq!((line, fault), (14, Fault::Line(LineError::Written)));
}

#[test]
fn whoever_has_not_the_key_can_seal_nothing() {
    // All hashes are right: only the seal is not.
    let mut forged = Log::new(me(1), signer(2));
    let bytes = file(&mut forged, run());
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(read(&[&bytes]).unwrap_err(), (lines, Fault::Signature));
    let mut honest = log();
    let first = file(&mut honest, run());
    let foreign = file(&mut Log::new(me(2), signer(2)), run());
    let (line, fault) = read(&[&first, &foreign]).unwrap_err();
    assert!(line == 1 && matches!(fault, Fault::Peer(..)), "{fault:?}");
}

#[test]
fn an_end_that_is_cut_off_is_told_as_far_as_it_can_be() {
    let bytes = file(&mut log(), run());
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let keep = |count: usize| read(&[&lines[..count].concat()]).unwrap();
    let whole = read(&[&bytes]).unwrap();
    for count in 3..lines.len() - 1 {
        let cut = keep(count);
        assert_eq!(cut.findings().unsigned, count as u64, "no seal is left");
        assert_eq!(cut.findings().ended, count >= lines.len() - 1);
        assert_ne!(cut.hash(), whole.hash());
    }
    let torn = &bytes[..bytes.len() - 9];
    assert!(matches!(read(&[torn]).unwrap_err().1, Fault::Line(LineError::Form(_))));
}

#[test]
fn seals_come_by_themselves_after_so_many_lines() {
    let mut log = log();
    let mut bytes = log.next_file(0);
    for _ in 0..10 * SEAL_LINES_MAX {
        bytes.extend(log.add(1, contributed(other(2), 1, 1.0)));
        assert!(log.unsigned() < SEAL_LINES_MAX);
    }
    let reading = read(&[&bytes]).unwrap();
    assert_eq!(reading.findings().unsigned, log.unsigned());
    assert!(reading.findings().last > 10 * SEAL_LINES_MAX + 9);
}

#[test]
fn a_full_file_is_followed_by_one_that_knows_all_peers() {
    let mut log = log();
    let mut first = log.next_file(0);
    first.extend(log.add(1, start(1)));
    first.extend(log.add(1, joined(other(2))));
    first.extend(log.add(1, judged(other(2), Trust::LeftOut)));
    let mut count = 0;
    while !log.is_full() {
        first.extend(log.add(2, contributed(other(2), 1, 0.5)));
        count += 1;
    }
    first.extend(log.seal(3).unwrap_or_default());
    assert!((first.len() as u64) < FILE_BYTES_MAX + 2048);
    let mut second = log.next_file(4);
    assert!(!log.is_full() && log.file() == 2);
    second.extend(log.add(5, end()));
    second.extend(log.seal(6).unwrap());
    let both = read(&[&first, &second]).unwrap();
    let newest = read(&[&second]).unwrap();
    assert_eq!(both.accounts(), newest.accounts());
    assert_eq!(both.hash(), newest.hash());
    let (_, account) = newest.accounts().peers().next().unwrap();
    assert_eq!((account.contributions, account.left_out), (count, 1));
    assert_eq!((account.way, account.here), (Some(Way::Secret), false));
    assert!((account.moved.get() / (0.5 * count as f64) - 1.0).abs() < 1e-4);
    assert_eq!(newest.accounts().own().unwrap().1.samples, 6400);
    // Neither of the two can be missing between others.
    let third = log.next_file(7);
    assert!(matches!(read(&[&first, &third]).unwrap_err().1, Fault::Number { .. }));
}

#[test]
fn a_log_goes_on_where_it_was_read_to() {
    let mut first = log();
    let mut bytes = first.next_file(0);
    bytes.extend(first.add(1, start(1)));
    bytes.extend(first.add(2, joined(other(2))));
    let reading = read(&[&bytes]).unwrap();
    let mut again = Log::resume((reading, bytes.len() as u64), me(1), signer(1));
    let unsigned = again.unsigned();
    bytes.extend(again.add(3, Entry::Opened(Opened { unsigned, ..Opened::default() })));
    bytes.extend(again.add(3, start(4)));
    bytes.extend(again.add(4, end()));
    bytes.extend(again.seal(5).unwrap());
    let found = read(&[&bytes]).unwrap().findings().clone();
    assert_eq!((found.vouched, found.unsigned), (3, 0));
    assert_eq!((found.starts, found.starts_missing, found.unended), (2, 2, 1));
    assert!(found.ended);
}

#[test]
fn a_log_goes_on_behind_a_file_that_is_not_sound() {
    let bad = b"nonsense\n";
    let chain = Chain::behind((3, me(1)), 40, Hash::of(b"nonsense"));
    let mut log = Log::behind(chain, Reading::new(), me(1), signer(1));
    let bytes = file(&mut log, vec![Entry::Opened(Opened { unsound: 1, ..Opened::default() })]);
    assert_eq!(log.file(), 4);
    assert_eq!(read(&[&bytes]).unwrap().findings().first, 41);
    assert_eq!(read(&[bad, &bytes]).unwrap_err().0, 1);
}

#[test]
fn a_log_of_the_first_form_holds_and_goes_on_in_a_file_of_the_present_one() {
    let head = |format| Entry::File(FileHead { format, file: 1, peer: me(1) });
    let mut chain = Chain::unknown();
    let mut old = chain.add(1, head(FORMAT_OLDEST)).1;
    old.extend(chain.add(2, joined(other(2))).1);
    for entry in [revoked(Some(other(2)), ""), joined_by(other(3))] {
        let with_later = [old.clone(), chain.clone().add(3, entry).1].concat();
        assert_eq!(read(&[&with_later]).unwrap_err(), (3, Fault::Later(FORMAT_OLDEST)));
    }
    let unknown = Chain::unknown().add(1, head(FORMAT + 1)).1;
    assert_eq!(read(&[&unknown]).unwrap_err(), (1, Fault::Format(FORMAT + 1)));
    let reading = read(&[&old]).unwrap();
    let mut log = Log::resume((reading, old.len() as u64), me(1), signer(1));
    assert!(log.is_full(), "nothing more is added to it");
    old.extend(log.seal(3).unwrap());
    let mut next = log.next_file(4);
    assert!(!log.is_full());
    next.extend(log.add(5, joined_by(other(3))));
    next.extend(log.seal(6).unwrap());
    let both = read(&[&old, &next]).unwrap();
    assert_eq!(both.accounts(), read(&[&next]).unwrap().accounts());
    assert_eq!(both.accounts().peers().count(), 2);
}

#[test]
fn accounts_add_up_what_each_peer_did() {
    let mut entries = run();
    entries.extend([contributed(other(2), 2, 1.0), judged(other(2), Trust::Trusted)]);
    let reading = read(&[&file(&mut log(), entries)]).unwrap();
    let accounts: Vec<_> = reading.accounts().peers().collect();
    let account = accounts.iter().find(|(peer, _)| **peer == other(2)).unwrap().1;
    assert_eq!((account.name.as_str(), account.samples), ("gpu-7", 640));
    assert_eq!((account.contributions, account.shortened, account.refused), (6, 2, 4));
    assert_eq!(account.moved, Figure::new(3.5));
    assert_eq!((account.weighed_down, account.left_out, account.offences), (1, 1, 1));
    assert_eq!((account.trust, account.snapshots), (Trust::Trusted, 1));
    assert_eq!((account.first_ms, account.last_ms), (2003, 2021));
    assert_eq!((account.way, account.by.as_ref()), (Some(Way::Invitation), Some(&invited())));
    let denied = accounts.iter().find(|(peer, _)| **peer == other(3)).unwrap().1;
    assert_eq!((denied.denied, denied.way), (1, None));
}

#[test]
fn strangers_without_end_take_bounded_memory_and_are_not_forgotten() {
    let mut log = log();
    let mut bytes = log.next_file(0);
    let all = 3 * ACCOUNTS_MAX as u64;
    for index in 0..all {
        bytes.extend(log.add(index, contributed(other(index), 1, 1.0)));
    }
    let reading = read(&[&bytes]).unwrap();
    let own_and_others = ACCOUNTS_MAX - 1;
    assert_eq!(reading.accounts().peers().count(), own_and_others);
    let others = reading.accounts().others().unwrap();
    assert_eq!(others.contributions, all - own_and_others as u64);
    // Those that came last are kept, and all fit into the next file.
    let next = log.next_file(all);
    assert!((next.len() as u64) < FILE_BYTES_MAX / 4);
    assert_eq!(read(&[&next]).unwrap().accounts(), reading.accounts());
}

#[test]
fn numbers_are_read_back_as_they_were_written() {
    let mut number = 1e-14;
    while number < 1e20 {
        let figure = Figure::new(number);
        let text = serde_json::to_string(&figure).unwrap();
        let back: Figure = serde_json::from_str(&text).unwrap();
        assert_eq!(back, figure, "{text}");
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        number *= 1.003_7;
    }
    for odd in [f64::NAN, f64::INFINITY, -1.0, f64::MIN_POSITIVE] {
        let figure = Figure::new(odd);
        assert!([0.0, 1e18].map(Figure::new).contains(&figure), "{odd}");
    }
}

#[test]
fn fragments_become_few_ranges() {
    assert_eq!(Contributed::ranges([]), []);
    assert_eq!(Contributed::ranges([3, 4, 5, 9]), [(3, 3), (9, 1)]);
    assert_eq!(Contributed::ranges([u32::MAX]), [(u32::MAX, 1)]);
    let sparse = Contributed::ranges((0..100).map(|index| 2 * index));
    assert_eq!(sparse.len(), RANGES_MAX);
    assert_eq!(sparse[RANGES_MAX - 1], (30, 169));
}

#[test]
fn files_of_a_log_have_an_order() {
    assert_eq!(order("audit.jsonl"), Some(u64::MAX));
    assert_eq!(order(&rotated(17)), Some(17));
    for foreign in ["audit-.jsonl", "audit-07.jsonl", "audit-+7.jsonl", "audit-7.jsonl.gz", "x"] {
        assert_eq!(order(foreign), None, "{foreign}");
    }
}
