//! Every operation of every backend, against what one computer would compute.

#![cfg(unix)]
#![expect(clippy::float_cmp, reason = "sums of whole numbers are exact")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![expect(clippy::disallowed_methods, reason = "a test of waiting looks at the clock")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dnode_collective::{
    Backend, Collective, Error, Link, Part, Place, Reduction, Sockets, all_reduce_while, piece,
};

const PATIENCE: Duration = Duration::from_secs(20);
/// Around the borders between algorithms, chunks and pieces.
const LENGTHS: [usize; 12] = [0, 1, 2, 3, 5, 1000, 8191, 8192, 8193, 131_071, 300_007, 1_100_003];

fn links(size: usize, way: Way) -> Vec<Vec<Option<Box<dyn Link>>>> {
    let mut all: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    let pairs = (0..size).flat_map(|one| (0..one).map(move |other| (one, other)));
    for (one, other) in pairs {
        let (near, far): (Box<dyn Link>, Box<dyn Link>) = if way == Way::UcxFar {
            let (near, far) = tcp_pair();
            (Box::new(near), Box::new(far))
        } else {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            (Box::new(near), Box::new(far))
        };
        all[one][other] = Some(near);
        all[other][one] = Some(far);
    }
    all
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// What carries a group under test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Tcp,
    Shm,
    /// Among processes of one host.
    UcxNear,
    /// As between hosts.
    UcxFar,
}

impl Way {
    const fn backend(self) -> Backend {
        match self {
            Self::Tcp => Backend::Tcp,
            Self::Shm => Backend::Shm,
            Self::UcxNear | Self::UcxFar => Backend::Ucx,
        }
    }
}

fn group(way: Way, size: usize, patience: Duration) -> Vec<Box<dyn Collective>> {
    let places = (0..size).map(|rank| Place { rank, size });
    let links = places.zip(links(size, way));
    match way {
        Way::Tcp => links
            .map(|(place, links)| {
                Box::new(Sockets::new(place, links, patience).unwrap()) as Box<dyn Collective>
            })
            .collect(),
        Way::Shm => shared(links, size, patience),
        Way::UcxNear | Way::UcxFar => over_ucx(links, patience),
    }
}

