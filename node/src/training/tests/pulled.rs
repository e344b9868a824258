//! What a joiner takes over: snapshots, the clock, and what its earlier life has pulled.

use dnode_protocol::Fragments;

use super::*;
use crate::pulled::PulledFragments;

/// What a donor says of a snapshot.
fn contents(snapshot: &Encoded) -> SnapshotContents {
    SnapshotContents {
        clock: Clock(49),
        hash: ContentHash::of(&snapshot.bytes),
        information: Information::default(),
        versions: Versions::default(),
    }
}

#[test]
fn a_joiner_goes_on_at_the_step_that_belongs_to_the_clock_it_adopts() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread =
        start(plan(folder.path(), 100), Some(OuterStep { learning_rate: 1.0, momentum: 0.0 }));
    let (fragment, snapshot) = (FragmentId(0), encode(Codec::F32, &[5.0, 6.0]));
    let contents = contents(&snapshot);
    thread.command(Command::Adopt { exchange: exchange(0), fragment, snapshot, contents });
    thread.command(Command::AdoptClock { clock: Clock(49), replaced: true });
    assert_eq!(read(&mut thread), (Clock(49), vec![5.0, 6.0]));
    thread.allow(true);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    assert_eq!(count(&reports, |report| matches!(report, Report::Committed { .. })), 1);
    assert_eq!(read(&mut thread), (Clock(50), vec![7.0, 8.0]), "two steps of its own, 98 and 99");
}

#[test]
fn a_snapshot_of_another_hash_than_its_donor_said_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread = start(plan(folder.path(), 100), None);
    let before = read(&mut thread);
    let (fragment, snapshot) = (FragmentId(0), encode(Codec::F32, &[5.0, 6.0]));
    let contents = contents(&encode(Codec::F32, &[5.0, 7.0]));
    thread.command(Command::Adopt { exchange: exchange(0), fragment, snapshot, contents });
    let reports = until(&mut thread, |report| matches!(report, Report::MixRefused { .. }));
    let other = |report: &Report| {
        matches!(report, Report::MixRefused { reason: RefusedMix::OtherHash, .. })
    };
    assert!(reports.iter().any(other), "{reports:?}");
    assert_eq!(read(&mut thread), before);
}

#[test]
fn what_a_newcomer_takes_over_is_kept_for_its_next_life_until_it_has_everything() {
    let folder = tempfile::tempdir().unwrap();
    let fragments = Fragments::new(2, 1).unwrap();
    let begin = || PulledFragments::begin(folder.path(), fragments, true);
    let newcomer = |pulled| start(Plan { pulled, ..plan(folder.path(), 100) }, None);
    let (fragment, snapshot) = (FragmentId(0), encode(Codec::F32, &[5.0, 6.0]));
    let contents = contents(&snapshot);
    let (pulled, kept) = begin();
    assert_eq!(kept, []);
    let mut thread = newcomer(pulled);
    let (exchange, of) = (exchange(0), contents.clone());
    thread.command(Command::Adopt { exchange, fragment, snapshot, contents: of });
    until(&mut thread, |report| matches!(report, Report::Adopted { .. }));
    thread.join();

    let (pulled, kept) = begin();
    assert_eq!(kept, [(fragment, contents.clone())]);
    let mut thread = newcomer(pulled);
    let before = read(&mut thread).1;
    thread.command(Command::Recall {
        exchange,
        fragment: FragmentId(1),
        contents: contents.clone(),
    });
    until(&mut thread, |report| matches!(report, Report::MixRefused { .. }));
    assert_eq!(read(&mut thread).1, before, "nothing was kept of that one");
    thread.command(Command::Recall { exchange, fragment, contents });
    until(&mut thread, |report| matches!(report, Report::Adopted { .. }));
    assert_eq!(read(&mut thread).1, [5.0, 6.0]);
    thread.command(Command::AdoptClock { clock: Clock(49), replaced: true });
    assert_eq!(read(&mut thread).0, Clock(49));
    thread.join();
    assert_eq!(begin().1, [], "nothing is kept of a model that is whole");
}
