//! Writes the seed inputs: one frame of each kind, and a script for the gossip core. Gives all other frames
//! of the corpus the version of the protocol.
//!
//! `cargo run --release --manifest-path testnet/fuzz/Cargo.toml --example seeds`

use std::path::Path;
use std::time::Duration;

use dnode_gossip::testing::peer;
use dnode_gossip::{Trust, Verdict, Verdicts};
use dnode_protocol::frame::{Codec, Leg, TensorHeader, encode_control, write_f32s};
use dnode_protocol::invitation::{Chain, Grant, IssuerKey, Pass, Revocation, Role, Target};
use dnode_protocol::limits::PROTOCOL_VERSION;
use dnode_protocol::membership::{Ends, Opening, RunSecret, Ticket};
use dnode_protocol::{
    About, Clock, ContentHash, ExchangeId, FragmentId, Heartbeat, Information, Message, Origin,
    Part, Phase, Real, RunField, RunSpec, Stripe, Summary, SummaryLink, Terms, Versions,
};

fn main() -> std::io::Result<()> {
    for message in messages() {
        let frame = encode_control(&message).expect("the seeds are legal");
        write("decode_control", message.name(), &frame)?;
    }
    for leg in [Leg::Offer, Leg::Reply, Leg::Snapshot, Leg::Ring] {
        let mut payload = Vec::new();
        write_f32s(&[1.0, -2.5, f32::NAN], &mut payload);
        let frame = tensor(leg, Codec::F32, &payload);
        write("decode_tensor", &format!("{leg:?}").to_lowercase(), &frame)?;
    }
    for codec in Codec::ALL {
        let payload: Vec<u8> = (0..).take(codec.payload_bytes(3)).collect();
        write("decode_tensor", codec.name(), &tensor(Leg::Offer, codec, &payload))?;
    }
    for (target, at) in [("decode_control", 0), ("decode_tensor", 4)] {
        renew(target, at)?;
    }
    // Three neighbours come up, say their clocks, a round begins, one accepts, time passes.
    let script = [
        0, 0, 0, 0, 0, 2, 1, 0, 3, 2, 2, 0, 0, 3, 1, 1, 1, 2, 2, 0, 3, 1, 1, 1, 10, 2, 0, 3, 1, 3,
        0, 0, 3, 0, 8, 0, 1, 7, 0, 0, 8, 0, 1, 11, 13, 9, 14, 14, 14, 14,
    ];
    write("gossip_core", "round", &script)?;
    for (name, script) in sums() {
        write("gossip_core", name, script)?;
    }
    for (name, words) in words() {
        write("membership", name, &words)?;
    }
    for (name, bytes) in invitations() {
        write("invitation", name, &bytes)?;
    }
    let log = dnode_fuzz::sound_log();
    write("audit", "log", log)?;
    let first = log.split(|byte| *byte == b'\n').next().unwrap_or_default();
    write("audit", "line", first)?;
    write("audit", "change", &[0, 17, 1, 1, 200, 32])?;
    for (name, bytes) in files() {
        write(name, "first", &bytes)?;
    }
    write("verdicts", "none", Verdicts::default().to_text().as_bytes())?;
    write("verdicts", "each", verdicts().to_text().as_bytes())
}

/// Scripts for the gossip core where replicas are sums of contributions.
fn sums() -> [(&'static str, &'static [u8]); 3] {
    // Two neighbours come up, and one says that all three fragments contain two contributions of its own.
    // Some of them arrive and are added, a commit is done, and the other neighbour fetches what that made.
    let round = &[
        128, 0, 0, 1, 0, 2, 1, 2, 0, 11, 0, 2, 1, 0, 1, 2, 7, 0, 3, 8, 0, 1, 7, 1, 3, 8, 0, 1, 7,
        0, 4, 8, 0, 1, 11, 2, 2, 15, 2, 3, 0, 0, 1, 0, 0, 14, 11, 14, 14,
    ];
    // A neighbour comes up, and says what fragments behind the last one contain.
    let beyond = &[128, 0, 0, 1, 2, 0, 11, 2, 1, 0];
    // After a commit a neighbour claims to have a further contribution of the own name. It is asked for, and
    // arrives after two commits more.
    let claimed =
        &[128, 0, 0, 1, 11, 2, 0, 11, 0, 2, 1, 1, 0, 2, 11, 11, 7, 0, 3, 8, 0, 1, 14, 8, 0, 1, 14];
    [("sums", round), ("beyond", beyond), ("claimed", claimed)]
}

