//! Hostile peers among real processes: what they do costs the others nothing but a moment.

use dnode_protocol::{Message, PeerId};
use serde_json::Value;
use tempfile::TempDir;

use crate::attacker::{Attack, Attacker};
use crate::process::{Peer, wait};

/// Steps that are trained after an attack, so that its effect would show.
const STEPS_AFTER: u64 = 2000;
/// Honest exchanges that are awaited after an attack.
const EXCHANGES_AFTER: usize = 16;

/// A victim, its honest neighbours, and those who attack.
struct Scene {
    victim: Peer,
    honest: Vec<Peer>,
    attackers: Vec<Attacker>,
    _root: TempDir,
}

impl Scene {
    /// The honest know each other before the first step, or an attacker.
    fn start(honest: usize, attacks: &[Attack]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let together = honest.to_string();
        let common = [
            ["--set", "run.steps=100000000"],
            ["--set", "run.batch=16"],
            // These runs never reach the end of the schedule; at a small rate they stay calm.
            ["--set", "optimizer.learning_rate=0.0003"],
            ["--set", "node.evaluate_every=200"],
            // Attackers write f32.
            ["--set", "gossip.codecs=[\"f32\"]"],
        ]
        .concat();
        let flags = [&common[..], &["--require-peers", &together]].concat();
        let mut victim = Peer::start_debugging(&root, "victim", &flags);
        let address = victim.address();
        let join = [&common[..], &["--require-peers", "1", "--bootstrap", &address]].concat();
        let honest =
            (0..honest).map(|i| Peer::start_debugging(&root, &format!("honest-{i}"), &join));
        let honest = honest.collect();
        let data = victim.data();
        let attackers = (0_u8..).zip(attacks);
        let attackers = attackers
            .map(|(index, attack)| Attacker::start(index, *attack, &data, &address))
            .collect();
        Self { victim, honest, attackers, _root: root }
    }

    /// The events of this name about the `index`-th attacker, once there is one.
    fn wait_event_about(&mut self, name: &str, index: usize) -> Value {
        let id = self.attackers[index].id().to_string();
        self.victim.wait_line(&format!("{name} of attacker {index}"), |line| {
            let about = || line["detail"].as_str().is_some_and(|text| text.starts_with(&id));
            line["kind"] == "event" && line["name"] == name && about()
        })
    }

    /// Exchanges of the victim with `peer` so far.
    fn mixed_with(&self, peer: PeerId) -> usize {
        let with = format!("peer={} ", peer.short());
        let is = |line: &&str| line.contains("mixed") && line.contains(&with);
        self.victim.log().lines().filter(is).count()
    }

    /// The victim goes on to train well and to mix with each honest peer, and has never mixed with
    /// an attacker. Ends everything; returns the victim's last line.
    fn goes_on(mut self) -> Value {
        let honest: Vec<PeerId> = self.honest.iter_mut().map(Peer::id).collect();
        let before: Vec<usize> = honest.iter().map(|peer| self.mixed_with(*peer)).collect();
        let step = self.victim.metrics().last().and_then(|line| line["step"].as_u64()).unwrap();
        let evaluated = self.victim.wait_line("an evaluation after the attack", |line| {
            let late = line["step"].as_u64().is_some_and(|at| at > step + STEPS_AFTER);
            line["kind"] == "evaluate" && late
        });
        assert!(evaluated["accuracy"].as_f64().unwrap() > 0.85, "{evaluated}");
        for (peer, before) in honest.iter().zip(before) {
            wait("exchanges after the attack", || {
                (self.mixed_with(*peer) >= before + EXCHANGES_AFTER).then_some(())
            });
        }
        for attacker in &self.attackers {
            assert_eq!(self.mixed_with(attacker.id()), 0, "{:?}", attacker.id());
        }
        let mut last = Value::Null;
        for peer in self.honest.iter_mut().chain([&mut self.victim]) {
            peer.signal("INT");
            last = peer.finish();
            let lines = peer.metrics();
            let train = || lines.iter().filter(|line| line["kind"] == "train");
            assert!(train().all(|line| line["loss"].as_f64().is_some()), "a loss is not finite");
            assert!(train().count() > 10);
        }
        last
    }
}

const BAD_NUMBERS: [(f32, &str); 3] =
    [(f32::NAN, "not all finite"), (f32::NEG_INFINITY, "not all finite"), (1e30, "have norm")];

