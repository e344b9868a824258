//! Tests of groups of a rack that form faster than steps end.

use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;

use dnode_collective::{Link, Sockets};

use super::sums::Announced;
use super::*;
use crate::training::RankGroup;

/// A group of two, and the end of its link at the other rank.
fn two(id: u64) -> (RankGroup, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    for end in [&near, &far] {
        end.set_nonblocking(true).unwrap();
    }
    let place = Place { rank: 0, size: 2 };
    let links = vec![None, Some(Box::new(near) as Box<dyn Link>)];
    let group = Sockets::new(place, links, Duration::from_secs(60)).unwrap();
    (RankGroup { id, group: Box::new(group) }, far)
}

#[test]
fn of_groups_that_come_faster_than_steps_only_the_newest_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (end_step, busy) = mpsc::channel();
    let (begins, begun) = mpsc::channel();
    let mut layout = ParameterLayout::new();
    layout.push("x", &[2]).unwrap();
    let busy = Some(busy);
    let counter = Counter { layout, x: [0.0; 2], slope: 1.0, batch: 8, busy, measures: None };
    let outer = OuterStep { learning_rate: 1.0, momentum: 0.0 };
    let replica = Replica::new(Box::new(Announced(counter, begins)), Some(outer));
    let (plan, at) = (plan(folder.path(), 4), Position::default());
    let mut thread = TrainingThread::start(replica, plan, (at, None), Tracer::default()).unwrap();
    thread.allow(true);
    begun.recv().unwrap();
    let mut newest: Option<UnixStream> = None;
    let groups = 2 * COMMANDS_MAX as u64;
    for id in 1..=groups {
        let (together, far) = two(id);
        thread.rack(Some(together));
        if let Some(mut older) = newest.replace(far) {
            assert_eq!(older.read(&mut [0; 1]).unwrap(), 0, "group {id} ends the one before");
        }
    }
    let mut newest = newest.unwrap();
    let waits = newest.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(waits, Err(ErrorKind::WouldBlock));
    drop(newest);
    drop(end_step);
    let reports = until(&mut thread, |report| matches!(report, Report::StepsDone));
    let lost = reports.iter().filter_map(|report| {
        let Report::RackLost { group, .. } = report else { return None };
        Some(*group)
    });
    assert_eq!(lost.collect::<Vec<_>>(), [groups]);
    // The newest group of the rack ends with the thread.
    let (together, mut far) = two(groups + 1);
    thread.rack(Some(together));
    thread.command(Command::Stop { evaluate: false });
    until(&mut thread, |report| matches!(report, Report::Ended(_)));
    thread.join();
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
}