/// One input of each target of files: a tensor, a tokenizer, a configuration, and changes to what holds.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let text = ["To be, or not to be, that is the question. ".repeat(20)];
    let tokenizer = dnode_trainer::train_tokenizer(&text, 270).expect("a short text");
    let config = r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":128,
"num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":270,"max_position_embeddings":64,
"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","tie_word_embeddings":true}"#;
    vec![
        ("codecs", [&[4, 1, 0][..], &[0x5a; 200]].concat()),
        ("tokenizer", tokenizer.bytes().to_vec()),
        ("model_file", config.into()),
        ("images", vec![0, 0, 1, 0, 1]),
        ("checkpoint", vec![2, 0, 40, 2, 1]),
        ("weights", vec![0, 0, 40, 2, 1]),
    ]
}

/// A neighbour of each trust.
fn verdicts() -> Verdicts {
    let of = |index, trust| Verdict {
        peer: peer(index),
        trust,
        evidence: 6.5,
        times: 2.25,
        outliers: 3,
        left_out: 1,
        rounds: 17,
        passes: 2,
        joined: 1,
        life: 65537,
    };
    let all = [Trust::LeftOut, Trust::WeighedDown, Trust::Trusted];
    let held = (1..).zip(all).map(|(index, trust)| of(index, trust)).collect();
    Verdicts { round_time: Duration::from_millis(40), held }
}

fn write(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(name), bytes)
}

/// Gives the other frames of the corpus this version, which is their byte `at`.
fn renew(target: &str, at: usize) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let mut bytes = std::fs::read(&path)?;
        if let Some(version) = bytes.get_mut(at).filter(|version| **version != PROTOCOL_VERSION) {
            *version = PROTOCOL_VERSION;
            std::fs::write(path, bytes)?;
        }
    }
    Ok(())
}

/// An owner's invitation and the peer that came by it, as a chain and as a pass, and what takes it back.
fn invitations() -> Vec<(&'static str, Vec<u8>)> {
    let [owner, invited, joiner] = [1, 2, 3].map(|byte| IssuerKey::from_seed(&[byte; 32]));
    let grant = |holder, further| Grant {
        holder,
        role: Role::Train,
        further,
        uses: 1,
        not_before_s: 100,
        not_after_s: 200,
        number: 5,
    };
    let chain = Chain::default().extended(&owner, grant(invited.peer(), 1));
    let chain = chain.and_then(|chain| chain.extended(&invited, grant(joiner.peer(), 0)));
    let chain = chain.expect("the seeds are legal");
    let pass = Pass::new(vec![owner.peer()], chain.clone()).expect("the seeds are legal");
    let targets = [Target::Holder(joiner.peer()), Target::Number(5)];
    let statements = targets.map(|it| Revocation::sign(&owner, it, 200, Chain::default()));
    vec![
        ("chain", chain.to_bytes()),
        ("pass", pass.to_bytes()),
        ("revocations", Revocation::to_bytes(&statements)),
    ]
}

/// Tickets, their bytes without checksum, and the words of both ends of a proof.
fn words() -> Vec<(&'static str, Vec<u8>)> {
    let secret = RunSecret::from_bytes([7; RunSecret::BYTES]);
    let ticket = Ticket::new(secret.clone(), [vec![4, 127, 0, 0, 1, 6, 0, 1], vec![9; 255]]);
    let text = ticket.expect("the seeds are legal").to_text();
    let bytes = [&[1][..], &[7; 32], &[2, 3, 1, 2, 3, 1, 9]].concat();
    let opening = Opening::new(&secret, Ends { dialer: peer(3), listener: peer(4) }, [3; 32]);
    let dialer = [&opening.hello()[..], &[5; 32]].concat();
    vec![
        ("text", text.into_bytes()),
        ("bytes", bytes),
        ("dialer", dialer),
        ("listener", vec![4; 64]),
    ]
}