fn bad_numbers(attack: fn(f32) -> Attack) {
    let mut scene = Scene::start(1, &BAD_NUMBERS.map(|(value, _)| attack(value)));
    for (index, (_, why)) in BAD_NUMBERS.iter().enumerate() {
        scene.wait_event_about("offended", index);
        scene.wait_event_about("peer-down", index);
        scene.victim.wait_line(why, |line| {
            line["name"] == "mix-refused" && line["detail"].as_str().unwrap().contains(why)
        });
    }
    let last = scene.goes_on();
    assert!(last["exchanges"]["refused"].as_u64().unwrap() >= 3, "{last}");
}

#[test]
fn replies_that_are_no_numbers_or_huge_are_refused_and_their_senders_dropped() {
    bad_numbers(Attack::Reply);
}

#[test]
fn offers_that_are_no_numbers_or_huge_are_refused_and_their_senders_dropped() {
    bad_numbers(Attack::Offer);
}

#[test]
fn a_peer_that_never_replies_costs_one_lease_at_a_time() {
    let mut scene = Scene::start(1, &[Attack::NeverReplies]);
    let victim = scene.victim.id();
    let abort = |message: &Message| matches!(message, Message::Abort { .. });
    wait("the victim gives up", || {
        scene.attackers[0].heard_from(victim).iter().any(abort).then_some(())
    });
    let last = scene.goes_on();
    assert!(last["exchanges"]["expired"].as_u64().unwrap() >= 1, "{last}");
}

#[test]
fn a_peer_that_never_offers_holds_a_fragment_for_one_lease() {
    let mut scene = Scene::start(1, &[Attack::NeverOffers]);
    let victim = scene.victim.id();
    // A fragment is granted a second time only when the first lease of it has ended.
    wait("every lease ends", || {
        let heard = scene.attackers[0].heard_from(victim);
        let granted = heard.iter().filter_map(|message| match message {
            Message::Accept { exchange, .. } => Some(*exchange),
            Message::Hello { .. }
            | Message::Refuse { .. }
            | Message::Heartbeat(_)
            | Message::Goodbye
            | Message::Propose { .. }
            | Message::Busy { .. }
            | Message::LeftOut { .. }
            | Message::Stale { .. }
            | Message::Ack { .. }
            | Message::Abort { .. }
            | Message::Aborted { .. }
            | Message::Pull { .. }
            | Message::Snapshot { .. }
            | Message::Have { .. }
            | Message::Fetch { .. }
            | Message::Probe { .. }
            | Message::Alive { .. }
            | Message::Rack { .. }
            | Message::Summaries { .. }
            | Message::Revocations { .. }
            | Message::Part(_) => None,
        });
        (granted.count() > 4).then_some(())
    });
    let last = scene.goes_on();
    assert!(last["exchanges"]["expired"].as_u64().unwrap() >= 1, "{last}");
}

#[test]
fn peers_that_break_the_rules_after_the_handshake_are_dropped_by_name() {
    let attacks =
        [Attack::ShortReply, Attack::OthersName, Attack::LargestClock, Attack::HelloAgain];
    let mut scene = Scene::start(1, &attacks);
    for index in 0..3 {
        scene.wait_event_about("offended", index);
    }
    let offence = scene.wait_event_about("offence", 3);
    assert!(offence["detail"].as_str().unwrap().contains("unexpected message"), "{offence}");
    for index in 0..4 {
        scene.wait_event_about("peer-down", index);
    }
    scene.goes_on();
}

#[test]
fn words_about_exchanges_that_do_not_exist_change_nothing() {
    let mut scene = Scene::start(1, &[Attack::Noise]);
    let victim = scene.victim.id();
    let aborted = |message: &&Message| matches!(message, Message::Aborted { .. });
    wait("the victim answers", || {
        let heard = scene.attackers[0].heard_from(victim);
        (heard.iter().filter(aborted).count() >= 20).then_some(())
    });
    let dropped = scene.victim.metrics().iter().any(|line| line["name"] == "offended");
    assert!(!dropped, "late words are no offence");
    scene.goes_on();
}

#[test]
fn one_liar_about_its_clock_moves_nobody() {
    let mut scene = Scene::start(3, &[]);
    // One that all believe from the first moment on cannot be told from a founder.
    for peer in scene.honest.iter_mut().chain([&mut scene.victim]) {
        peer.wait_line("three neighbours that train", |line| {
            line["clock"].as_u64().is_some_and(|clock| clock > 0) && line["peers"] == 3
        });
    }
    let (data, address) = (scene.victim.data(), scene.victim.address());
    scene.attackers.push(Attacker::start(0, Attack::ImpossibleClock, &data, &address));
    let liar = scene.attackers[0].id().to_string();
    scene.victim.wait_line("the liar is up", |line| {
        line["name"] == "peer-up" && line["detail"] == liar.as_str()
    });
    let last = scene.goes_on();
    assert!(last["clock"].as_u64().unwrap() < 1 << 40, "{last}");
}
