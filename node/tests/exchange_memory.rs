//! Exchanges in the steady state take no new memory, from one replica to the other over each kind of path.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a failure in a test's preparation fails the test")]

#[path = "../../trainer/tests/counting/mod.rs"]
mod counting;

use std::time::Duration;

use bytes::BytesMut;
use dnode_network::{
    Carrier, DirectConfig, Kind, Multiaddr, Network, NetworkConfig, NetworkEvent, NetworkHandle,
};
use dnode_protocol::frame::{Codec, Leg, TensorHeader};
use dnode_protocol::{Clock, ExchangeId, FragmentId, Fragments, RunField, RunSpec};
use dnode_trainer::{
    Encoded, IdleTrainer, MixTerms, Mixer, OuterStep, Reading, Replica, ReplicaConfig,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use counting::{Counting, large_allocations};

/// Parameters of a replica: fragments of several frames each, and a shorter one at the end.
const PARAMETERS: usize = COUNT * FRAGMENT - 1000;
const COUNT: usize = 3;
const FRAGMENT: usize = 300_000;
/// Exchanges of each fragment after which every buffer is there.
const WARM: u64 = 4;
/// Exchanges of each fragment that are counted.
const COUNTED: u64 = 8;
/// What a buffer of a frame or a tensor takes at least.
const LARGE: usize = 64 << 10;
/// Longest wait for anything; the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);

#[global_allocator]
static ALLOCATOR: Counting<LARGE> = Counting;

fn replica(salt: u32) -> Replica {
    let noise = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e7 - 0.8;
    let apart = |index: u32| 0.01 * noise(index.wrapping_add(salt).wrapping_mul(40_503));
    let x = (0..u32::try_from(PARAMETERS).unwrap()).map(|i| noise(i) + apart(i)).collect();
    let fragments = Fragments::new(PARAMETERS, COUNT).unwrap();
    let (mixer, outer) = (Mixer::Exchange, Some(OuterStep::default()));
    Replica::with(
        Box::new(IdleTrainer::new(x).unwrap()),
        ReplicaConfig { mixer, outer, fragments, clip: None },
    )
}

/// One end: its replica, and its network with what that has to say.
struct End {
    replica: Replica,
    network: NetworkHandle,
    events: mpsc::Receiver<NetworkEvent>,
}

impl End {
    async fn next(&mut self) -> NetworkEvent {
        let event = timeout(DEADLINE, self.events.recv()).await;
        event.expect("an event in time").expect("a running network")
    }

    /// Sends a tensor of exchange number `sequence` of one fragment.
    fn send(
        &self,
        to: &Self,
        (fragment, sequence, leg): (FragmentId, u64, Leg),
        numbers: &Encoded,
    ) {
        let header = TensorHeader {
            exchange: ExchangeId { initiator: self.network.peer_id(), incarnation: 1, sequence },
            leg,
            codec: numbers.codec,
            fragment,
            clock: Clock(0),
            elements: u32::try_from(numbers.elements).unwrap(),
            offset: 0,
            count: 0,
        };
        self.network.send_tensor(to.network.peer_id(), header, numbers.bytes.clone()).unwrap();
    }

    /// The tensor of this exchange, put together of its frames as the driver does.
    async fn receive(&mut self, sequence: u64) -> Encoded {
        let mut bytes = BytesMut::new();
        loop {
            let NetworkEvent::Tensor { header, payload, .. } = self.next().await else { continue };
            if header.exchange.sequence != sequence {
                continue;
            }
            bytes.unsplit(payload);
            if header.range().end == header.elements as usize {
                let (codec, elements) = (header.codec, header.elements as usize);
                let bytes = bytes.freeze();
                self.network.recycle(&bytes);
                return Encoded { codec, elements, bytes };
            }
        }
    }
}

/// Two ends that are connected, and what carries their tensors.
async fn pair(wanted: Carrier) -> (End, End) {
    let direct = match wanted {
        Carrier::Direct(Kind::Memory) => DirectConfig { memory: true, ..DirectConfig::OFF },
        Carrier::Direct(Kind::Tls) => DirectConfig { tcp: true, ..DirectConfig::OFF },
        Carrier::Direct(Kind::Plain) | Carrier::Quic | Carrier::Stream => DirectConfig::OFF,
    };
    let mut here = end(1, direct, Vec::new());
    let address = loop {
        if let NetworkEvent::Listening { address } = here.next().await {
            break address;
        }
    };
    let mut there = end(2, direct, vec![address]);
    // Somebody has to listen to both until they have a path.
    let connected = async {
        while !(carried(&here, wanted) && carried(&there, wanted)) {
            tokio::select! {
                event = here.events.recv() => assert!(event.is_some(), "a running network"),
                event = there.events.recv() => assert!(event.is_some(), "a running network"),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    timeout(DEADLINE, connected).await.unwrap_or_else(|_| panic!("no path by {wanted}"));
    (here, there)
}

fn carried(end: &End, wanted: Carrier) -> bool {
    end.network.peers().first().is_some_and(|peer| peer.carrier == Some(wanted))
}

fn end(key: u8, direct: DirectConfig, bootstrap: Vec<Multiaddr>) -> End {
    let field = RunField { name: "purpose".to_owned(), value: "memory".to_owned() };
    let run = RunSpec::new(vec![field]).unwrap();
    let mut config = NetworkConfig::new([key; 32], run, 1);
    config.listen = vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()];
    (config.direct, config.bootstrap) = (direct, bootstrap);
    let (network, events) = Network::start(config).unwrap();
    End { replica: replica(u32::from(key)), network, events }
}

/// One exchange of every fragment; `first` numbers them.
async fn exchanges((here, there): (&mut End, &mut End), codec: Codec, first: u64) {
    let terms = MixTerms::any(0.1);
    for (fragment, sequence) in (0..).map(FragmentId).zip(first..first + COUNT as u64) {
        let offer = here.replica.read(fragment, Reading::Offer(codec));
        here.send(there, (fragment, sequence, Leg::Offer), &offer);
        let offer = there.receive(sequence).await;
        let (reply, _) = there.replica.answer(fragment, terms, &offer, codec).unwrap();
        there.send(here, (fragment, sequence, Leg::Reply), &reply);
        let reply = here.receive(sequence).await;
        here.replica.apply(fragment, terms, &reply).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_buffer_of_a_tensor_is_allocated_for_an_exchange_after_the_first_ones() {
    let paths = [Carrier::Direct(Kind::Memory), Carrier::Direct(Kind::Tls), Carrier::Quic];
    for wanted in paths {
        let (mut here, mut there) = pair(wanted).await;
        for codec in [Codec::F32, Codec::Int4] {
            for turn in 0..WARM {
                exchanges((&mut here, &mut there), codec, turn * COUNT as u64).await;
            }
            let before = large_allocations();
            for turn in WARM..WARM + COUNTED {
                exchanges((&mut here, &mut there), codec, turn * COUNT as u64).await;
            }
            let after = large_allocations();
            assert!(before > 0, "what makes the buffers is counted");
            // A buffer may be on its way for longer than any before, so that one more is taken. What each
            // exchange takes would come to as many as there are exchanges.
            let most = COUNTED as usize * COUNT / 2;
            assert!(after - before < most, "{wanted}, {codec}: {}", after - before);
        }
        here.network.shutdown().await;
        there.network.shutdown().await;
    }
}