/// All ranks have to be asked at the same time.
fn over_ucx(
    links: impl Iterator<Item = (Place, Vec<Option<Box<dyn Link>>>)>,
    patience: Duration,
) -> Vec<Box<dyn Collective>> {
    let groups: Vec<Sockets> =
        links.map(|(place, links)| Sockets::new(place, links, PATIENCE).unwrap()).collect();
    let upgrade = |group| {
        let (mut group, why) = dnode_collective::over_ucx(group).unwrap();
        assert_eq!(why, None);
        group.set_patience(patience);
        Box::new(group) as Box<dyn Collective>
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(|| upgrade(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Set where UCX must be there; elsewhere a machine without it leaves its tests out, and says so.
const UCX: &str = "DNODE_TEST_UCX";

/// What this machine has.
fn ways() -> Vec<Way> {
    let mut all = vec![Way::Tcp];
    if cfg!(target_os = "linux") {
        all.push(Way::Shm);
    }
    match dnode_collective::ucx_is_there() {
        Ok(()) => all.extend([Way::UcxNear, Way::UcxFar]),
        Err(why) => {
            assert!(std::env::var_os(UCX).is_none(), "{UCX} is set, and {why}");
            // Not by the macro, whose words a test that passes keeps for itself.
            let _ = writeln!(std::io::stderr(), "backend ucx is NOT TESTED: {why}");
        }
    }
    all
}

#[cfg(target_os = "linux")]
fn shared(
    links: impl Iterator<Item = (Place, Vec<Option<Box<dyn Link>>>)>,
    size: usize,
    patience: Duration,
) -> Vec<Box<dyn Collective>> {
    use dnode_collective::SharedMemory;
    let (_first, file) = SharedMemory::create(size).unwrap();
    links
        .map(|(place, links)| {
            let map = SharedMemory::open(&file, size).unwrap();
            Box::new(SharedMemory::new(place, links, map, patience).unwrap()) as _
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn shared(
    _: impl Iterator<Item = (Place, Vec<Option<Box<dyn Link>>>)>,
    _: usize,
    _: Duration,
) -> Vec<Box<dyn Collective>> {
    Vec::new()
}

/// Runs every rank on a thread of its own.
fn together<T: Send>(
    group: Vec<Box<dyn Collective>>,
    run: impl Fn(Box<dyn Collective>, usize) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|member| {
                let rank = member.place().rank;
                scope.spawn(move || run(member, rank))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Whole numbers, whose sums are exact in any order.
fn value(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 13) % 1001) as f32 - 500.0
}

fn values(rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| value(rank, index)).collect()
}

fn sum(size: usize, index: usize) -> f32 {
    (0..size).map(|rank| value(rank, index)).sum()
}

#[test]
fn every_operation_gives_what_one_computer_would() {
    for way in ways() {
        for size in [1, 2, 3, 4, 5] {
            together(group(way, size, PATIENCE), |mut group, rank| {
                assert_eq!(group.backend(), way.backend());
                for length in LENGTHS {
                    operations(&mut *group, (rank, size), length);
                }
            });
        }
    }
}

/// The window of shared memory that a rank stages in is smaller where more than sixteen share it.
#[test]
fn many_ranks_get_what_one_computer_would_give() {
    const SIZE: usize = 17;
    for way in ways().into_iter().filter(|way| matches!(way, Way::Tcp | Way::Shm)) {
        together(group(way, SIZE, PATIENCE), |mut group, rank| {
            for length in [0, SIZE, 8193, 300_007] {
                operations(&mut *group, (rank, SIZE), length);
            }
        });
    }
}

fn operations(group: &mut dyn Collective, (rank, size): (usize, usize), length: usize) {
    let what = format!("{} {rank} of {size}, {length}", group.backend());
    let own = piece(length, size, rank);
    let root = length % size;
    let fresh = values(rank, length);

    let mut all = fresh.clone();
    group.all_reduce(&mut all, Reduction::Sum).unwrap();
    assert!((0..length).all(|index| all[index] == sum(size, index)), "all-reduce {what}");

    let mut mean = fresh.clone();
    group.all_reduce(&mut mean, Reduction::Mean).unwrap();
    let scale = 1.0 / size as f32;
    assert!((0..length).all(|index| mean[index] == sum(size, index) * scale), "mean {what}");

    let mut mine = fresh.clone();
    group.reduce_scatter(&mut mine, Reduction::Sum).unwrap();
    assert!(own.clone().all(|index| mine[index] == sum(size, index)), "reduce-scatter {what}");

    group.all_gather(&mut mine).unwrap();
    assert!((0..length).all(|index| mine[index] == sum(size, index)), "all-gather {what}");

    let mut mine = fresh.clone();
    group.reduce_scatter(&mut mine, Reduction::Mean).unwrap();
    let right = own.clone().all(|index| mine[index] == sum(size, index) * scale);
    assert!(right, "reduce-scatter mean {what}");

    let mut sent = fresh.clone();
    group.broadcast(root, &mut sent).unwrap();
    assert_eq!(sent, values(root, length), "broadcast {what}");

    let mut reduced = fresh.clone();
    group.reduce(root, &mut reduced, Reduction::Sum).unwrap();
    let right = rank != root || (0..length).all(|index| reduced[index] == sum(size, index));
    assert!(right, "reduce {what}");

    let mut reduced = fresh.clone();
    group.reduce(root, &mut reduced, Reduction::Mean).unwrap();
    let right = rank != root || (0..length).all(|index| reduced[index] == sum(size, index) * scale);
    assert!(right, "reduce mean {what}");

    let mut dealt = fresh.clone();
    group.scatter(root, &mut dealt).unwrap();
    for (index, dealt) in dealt.into_iter().enumerate() {
        let from = if own.contains(&index) { root } else { rank };
        assert!(dealt == value(from, index), "scatter {what}");
    }

    let mut gathered = vec![0.0; own.len() * size];
    group.all_to_all(&fresh, &mut gathered).unwrap();
    for other in 0..size {
        let theirs = &gathered[other * own.len()..][..own.len()];
        assert_eq!(theirs, &values(other, length)[own.clone()], "all-to-all {what}");
    }
    group.barrier().unwrap();
}

#[test]
fn results_have_the_same_bits_at_every_rank() {
    for way in ways() {
        for length in [100, 100_000] {
            let results = together(group(way, 4, PATIENCE), |mut group, rank| {
                let mut values: Vec<f32> =
                    (0..length).map(|index| 1.0 / (1 + index * 4 + rank) as f32).collect();
                group.all_reduce(&mut values, Reduction::Mean).unwrap();
                values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{way:?} {length}");
        }
    }
}

#[test]
fn parts_that_are_reduced_while_others_are_made_have_the_bits_of_the_whole() {
    /// From the end on, as gradients come.
    const CUTS: [usize; 5] = [300_007, 150_000, 149_999, 60_000, 0];
    for way in ways() {
        for size in [1, 2, 3, 4] {
            let results = together(group(way, size, PATIENCE), |mut group, rank| {
                let fresh: Vec<f32> =
                    (0..CUTS[0]).map(|index| 1.0 / (1 + index * 4 + rank) as f32).collect();
                let mut whole = fresh.clone();
                group.all_reduce(&mut whole, Reduction::Mean).unwrap();
                let mut parts = fresh;
                let vector = (CUTS[0], Reduction::Mean);
                let (told, reduced) = all_reduce_while(&mut *group, vector, |hand| {
                    let mut rest = &mut parts[..];
                    for from in &CUTS[1..] {
                        let (before, part) = std::mem::take(&mut rest).split_at_mut(*from);
                        rest = before;
                        hand(*from, part);
                    }
                    7
                });
                reduced.unwrap();
                assert_eq!(told, 7);
                let same =
                    whole.iter().zip(&parts).all(|(one, other)| one.to_bits() == other.to_bits());
                assert!(same, "{way:?} {size}");
                whole
            });
            assert!(results.iter().all(|result| *result == results[0]), "{way:?} {size}");
        }
    }
}

#[test]
fn a_part_that_is_lost_ends_the_rest_and_is_told() {
    for way in ways() {
        let errors = together(group(way, 3, PATIENCE), |mut group, rank| {
            let mut values = vec![1.0; 200_000];
            let (low, high) = values.split_at_mut(100_000);
            if rank == 2 {
                return group.all_reduce_part(
                    high,
                    Part { offset: 100_000, whole: 200_000 },
                    Reduction::Sum,
                );
            }
            let hand_both = |hand: &mut (dyn FnMut(usize, _) + Send)| {
                hand(100_000, high);
                hand(0, low);
            };
            all_reduce_while(&mut *group, (200_000, Reduction::Sum), hand_both).1
        });
        assert!(errors[..2].iter().all(Result::is_err) && errors[2].is_ok(), "{way:?}");
    }
}

#[test]
fn what_moves_is_counted() {
    // Around the ring twice three quarters; or staged for others, and the own quarter of the result.
    let expected = [
        (Way::Tcp, (600_024, 600_024)),
        (Way::Shm, (400_000, 600_000)),
        (Way::UcxNear, (600_024, 600_024)),
        (Way::UcxFar, (600_024, 600_024)),
    ];
    for (way, bytes) in expected.into_iter().filter(|(way, _)| ways().contains(way)) {
        let counted = together(group(way, 4, PATIENCE), |mut group, _| {
            let _forming = group.meter().take();
            group.all_reduce(&mut vec![1.0; 100_000], Reduction::Mean).unwrap();
            group.meter().take()
        });
        assert_eq!(counted, [bytes; 4], "{way:?}");
    }
}

#[test]
fn a_barrier_waits_for_everybody() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for way in ways() {
        let come = AtomicUsize::new(0);
        together(group(way, 4, PATIENCE), |mut group, _| {
            for turn in 1..=50 {
                come.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(come.load(Ordering::SeqCst) >= 4 * turn);
            }
        });
    }
}

#[test]
fn who_leaves_ends_the_operation_of_all_at_once() {
    for way in ways() {
        for length in [10, 1_000_000] {
            let began = Instant::now();
            let results = together(group(way, 4, PATIENCE), |mut group, rank| {
                if rank == 2 {
                    return Ok(());
                }
                let mut values = values(rank, length);
                let result = group.all_reduce(&mut values, Reduction::Sum);
                // The group is of no more use.
                assert!(matches!(group.barrier(), Err(Error::Ended)));
                result
            });
            assert!(began.elapsed() < PATIENCE, "{way:?}");
            for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Lost { .. }), "{way:?} {rank}: {error}");
            }
        }
    }
}

#[test]
fn who_is_silent_is_named() {
    for way in ways() {
        // The silent one stays until the other has given up.
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (done, wait) = (Mutex::new(Some(done)), Mutex::new(Some(wait)));
        let results = together(group(way, 2, Duration::from_millis(100)), |mut group, rank| {
            if rank == 1 {
                let wait = wait.lock().unwrap().take().unwrap();
                let _ = wait.recv();
                return None;
            }
            let error = group.all_reduce(&mut [1.0; 4], Reduction::Mean).unwrap_err();
            drop(done.lock().unwrap().take());
            Some(error)
        });
        let error = results[0].as_ref().unwrap();
        assert!(matches!(error, Error::Stalled { rank: 1, .. }), "{way:?}: {error}");
        let text = error.to_string();
        let begin = "all-reduce 0 of 4 elements as a mean: rank 1 has not moved for ";
        assert!(text.starts_with(begin), "{text}");
    }
}

#[test]
fn who_does_something_else_is_named() {
    for way in ways() {
        let results = together(group(way, 2, PATIENCE), |mut group, rank| {
            let mut values = vec![0.0; 20 + rank];
            group.all_reduce(&mut values, Reduction::Sum).unwrap_err()
        });
        // Who notices first ends the group, which the other may notice before the header.
        let expected = [
            "all-reduce 0 of 20 elements: rank 1 is at all-reduce 0 of 21 elements",
            "all-reduce 0 of 21 elements: rank 0 is at all-reduce 0 of 20 elements",
        ];
        let told: Vec<_> = results.iter().map(Error::to_string).collect();
        let pairs = told.iter().zip(expected);
        assert!(pairs.clone().any(|(text, expected)| text == expected), "{told:?}");
    }
}

#[test]
fn another_thread_can_give_a_group_up() {
    for way in ways() {
        let mut groups = group(way, 2, PATIENCE);
        let abort = groups[0].abort();
        let began = Instant::now();
        let results = together(groups.drain(..1).collect(), |mut group, _| {
            std::thread::scope(|scope| {
                scope.spawn(|| abort.abort("a member has left"));
                group.barrier().unwrap_err()
            })
        });
        assert!(began.elapsed() < PATIENCE);
        let text = results[0].to_string();
        assert_eq!(text, "barrier 0 of 0 elements: given up: a member has left", "{way:?}");
    }
}

#[test]
fn what_is_no_group_is_refused() {
    let refused = |rank, size, links| {
        let place = Place { rank, size };
        matches!(Sockets::new(place, links, PATIENCE), Err(Error::Arguments(_)))
    };
    assert!(refused(2, 2, links(2, Way::Tcp).remove(0)));
    assert!(refused(1, 2, links(2, Way::Tcp).remove(0)));
    assert!(refused(0, 3, links(2, Way::Tcp).remove(0)));
    assert!(refused(0, 0, Vec::new()));
    assert!(!refused(0, 1, links(1, Way::Tcp).remove(0)));
    together(group(Way::Tcp, 2, PATIENCE), |mut group, rank| {
        let wrong = group.broadcast(2, &mut [0.0]).unwrap_err();
        assert_eq!(wrong.to_string(), "the root is no rank of the group");
        assert!(group.all_to_all(&[1.0, 2.0], &mut [0.0]).is_err());
        // Nothing has happened to the group.
        let mut values = [rank as f32];
        group.all_reduce(&mut values, Reduction::Sum).unwrap();
        assert!(values == [1.0]);
    });
}
