//! Logs on a disk: repaired after a crash, followed over files, and never made worse by what is found.

use dnode_audit::{FILE_BYTES_MAX, Text, Trained};
use libp2p::identity::ed25519::Keypair;

use super::*;

fn of(key: &Keypair) -> (PeerId, Signer) {
    let signing = key.clone();
    let sign = Box::new(move |words: &[u8]| signing.sign(words).try_into().unwrap());
    (PeerId::from_public_key(key.public().to_bytes()), sign)
}

fn trained(step: u64) -> Entry {
    Entry::Trained(Trained { step, samples: 0, clock: 0 })
}

/// A line of 256 bytes of text and more.
fn long(step: u64) -> Entry {
    let reason = Text::new(&"x".repeat(256));
    Entry::End(dnode_audit::End { reason, step, samples: 0, clock: 0 })
}

/// Opens the log, adds so many lines, and closes it.
fn run(folder: &Path, key: &Keypair, lines: u64) {
    let mut files = AuditFiles::open(folder, of(key), 1).unwrap();
    (0..lines).for_each(|step| files.add(2, trained(step)).unwrap());
    files.close(3).unwrap();
}

/// Reads all files as `dnode audit verify` does; the fault with its file.
fn verify(folder: &Path) -> Result<Reading, (u64, Fault)> {
    let mut reading = Reading::new();
    for (file, path) in list(folder).into_iter().flatten() {
        let Ok(end) = read(&path, &mut reading, &mut |_, _| {}) else { panic!("{path:?}") };
        match end.fault {
            Some(fault) => return Err((file, fault)),
            None => assert_eq!(end.torn, 0),
        }
    }
    Ok(reading)
}

fn written(folder: &Path) -> PathBuf {
    folder.join(AUDIT_FILE)
}

#[test]
fn a_torn_line_is_cut_off_by_the_next_start_which_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    run(folder, &key, 5);
    let whole = fs::read(written(folder)).unwrap();
    // Wherever a crash ended the file: within a line, at its end, within the first line, before it.
    for length in (0..=whole.len()).rev().step_by(97).chain([0]) {
        fs::write(written(folder), &whole[..length]).unwrap();
        run(folder, &key, 1);
        let reading = verify(folder).unwrap();
        let torn = whole[..length].iter().rev().take_while(|byte| **byte != b'\n').count();
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
        let found = reading.findings();
        assert_eq!(found.cut, u64::from(torn > 0 && lines > 0), "{length}");
        // What was there, the word of the new start, one line and a seal; or a new head in its place.
        assert_eq!(found.last, lines + 3, "{length}");
        let sealed = [0, lines].contains(&found.vouched);
        assert!(found.unsigned == 0 && sealed, "{length}: {found:?}");
    }
}

#[test]
fn a_log_that_was_changed_stays_as_it_is_and_another_file_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    run(folder, &key, 5);
    let changed = fs::read_to_string(written(folder)).unwrap().replace("\"step\":2", "\"step\":7");
    fs::write(written(folder), &changed).unwrap();
    run(folder, &key, 1);
    assert_eq!(fs::read_to_string(folder.join(rotated(1))).unwrap(), changed);
    assert_eq!(verify(folder).unwrap_err(), (1, Fault::Previous));
    // The new file holds by itself, and names the line.
    let mut newest = Reading::new();
    let end = read(&written(folder), &mut newest, &mut |_, _| {}).unwrap();
    assert!(end.fault.is_none() && newest.findings().unsound == 1);
    // It is gone on with, and so is one behind damage without a whole line.
    run(folder, &key, 1);
    assert_eq!(list(folder).unwrap().len(), 2);
    fs::write(written(folder), vec![b'x'; 2 * LINE_BYTES_MAX]).unwrap();
    run(folder, &key, 1);
    let mut newest = Reading::new();
    let end = read(&written(folder), &mut newest, &mut |_, _| {}).unwrap();
    assert!(end.fault.is_none() && newest.file() == 3, "{:?}", end.fault);
}

