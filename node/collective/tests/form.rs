//! Peers that prove their identities become a group, of the kind that they all can be of.

#![cfg(target_os = "linux")]
#![expect(clippy::float_cmp, reason = "sums of whole numbers are exact")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dnode_collective::{
    Abort, Backend, Choice, Error, Formed, Place, Reduction, form, nccl_devices, nccl_is_there,
    ucx_is_there,
};
use dnode_direct::{Arrival, Channel, Config, Direct, Target};
use libp2p_identity::Keypair;
use tokio::sync::mpsc;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);
/// Elements that go to a device at once.
const NCCL_CHUNK: usize = 8 << 20;
/// How a person gets UCX.
const UCX_ADVICE: &str = "UCX is missing: install it, for example `apt install libucx0`, or leave out network.collective = \"ucx\"";
const SUBJECT: [u8; 32] = [5; 32];
const MEMORY: Config = Config { memory: true, tcp: true, trusted: false };
const TLS: Config = Config { memory: false, tcp: true, trusted: false };
const PLAIN: Config = Config { memory: false, tcp: true, trusted: true };

struct Peer {
    direct: Direct,
    arrivals: mpsc::Receiver<Arrival>,
    target: Target,
}

fn peer(config: Config) -> Peer {
    let key = Keypair::generate_ed25519();
    let (direct, arrivals) = Direct::start((&key, 1), &[HERE], config).unwrap();
    let peer = key.public().to_peer_id();
    let target = Target { peer, incarnation: 1, address: HERE, port: direct.port() };
    Peer { direct, arrivals, target }
}

/// Channels between all peers, each by rank.
async fn meet(peers: &mut [Peer]) -> Vec<Vec<Option<Channel>>> {
    let size = peers.len();
    let mut all: Vec<Vec<Option<Channel>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for opener in 0..size {
        for acceptor in 0..opener {
            let target = peers[acceptor].target;
            let opened = peers[opener].direct.open_channel(&target, SUBJECT).await.unwrap();
            let arrival = peers[acceptor].arrivals.recv().await.unwrap();
            let Arrival::Channel(accepted) = arrival else { panic!("{arrival:?}") };
            assert_eq!(accepted.subject(), SUBJECT);
            all[opener][acceptor] = Some(opened);
            all[acceptor][opener] = Some(accepted);
        }
    }
    all
}

#[tokio::test]
async fn all_ranks_say_the_same_about_a_network_between_them() {
    let table: [(&[Config], bool); 4] = [
        (&[MEMORY; 3], false),
        (&[PLAIN; 2], true),
        (&[MEMORY, PLAIN, MEMORY], true),
        (&[TLS], false),
    ];
    for (configs, expected) in table {
        for formed in group(configs, Choice::Auto).await {
            assert_eq!(formed.unwrap().group.has_network(), expected, "{configs:?}");
        }
    }
}

async fn group(configs: &[Config], choice: Choice) -> Vec<Result<Formed, Error>> {
    let mut peers: Vec<Peer> = configs.iter().copied().map(peer).collect();
    let size = peers.len();
    let ranks = meet(&mut peers).await.into_iter().enumerate().map(|(rank, channels)| {
        let place = Place { rank, size };
        tokio::task::spawn_blocking(move || {
            form(place, channels, (choice, false), (PATIENCE, Abort::default()))
        })
    });
    let mut formed = Vec::new();
    for rank in ranks.collect::<Vec<_>>() {
        formed.push(rank.await.unwrap());
    }
    formed
}

#[tokio::test]
async fn a_group_is_of_the_fastest_kind_that_all_can_be_of() {
    let table: [(&[Config], Backend); 5] = [
        (&[MEMORY, MEMORY, MEMORY], Backend::Shm),
        (&[TLS, TLS, TLS], Backend::Tcp),
        (&[PLAIN, PLAIN], Backend::Tcp),
        (&[MEMORY, PLAIN, MEMORY], Backend::Tcp),
        (&[MEMORY], Backend::Tcp),
    ];
    for (configs, backend) in table {
        assert_eq!(kinds(configs, Choice::Auto).await, vec![(backend, None); configs.len()]);
    }
}

