//! Tests of what a joiner takes over: snapshots, the clock, and what an earlier start has kept.

use dnode_protocol::Fragments;

use super::*;
use crate::storage::kept_snapshots::KeptSnapshots;

/// The contents of a snapshot, as a donor announces them.
fn contents(snapshot: &Encoded) -> SnapshotContents {
    SnapshotContents {
        clock: Clock(49),
        hash: ContentHash::of(&snapshot.bytes),
        information: Information::default(),
        versions: Versions::default(),
    }
}

const fn is_refusal(input: &Input) -> bool {
    matches!(input, Input::MixRefused { .. })
}

const fn is_adoption(input: &Input) -> bool {
    matches!(input, Input::Adopted { .. })
}

#[test]
fn a_joiner_goes_on_at_the_step_that_belongs_to_the_clock_it_adopts() {
    let folder = tempfile::tempdir().unwrap();
    let mut thread =
        start(plan(folder.path(), 100), Some(OuterStep { learning_rate: 1.0, momentum: 0.0 }));
    let (fragment, snapshot) = (FragmentId(0), encode(Codec::F32, &[5.0, 6.0]));
    let contents = contents(&snapshot);
    let work = Work::Adopt { exchange: exchange(0), fragment, contents };
    thread.command(Command::Work(work, Some(snapshot)));
    thread.command(Command::AdoptClock(Adoption { clock: Clock(49), position: 0, replaced: true }));
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
    let work = Work::Adopt { exchange: exchange(0), fragment, contents };
    thread.command(Command::Work(work, Some(snapshot)));
    let answer = answer_of(&mut thread, is_refusal);
    let other = matches!(answer.input, Input::MixRefused { reason: RefusedMix::OtherHash, .. });
    assert!(other, "{answer:?}");
    assert_eq!(read(&mut thread), before);
}

#[test]
fn what_a_newcomer_takes_over_is_kept_for_its_next_life_until_it_has_everything() {
    let folder = tempfile::tempdir().unwrap();
    let fragments = Fragments::new(2, 1).unwrap();
    let begin = || {
        let (snapshots, kept) = KeptSnapshots::begin(folder.path(), fragments, true);
        (snapshots.map(KeptSnapshots::keeping_at_once), kept)
    };
    let newcomer = |snapshots| start(Plan { snapshots, ..plan(folder.path(), 100) }, None);
    let (fragment, snapshot) = (FragmentId(0), encode(Codec::F32, &[5.0, 6.0]));
    let contents = contents(&snapshot);
    let (snapshots, kept) = begin();
    assert_eq!(kept, []);
    let mut thread = newcomer(snapshots);
    let (exchange, of) = (exchange(0), contents.clone());
    let work = Work::Adopt { exchange, fragment, contents: of };
    thread.command(Command::Work(work, Some(snapshot)));
    answer_of(&mut thread, is_adoption);
    thread.join();

    let (snapshots, kept) = begin();
    assert_eq!(kept, [(fragment, contents.clone())]);
    let mut thread = newcomer(snapshots);
    let before = read(&mut thread).1;
    let (other, of) = (FragmentId(1), contents.clone());
    thread.command(Command::Work(Work::Recall { exchange, fragment: other, contents: of }, None));
    answer_of(&mut thread, is_refusal);
    assert_eq!(read(&mut thread).1, before, "nothing was kept of that one");
    thread.command(Command::Work(Work::Recall { exchange, fragment, contents }, None));
    answer_of(&mut thread, is_adoption);
    assert_eq!(read(&mut thread).1, [5.0, 6.0]);
    thread.command(Command::AdoptClock(Adoption { clock: Clock(49), position: 0, replaced: true }));
    assert_eq!(read(&mut thread).0, Clock(49));
    thread.join();
    assert_eq!(begin().1, [], "nothing is kept of a model that is whole");
}
