//! An exchange in its parts, one after the other, against exchanges that overlap.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dnode_network::{Network, NetworkConfig, NetworkEvent, NetworkHandle};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX;
use dnode_protocol::{Clock, ExchangeId, FragmentId, Fragments, PeerId, RunField, RunSpec};
use dnode_trainer::{Encoded, MixTerms, Mixer, Reading, Replica, ReplicaConfig};
use tokio::sync::mpsc::Receiver;

use crate::spread;
use crate::swarm::{BACK_TO_BACK, Swarm};
use crate::trainer::{Kind, Synthetic};

/// Fragments of the largest size that the overlapping exchanges move in turns.
const FRAGMENTS: usize = 8;
/// Repetitions of each part.
const TURNS: usize = 60;
/// How long exchanges overlap.
const SPAN: Duration = Duration::from_secs(6);
const ONE: FragmentId = FragmentId(0);

pub(crate) fn run() {
    println!("parts: one exchange of {FRAGMENT_ELEMENTS_MAX} parameters, ms (median)");
    for codec in [Codec::F32, Codec::Int4] {
        let mixed = mix(codec);
        let sent: Vec<f64> = mixed.sizes.iter().map(send).collect();
        let sum = mixed.times.iter().sum::<f64>() + sent.iter().sum::<f64>();
        let codecs = format!("gossip.codecs={codec}");
        let sets = [&BACK_TO_BACK[..], &[&codecs]].concat();
        let swarm = Swarm::start(Kind::Free, 2, FRAGMENTS * FRAGMENT_ELEMENTS_MAX, &sets);
        std::thread::sleep(SPAN);
        let exchanges =
            swarm.end() as f64 / mixed.sizes.iter().map(|t| t.bytes.len() as f64).sum::<f64>();
        let [offer, answer, apply] = mixed.times;
        println!(
            "{codec:>6}  offer {offer:.2}, sent {:.2}, answer {answer:.2}, sent back {:.2}, apply {apply:.2}: {sum:.2}; overlapping {:.2}",
            sent[0],
            sent[1],
            1e3 * SPAN.as_secs_f64() / exchanges
        );
    }
}

/// Median times of the three parts that the replicas do, and what they send.
struct Mixed {
    times: [f64; 3],
    sizes: [Encoded; 2],
}

fn replica(rank: usize) -> Replica {
    let trainer = Synthetic::new(Kind::Free, (rank, 2), FRAGMENT_ELEMENTS_MAX);
    let fragments = Fragments::new(FRAGMENT_ELEMENTS_MAX, 1).unwrap();
    let config = ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments, clip: None };
    Replica::with(Box::new(trainer), config)
}

fn mix(codec: Codec) -> Mixed {
    let (mut here, mut there) = (replica(0), replica(1));
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut last = None;
    for _ in 0..TURNS {
        let began = Instant::now();
        let offer = here.read(ONE, Reading::Offer(codec));
        times[0].push(1e3 * began.elapsed().as_secs_f64());
        let began = Instant::now();
        let (reply, _) = there.answer(ONE, MixTerms::any(0.5), &offer, codec).unwrap();
        times[1].push(1e3 * began.elapsed().as_secs_f64());
        let began = Instant::now();
        black_box(here.apply(ONE, MixTerms::any(0.5), &reply).unwrap());
        times[2].push(1e3 * began.elapsed().as_secs_f64());
        last = Some([offer, reply]);
    }
    Mixed { times: times.map(|times| spread(&times).0), sizes: last.unwrap() }
}

/// Median time from handing a tensor to the network to its last frame at the other end, ms.
fn send(tensor: &Encoded) -> f64 {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let (a, mut a_events) = network(1, None);
        let address = loop {
            if let NetworkEvent::Listening { address } = a_events.recv().await.unwrap() {
                break address;
            }
        };
        let (b, mut b_events) = network(2, Some(address));
        while !matches!(b_events.recv().await.unwrap(), NetworkEvent::PeerUp { .. }) {}
        while !matches!(a_events.recv().await.unwrap(), NetworkEvent::PeerUp { .. }) {}
        let mut times = Vec::new();
        for sequence in 0..TURNS as u64 {
            let began = Instant::now();
            give(&a, b.peer_id(), sequence, tensor);
            arrives(&mut b_events, sequence).await;
            times.push(1e3 * began.elapsed().as_secs_f64());
        }
        spread(&times).0
    })
}

fn network(
    key: u8,
    bootstrap: Option<dnode_network::Multiaddr>,
) -> (NetworkHandle, Receiver<NetworkEvent>) {
    let field = RunField { name: "bench".to_owned(), value: "exchange".to_owned() };
    let mut config = NetworkConfig::new([key; 32], RunSpec::new(vec![field]).unwrap(), 1);
    config.listen = vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()];
    config.bootstrap = bootstrap.into_iter().collect();
    config.mdns = false;
    Network::start(config).unwrap()
}

fn give(from: &NetworkHandle, to: PeerId, sequence: u64, tensor: &Encoded) {
    let header = TensorHeader {
        exchange: ExchangeId { initiator: from.peer_id(), incarnation: 1, sequence },
        leg: Leg::Offer,
        codec: tensor.codec,
        fragment: ONE,
        clock: Clock(0),
        elements: u32::try_from(tensor.elements).unwrap(),
        offset: 0,
        count: 0,
    };
    from.send_tensor(to, header, tensor.bytes.clone()).unwrap();
}

async fn arrives(events: &mut Receiver<NetworkEvent>, sequence: u64) {
    loop {
        if let NetworkEvent::Tensor { header, .. } = events.recv().await.unwrap()
            && header.exchange.sequence == sequence
            && header.offset + header.count == header.elements
        {
            return;
        }
    }
}