/// What the ranks of such peers become, each with the reason why; after a sum that all agree on.
async fn kinds(configs: &[Config], choice: Choice) -> Vec<(Backend, Option<String>)> {
    let ranks = group(configs, choice).await.into_iter().map(|formed| {
        tokio::task::spawn_blocking(move || {
            let Formed { mut group, why, .. } = formed.unwrap();
            let Place { rank, size } = group.place();
            let mut values = vec![rank as f32; 500_003];
            group.all_reduce(&mut values, Reduction::Sum).unwrap();
            let sum = (size * (size - 1) / 2) as f32;
            assert!(values.iter().all(|value| *value == sum), "{}", group.backend());
            group.barrier().unwrap();
            (group.backend(), why)
        })
    });
    let mut kinds = Vec::new();
    for rank in ranks.collect::<Vec<_>>() {
        kinds.push(rank.await.unwrap());
    }
    kinds
}

#[tokio::test]
async fn ucx_carries_a_group_that_chooses_it_and_trusts_its_network() {
    let chosen = Choice::Only(Backend::Ucx);
    for configs in [[MEMORY; 3], [PLAIN; 3]] {
        let kinds = kinds(&configs, chosen).await;
        match ucx_is_there() {
            Ok(()) => assert_eq!(kinds, vec![(Backend::Ucx, None); 3]),
            Err(missing) => {
                assert!(std::env::var_os("DNODE_TEST_UCX").is_none(), "{missing}");
                assert!(missing.ends_with(UCX_ADVICE) && !missing.contains('\n'), "{missing}");
                assert_eq!(kinds, vec![(Backend::Tcp, Some(missing)); 3]);
            }
        }
    }
    for (backend, why) in kinds(&[TLS; 2], chosen).await {
        assert_eq!(backend, Backend::Tcp);
        assert!(why.is_some());
    }
}

