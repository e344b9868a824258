//! Peers that prove their identities become a group, of the kind that they all can be of.

#![cfg(target_os = "linux")]
#![expect(clippy::float_cmp, reason = "sums of whole numbers are exact")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use dnode_collective::{Backend, Collective, Error, Place, Reduction, form};
use dnode_direct::{Arrival, Channel, Config, Direct, Target};
use libp2p_identity::Keypair;
use tokio::sync::mpsc;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);
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

async fn group(configs: &[Config]) -> Vec<Result<Box<dyn Collective>, Error>> {
    let mut peers: Vec<Peer> = configs.iter().copied().map(peer).collect();
    let size = peers.len();
    let ranks = meet(&mut peers).await.into_iter().enumerate().map(|(rank, channels)| {
        let place = Place { rank, size };
        tokio::task::spawn_blocking(move || form(place, channels, PATIENCE))
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
        let ranks = group(configs).await.into_iter().map(|group| {
            tokio::task::spawn_blocking(move || {
                let mut group = group.unwrap();
                let Place { rank, size } = group.place();
                let mut values = vec![rank as f32; 500_003];
                group.all_reduce(&mut values, Reduction::Sum).unwrap();
                let sum = (size * (size - 1) / 2) as f32;
                assert!(values.iter().all(|value| *value == sum), "{}", group.backend());
                group.barrier().unwrap();
                group.backend()
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            assert_eq!(rank.await.unwrap(), backend, "{configs:?}");
        }
    }
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
            tokio::task::spawn_blocking(move || form(place, channels, PATIENCE).unwrap_err())
        });
        for rank in ranks.collect::<Vec<_>>() {
            let error = rank.await.unwrap();
            assert!(matches!(error, Error::Lost { .. } | Error::Form(_)), "{error}");
        }
    }
}