fn exchange() -> ExchangeId {
    ExchangeId { initiator: peer(1), incarnation: 1, sequence: 2 }
}

fn messages() -> Vec<Message> {
    let field =
        |name: &str, value: &str| RunField { name: name.to_owned(), value: value.to_owned() };
    let run = RunSpec::new(vec![field("model.kind", "mlp"), field("run.seed", "1")])
        .expect("the seeds are legal");
    let (exchange, fragment, clock) = (exchange(), FragmentId(3), Clock(7));
    let information = Information { entries: vec![(peer(0), Clock(6)), (peer(1), clock)] };
    let terms = Terms {
        clock,
        mass: 1,
        work: 1,
        merges: false,
        codec: Codec::F32,
        information: information.clone(),
    };
    let origin = Origin { peer: peer(1), incarnation: 1 };
    let versions = Versions { entries: vec![(origin, 3)] };
    vec![
        Message::Hello {
            run: run.clone(),
            settings: run,
            incarnation: 1,
            direct_port: 4001,
            chain: Vec::new(),
        },
        Message::Refuse {
            field: "run.seed".to_owned(),
            ours: "1".to_owned(),
            theirs: "2".to_owned(),
        },
        Message::Heartbeat(Heartbeat {
            clock,
            samples: 99,
            position: 0,
            step_micros: 800,
            batch: 32,
            phase: Phase::Training,
        }),
        Message::Goodbye,
        Message::Propose { exchange, fragment, terms: terms.clone() },
        Message::Accept { exchange, terms },
        Message::Snapshot {
            exchange,
            clock,
            hash: ContentHash::of(&[1, 2, 3]),
            information,
            versions: versions.clone(),
        },
        Message::Have { first: fragment, count: 2, versions },
        Message::Fetch { exchange, fragment, origin, number: 2 },
        Message::Rack { name: 5, stripe: Stripe { group: 7, rank: 1, size: 2 } },
        Message::Busy { exchange },
        Message::LeftOut { exchange },
        Message::Stale { exchange, clock },
        Message::Ack { exchange },
        Message::Abort { exchange },
        Message::Aborted { exchange },
        Message::Pull { exchange, fragment },
        Message::Probe { number: 4, target: peer(1) },
        Message::Alive { number: 4, target: peer(1) },
        Message::Summaries { summaries: vec![summary()] },
        Message::Part(Part {
            steps: Some(40),
            steps_given: false,
            shards: 4,
            shard: Some(1),
            shard_given: true,
        }),
    ]
}

fn summary() -> Summary {
    let link = SummaryLink {
        to: 7,
        bytes_per_s: 1000,
        rtt_micros: 500,
        exchange_millis: u32::MAX,
        path: 4,
    };
    Summary {
        peer: peer(1),
        incarnation: 1,
        number: 9,
        about: About {
            name: "gpu-7".to_owned(),
            host: "rack-2.example".to_owned(),
            device: "H200".to_owned(),
        },
        age_millis: 100,
        phase: Phase::Training,
        open: 1,
        rack: 0,
        step: 40,
        position: 40,
        commits: 2,
        samples: 640,
        loss: Real::new(0.5),
        held_out: Real::new(0.6),
        samples_per_s: Real::UNKNOWN,
        wait_s: Real::new(1.5),
        memory_bytes: 1 << 30,
        sent_bytes: 10,
        received_bytes: 20,
        lags: [1, 0, 0, 0, 0, 0, 0, 0, 3],
        sketch: [Real::new(-1.5); 32],
        links: vec![link],
    }
}

/// The last frame of a tensor, with three elements.
fn tensor(leg: Leg, codec: Codec, payload: &[u8]) -> Vec<u8> {
    let header = TensorHeader {
        exchange: exchange(),
        leg,
        codec,
        fragment: FragmentId(3),
        clock: Clock(7),
        elements: 65_539,
        offset: 65_536,
        count: 3,
    };
    [&header.encode(payload)[..], payload].concat()
}