#[tokio::test]
async fn who_does_without_ucx_for_a_while_keeps_the_others_from_it_until_then() {
    if ucx_is_there().is_err() {
        return;
    }
    let mut peers = [peer(PLAIN), peer(PLAIN)];
    let ranks = meet(&mut peers).await.into_iter().enumerate().map(|(rank, channels)| {
        let place = Place { rank, size: 2 };
        let choice = (Choice::Only(Backend::Ucx), rank == 1);
        tokio::task::spawn_blocking(move || {
            form(place, channels, choice, (PATIENCE, Abort::default())).unwrap()
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        let Formed { group, why, later } = rank.await.unwrap();
        assert_eq!((group.backend(), why, later), (Backend::Tcp, None, true));
    }
}

/// Set in a process that may make no files, nor memory that is like one.
const NO_MEMORY: &str = "DNODE_TEST_NO_MEMORY";

#[tokio::test]
async fn ranks_that_cannot_share_memory_use_connections() {
    if std::env::var_os(NO_MEMORY).is_none() {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" --exact \"$1\""]);
        let name = "ranks_that_cannot_share_memory_use_connections";
        shell.arg(std::env::current_exe().unwrap()).arg(name).env(NO_MEMORY, "1");
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    for formed in group(&[MEMORY; 3], Choice::Auto).await {
        let Formed { group, why, later } = formed.unwrap();
        assert_eq!((group.backend(), later), (Backend::Tcp, true));
        assert!(why.is_some());
    }
}

/// UCX reads it when it is opened, so a process of its own has it.
const NO_WAY: (&str, &str) = ("UCX_TLS", "no-such-transport");

#[tokio::test]
async fn what_all_offer_and_cannot_make_is_to_be_tried_again_later() {
    if ucx_is_there().is_err() {
        return;
    }
    if std::env::var(NO_WAY.0).as_deref() != Ok(NO_WAY.1) {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "what_all_offer_and_cannot_make_is_to_be_tried_again_later";
        let ended = again.args(["--exact", name]).env(NO_WAY.0, NO_WAY.1).status();
        assert!(ended.unwrap().success());
        return;
    }
    for formed in group(&[PLAIN; 2], Choice::Only(Backend::Ucx)).await {
        let Formed { group, why, later } = formed.unwrap();
        assert_eq!((group.backend(), later), (Backend::Tcp, true), "{why:?}");
        assert!(why.is_some());
    }
}

#[tokio::test]
async fn ranks_join_by_nccl_where_each_has_a_device_and_else_say_why_and_use_connections() {
    let chosen = Choice::Nccl(0);
    let devices = match nccl_is_there() {
        Ok(()) => nccl_devices(),
        Err(missing) => {
            assert!(missing.contains(" is missing: install "), "{missing}");
            assert!(!missing.contains('\n'), "{missing}");
            assert_eq!(
                kinds(&[MEMORY; 2], chosen).await,
                vec![(Backend::Tcp, Some(missing.clone())); 2]
            );
            Err(missing)
        }
    };
    match devices {
        Ok(0) => untested("nccl", "there is no CUDA device"),
        Err(why) => untested("nccl", &why),
        Ok(devices) => {
            assert_eq!(kinds(&[MEMORY], chosen).await, vec![(Backend::Nccl, None)]);
            // It has one rank per device.
            for (backend, why) in kinds(&[MEMORY; 2], chosen).await {
                assert_eq!(backend, Backend::Tcp);
                assert!(why.is_some_and(|why| why.contains("NCCL")));
            }
            nccl_sums(1).await;
            if devices < 2 {
                return untested("nccl among ranks", "there is one CUDA device");
            }
            nccl_sums(devices.min(4)).await;
        }
    }
}

/// Says which test was left out; not by the macro, whose words a test that passes keeps for itself.
fn untested(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "backend {what} is NOT TESTED: {why}");
}

/// Sums over so many devices, of lengths around a chunk, are exact, and so are the other operations.
async fn nccl_sums(size: usize) {
    let mut peers: Vec<Peer> = (0..size).map(|_| peer(MEMORY)).collect();
    let ranks = meet(&mut peers).await.into_iter().enumerate().map(|(rank, channels)| {
        let place = Place { rank, size };
        tokio::task::spawn_blocking(move || {
            let choice = (Choice::Nccl(rank), false);
            let Formed { mut group, why, .. } =
                form(place, channels, choice, (PATIENCE, Abort::default())).unwrap();
            assert_eq!((group.backend(), why), (Backend::Nccl, None));
            let sum = (size * (size + 1) / 2) as f32;
            let own = rank as f32 + 1.0;
            for length in [0, 1, 8191, NCCL_CHUNK - 1, NCCL_CHUNK, NCCL_CHUNK + 1] {
                let mut values = vec![own; length];
                group.all_reduce(&mut values, Reduction::Sum).unwrap();
                assert!(values.iter().all(|value| *value == sum), "{length}");
                let mut values = vec![own; length];
                group.reduce_scatter(&mut values, Reduction::Sum).unwrap();
                group.all_gather(&mut values).unwrap();
                assert!(values.iter().all(|value| *value == sum), "{length}");
            }
            let abort = group.abort();
            group.barrier().unwrap();
            abort.abort("the test ends");
            let mut values = vec![own; NCCL_CHUNK];
            let ended = group.all_reduce(&mut values, Reduction::Sum);
            // A lone rank need not wait for anybody.
            assert!(ended.is_err() || size == 1);
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.await.unwrap();
    }
}

#[tokio::test]
async fn shared_memory_is_for_one_host_alone() {
    let chosen = Choice::Only(Backend::Shm);
    assert_eq!(kinds(&[MEMORY; 2], chosen).await, vec![(Backend::Shm, None); 2]);
    let why = Some("not all ranks are processes of this host".to_owned());
    assert_eq!(kinds(&[PLAIN; 2], chosen).await, vec![(Backend::Tcp, why); 2]);
}

#[tokio::test]
async fn who_does_not_come_lets_nobody_in() {
    for config in [MEMORY, TLS] {
        let mut peers: Vec<Peer> = (0..3).map(|_| peer(config)).collect();
        let mut channels = meet(&mut peers).await;
        // One of them has left meanwhile.
        drop(channels.pop());
        let ranks = channels.into_iter().enumerate().map(|(rank, channels)| {
            let place = Place { rank, size: 3 };
            tokio::task::spawn_blocking(move || {
                form(place, channels, (Choice::Auto, false), (PATIENCE, Abort::default()))
                    .unwrap_err()
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let error = rank.await.unwrap();
            assert!(matches!(error, Error::Lost { .. } | Error::Form(_)), "{error}");
        }
    }
}
