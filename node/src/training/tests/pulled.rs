//! What a newcomer has pulled is there for its next life.

use dnode_protocol::Fragments;

use super::*;
use crate::pulled::PulledFragments;

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
