//! Groups over a library that does on the host what NCCL does on devices.

#![expect(unsafe_code, reason = "the stand-in has a C interface")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::ffi::c_int;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use dnode_cuda::library::{Library, function, open};

use super::{Api, Nccl, over};
use crate::collective::{Backend, Code, Collective, Place, Reduction};
use crate::limits::{NCCL_CHUNK_ELEMENTS, NCCL_WARM_ELEMENTS};
use crate::links::Link;
use crate::sockets::Sockets;

const PATIENCE: Duration = Duration::from_secs(20);
/// Set where the stand-in is found.
const INSIDE: &str = "DNODE_TEST_NCCL";
/// The files of the stand-in: NCCL, and both names by which a driver is looked for.
const NAMES: [&str; 3] = ["libnccl.so.2", "libcuda.so.1", "libcuda.so"];

/// The stand-in, in a process that finds it as its driver and its NCCL. Elsewhere nothing, after the test has
/// run in such a process.
fn emulated(test: &str) -> Option<(&'static Api, &'static Library)> {
    if std::env::var_os(INSIDE).is_some() {
        return Some((Api::get().unwrap(), open(&[NAMES[0]], "").unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, made) = (folder.path().join("nccl.c"), folder.path().join(NAMES[0]));
    std::fs::write(&source, include_str!("emulated.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-pthread"]).arg(&source).arg("-o").arg(&made);
    assert!(compiler.status().unwrap().success());
    for name in &NAMES[1..] {
        symlink(&made, folder.path().join(name)).unwrap();
    }
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", &format!("nccl::tests::{test}")]);
    process.env("LD_LIBRARY_PATH", folder.path()).env(INSIDE, "1");
    let output = process.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    None
}

fn count(library: &'static Library, name: &str) -> c_int {
    // SAFETY: the source has these functions, of this type.
    unsafe { function::<extern "C" fn() -> c_int>(library, name) }.unwrap()()
}

fn groups(size: usize) -> Vec<Sockets> {
    let mut all: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for (one, other) in (0..size).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        all[one][other] = Some(Box::new(near));
        all[other][one] = Some(Box::new(far));
    }
    let place = |rank| Place { rank, size };
    let ranks = all.into_iter().enumerate();
    ranks.map(|(rank, links)| Sockets::new(place(rank), links, PATIENCE).unwrap()).collect()
}

/// What `run` gives at each rank, all at the same time, whose group is over the device named for it.
fn at_all<T: Send>(
    api: &'static Api,
    devices: &[usize],
    run: impl Fn(Box<dyn Collective>, Option<String>) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let ranks = groups(devices.len()).into_iter().zip(devices);
        let ranks = ranks.map(|(group, device)| {
            scope.spawn(move || {
                let (group, why) = over(group, Ok(api), *device).unwrap();
                run(group, why)
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn sums_are_exact_around_the_border_of_a_chunk_and_all_end() {
    let Some((api, library)) = emulated("sums_are_exact_around_the_border_of_a_chunk_and_all_end")
    else {
        return;
    };
    for devices in [&[0][..], &[1, 0], &[3, 0, 2]] {
        at_all(api, devices, |mut group, why| {
            assert_eq!((group.backend(), why), (Backend::Nccl, None));
            let Place { rank, size } = group.place();
            let chunk = NCCL_CHUNK_ELEMENTS;
            for length in [0, 1, 8191, chunk - 1, chunk, chunk + 1] {
                let own = |at: usize| (rank + at % 7) as f32;
                let mut values: Vec<f32> = (0..length).map(own).collect();
                group.all_reduce(&mut values, Reduction::Sum).unwrap();
                let sum = |at: usize| (size * (size - 1) / 2 + size * (at % 7)) as f32;
                assert!(
                    values
                        .iter()
                        .enumerate()
                        .all(|(at, value)| value.to_bits() == sum(at).to_bits())
                );
            }
            group.barrier().unwrap();
        });
    }
    assert_eq!((count(library, "emulated_ids"), count(library, "emulated_aborted")), (3, 6));
    assert_eq!(NCCL_WARM_ELEMENTS[2], NCCL_CHUNK_ELEMENTS);
}

#[test]
fn nobody_is_asked_for_an_identity_when_a_rank_has_no_device() {
    let Some((api, library)) =
        emulated("nobody_is_asked_for_an_identity_when_a_rank_has_no_device")
    else {
        return;
    };
    let whys = at_all(api, &[0, 99], |mut group, why| {
        group.barrier().unwrap();
        (group.backend(), why.unwrap())
    });
    assert_eq!(whys[0], (Backend::Tcp, "another rank has no NCCL".to_owned()));
    assert_eq!(whys[1], (Backend::Tcp, "find the device: CUDA error 101 EMULATED".to_owned()));
    assert_eq!(count(library, "emulated_ids"), 0);
}

#[test]
fn ranks_of_one_device_stay_with_connections_and_say_why() {
    let Some((api, library)) = emulated("ranks_of_one_device_stay_with_connections_and_say_why")
    else {
        return;
    };
    for (backend, why) in at_all(api, &[1, 1], |mut group, why| {
        group.barrier().unwrap();
        (group.backend(), why.unwrap())
    }) {
        assert_eq!(backend, Backend::Tcp);
        assert_eq!(why, "NCCL: invalid usage: Duplicate GPU detected");
    }
    assert_eq!(count(library, "emulated_aborted"), 2);
}

#[test]
fn who_waits_within_nccl_ends_when_the_other_gives_up() {
    let Some((api, library)) = emulated("who_waits_within_nccl_ends_when_the_other_gives_up")
    else {
        return;
    };
    let devices = [0, 1];
    std::thread::scope(|scope| {
        for (group, device) in groups(2).into_iter().zip(devices) {
            scope.spawn(move || {
                let (sockets, communicator) = joined(group, api, device);
                let mut group = Nccl { sockets, communicator };
                if device == 1 {
                    // It names the operation, and does not take part.
                    let what = (Code::AllReduce, Reduction::Sum);
                    let operation = group.sockets.links.begin(what.0, what.1, (0, 9)).unwrap();
                    group.sockets.announce(&operation).unwrap();
                    return;
                }
                let error = group.all_reduce(&mut [1.0; 9], Reduction::Sum).unwrap_err();
                assert!(error.to_string().contains("rank 1 is gone"), "{error}");
            });
        }
    });
    assert_eq!(count(library, "emulated_aborted"), 2);
}

fn joined(
    mut group: Sockets,
    api: &'static Api,
    device: usize,
) -> (Sockets, Option<super::Communicator>) {
    let communicator = super::join(&mut group, Ok(api), device).unwrap().unwrap();
    (group, Some(communicator))
}