#[test]
fn the_log_of_another_identity_is_not_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &Keypair::generate(), 2);
    let mine = Keypair::generate();
    run(folder, &mine, 2);
    assert!(matches!(verify(folder).unwrap_err(), (u64::MAX, Fault::Peer(..))));
    let mut newest = Reading::new();
    read(&written(folder), &mut newest, &mut |_, _| {}).unwrap();
    assert_eq!(newest.peer(), Some(of(&mine).0));
}

#[test]
fn full_files_follow_each_other_and_the_oldest_go() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    let mut files = AuditFiles::open(folder, of(&key), 1).unwrap();
    let mut step = 0;
    while list(folder).unwrap().last_chunk().is_none_or(|[(oldest, _), _]| *oldest < 10) {
        (0..1000).for_each(|more| files.add(2, long(step + more)).unwrap());
        step += 1000;
    }
    files.close(3).unwrap();
    let found = list(folder).unwrap();
    assert_eq!(found.len(), FILES_KEPT);
    for (_, path) in &found {
        assert!(fs::metadata(path).unwrap().len() < FILE_BYTES_MAX + 4096);
    }
    let reading = verify(folder).unwrap();
    assert!(reading.findings().first > 1 && reading.findings().unsigned == 0);
    // A crash between two files: the next start begins the one that is missing.
    fs::remove_file(written(folder)).unwrap();
    run(folder, &key, 1);
    assert!(verify(folder).unwrap().findings().files == FILES_KEPT as u64);
    // A file in the middle that is missing is found.
    let (third, path) = &list(folder).unwrap()[2];
    fs::remove_file(path).unwrap();
    let (file, fault) = verify(folder).unwrap_err();
    assert!(file == third + 1 && matches!(fault, Fault::Number { .. }), "{fault:?}");
}

#[cfg(unix)]
#[test]
fn a_log_is_private_and_links_are_not_followed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    run(folder, &key, 1);
    let mode = fs::metadata(written(folder)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let elsewhere = folder.join("elsewhere");
    fs::rename(written(folder), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, written(folder)).unwrap();
    assert!(AuditFiles::open(folder, of(&key), 1).is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_ends_the_log_and_leaves_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    let mut files = AuditFiles::open(folder, of(&key), 1).unwrap();
    files.add(1, trained(1)).unwrap();
    let real = std::mem::replace(
        &mut files.file,
        OpenOptions::new().write(true).open("/dev/full").unwrap(),
    );
    assert!(files.add(2, trained(2)).is_err());
    drop((files, real));
    run(folder, &key, 1);
    assert_eq!(verify(folder).unwrap().findings().vouched, 2);
}

#[test]
fn a_line_after_one_that_was_taken_back_follows_the_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    let mut files = AuditFiles::open(folder, of(&key), 1).unwrap();
    files.add(1, trained(1)).unwrap();
    // As after a disk was full in the middle of a line.
    files.file.write_all(b"{\"half").unwrap();
    files.file.set_len(files.complete).unwrap();
    files.add(2, trained(2)).unwrap();
    drop(files);
    run(folder, &key, 1);
    assert_eq!(verify(folder).unwrap().findings().vouched, 3);
}

#[test]
fn a_file_of_the_first_form_is_followed_by_one_of_the_present_form() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, key) = (folder.path(), Keypair::generate());
    run(folder, &key, 0);
    let text = fs::read_to_string(written(folder)).unwrap();
    let head = text.lines().next().unwrap().replace("\"format\":2", "\"format\":1");
    assert!(head.contains("\"format\":1"), "{text}");
    fs::write(written(folder), format!("{head}\n")).unwrap();
    run(folder, &key, 3);
    let reading = verify(folder).unwrap();
    assert_eq!((reading.findings().files, reading.findings().unsigned), (2, 0));
    assert!(folder.join(rotated(1)).exists());
}
