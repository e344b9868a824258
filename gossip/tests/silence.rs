//! Silent neighbours: asked, asked for, suspected; and what happens when they are back.

use std::time::Duration;

use dnode_gossip::testing::{Effect, Host, Toy, ToyRule, numbers, peer, terms};
use dnode_gossip::{Config, Event, Input, Standing, Start};
use dnode_protocol::frame::Leg;
use dnode_protocol::{
    Clock, ExchangeId, FragmentId, Heartbeat, Information, Message, PeerId, Phase, Time,
};

const MS: Duration = Duration::from_millis(1);

/// One host whose neighbours are played by the test.
struct Scene {
    host: Host,
    now: Time,
    events: Vec<(Time, Event)>,
    sent: Vec<(Time, PeerId, Message)>,
    /// Neighbours that answer probes at once, and whom they vouch for.
    answers: Vec<(u32, Option<u32>)>,
    /// Neighbours that say their clock every 100 ms.
    speaks: Vec<(u32, u64)>,
}

impl Scene {
    fn new(neighbours: &[u32]) -> Self {
        let start =
            Start { me: peer(0), incarnation: 1, fragments: 1, clock: Clock(0), seed: [0; 32] };
        let replica = Toy::new(ToyRule::Exchange, vec![vec![0.0]]);
        let host = Host::new(start, Config::default(), replica, Time::ZERO);
        let (events, sent, answers, speaks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut scene = Self { host, now: Time::ZERO, events, sent, answers, speaks };
        for other in neighbours {
            scene.input(Input::PeerUp { peer: peer(*other), incarnation: 1 });
            scene.hear(*other, heartbeat(0));
        }
        scene
    }

    fn hear(&mut self, from: u32, message: Message) {
        self.input(Input::Received { from: peer(from), message });
    }

    fn input(&mut self, input: Input) {
        self.host.handle(input, self.now);
        for effect in self.host.take_effects() {
            match effect {
                Effect::Event(event) => self.events.push((self.now, event)),
                Effect::Message { to, message } => {
                    self.sent.push((self.now, to, message.clone()));
                    self.answer(to, &message);
                }
                Effect::Disconnect { peer, .. } => self.input(Input::PeerDown { peer }),
                Effect::Tensor { .. } => {}
            }
        }
    }

    fn answer(&mut self, to: PeerId, message: &Message) {
        let Message::Probe { number, target } = *message else { return };
        let knows = |(other, vouched): &(u32, Option<u32>)| {
            let for_itself = target == to;
            peer(*other) == to && (for_itself || vouched.map(peer) == Some(target))
        };
        if self.answers.iter().any(knows) {
            let message = Message::Alive { number, target };
            self.input(Input::Received { from: to, message });
        }
    }

    /// Lets so many milliseconds pass, with every deadline kept.
    fn pass(&mut self, milliseconds: u32) {
        let end = self.now + MS * milliseconds;
        let mut spoken = self.now;
        loop {
            let due = self.host.core.poll_deadline().0.max(self.now);
            let talk = spoken + MS * 100;
            if due.min(talk) > end {
                break;
            }
            self.now = due.min(talk);
            if talk <= due {
                spoken = talk;
                for (other, clock) in self.speaks.clone() {
                    self.hear(other, heartbeat(clock));
                }
            } else {
                self.input(Input::Deadline);
            }
        }
        self.now = end;
    }

    /// Commits up to the progress bound and one more, which is held.
    fn commit_until_held(&mut self) {
        while self.host.commit(0.0, self.now) {}
        self.pass(0);
    }

    fn when(&self, wanted: &Event) -> Option<Duration> {
        let found = self.events.iter().find(|(_, event)| event == wanted);
        found.map(|(at, _)| at.since(Time::ZERO))
    }

    fn standing(&self, other: u32) -> Option<Standing> {
        let mut members = self.host.core.members();
        members.find(|(name, _)| **name == peer(other)).map(|(_, member)| member.standing)
    }

    fn probes(&self, to: u32, target: u32) -> usize {
        let is = |(_, receiver, message): &&(Time, PeerId, Message)| {
            let asks = matches!(message, Message::Probe { target: t, .. } if *t == peer(target));
            *receiver == peer(to) && asks
        };
        self.sent.iter().filter(is).count()
    }
}

fn heartbeat(clock: u64) -> Message {
    let (clock, phase) = (Clock(clock), Phase::Training);
    Message::Heartbeat(Heartbeat {
        clock,
        samples: 0,
        position: 0,
        step_micros: 1000,
        batch: 1,
        phase,
    })
}

#[test]
fn a_commit_waits_for_a_dead_peer_for_less_than_a_second() {
    let mut scene = Scene::new(&[1, 2]);
    scene.answers = vec![(1, None), (2, None)];
    scene.pass(8000);
    // Peer 1 dies, and peer 2 trains on.
    (scene.answers, scene.speaks) = (vec![(2, None)], vec![(2, 4)]);
    let died = scene.now;
    scene.hear(2, heartbeat(4));
    scene.commit_until_held();
    let clock = scene.host.clock;
    scene.pass(1000);
    let suspected = scene.when(&Event::Suspected(peer(1))).unwrap();
    assert!(died + Duration::from_millis(700) > Time::ZERO + suspected, "{suspected:?}");
    assert!(scene.probes(2, 1) > 0, "another was asked for it first");
    assert!(scene.host.commit(0.0, scene.now) && scene.host.clock > clock);
}

#[test]
fn a_peer_that_answers_and_does_not_train_is_not_declared_dead() {
    let mut scene = Scene::new(&[1]);
    scene.answers = vec![(1, None)];
    scene.commit_until_held();
    scene.pass(1900);
    assert_eq!(scene.standing(1), Some(Standing::Active));
    scene.pass(60_000);
    assert_eq!(scene.when(&Event::Suspected(peer(1))), None);
    assert_eq!(scene.standing(1), Some(Standing::Lagging), "the gate is another matter");
}

#[test]
fn a_peer_that_others_hear_is_suspected_only_when_nothing_arrives_for_long() {
    let mut scene = Scene::new(&[1, 2]);
    (scene.answers, scene.speaks) = (vec![(2, Some(1))], vec![(2, 0)]);
    scene.commit_until_held();
    scene.pass(1800);
    assert_eq!(scene.standing(1), Some(Standing::Active));
    scene.pass(20_000);
    let suspected = scene.when(&Event::Suspected(peer(1))).unwrap();
    assert!(suspected >= Config::default().suspect_after, "{suspected:?}");
}

#[test]
fn any_word_refutes_a_suspicion() {
    let mut scene = Scene::new(&[1]);
    scene.commit_until_held();
    scene.pass(10_000);
    assert_eq!(scene.standing(1), Some(Standing::Suspected));
    scene.hear(1, Message::Alive { number: 99, target: peer(7) });
    assert_eq!(scene.standing(1), Some(Standing::Active));
    assert!(scene.events.iter().any(|(_, event)| *event == Event::Restored(peer(1))));
}

#[test]
fn who_has_slept_does_not_accuse_the_others() {
    let mut scene = Scene::new(&[1]);
    scene.answers = vec![(1, None)];
    scene.speaks = vec![(1, 0)];
    scene.pass(3000);
    // Swapped out for eight seconds, in which nothing was heard.
    scene.now = scene.now + Duration::from_secs(8);
    scene.input(Input::Deadline);
    assert_eq!(scene.standing(1), Some(Standing::Active));
    scene.pass(3000);
    assert_eq!(scene.when(&Event::Suspected(peer(1))), None);
}

#[test]
fn a_broken_path_is_reason_to_ask_at_once() {
    let mut scene = Scene::new(&[1]);
    scene.answers = vec![(1, None)];
    scene.pass(8000);
    scene.answers.clear();
    let before = scene.now;
    scene.input(Input::Alarm { peer: peer(1) });
    scene.pass(500);
    let suspected = scene.when(&Event::Suspected(peer(1))).unwrap();
    assert!(before + Duration::from_millis(200) > Time::ZERO + suspected, "{suspected:?}");
}

#[test]
fn a_helper_asks_once_and_passes_the_next_word_on() {
    let mut scene = Scene::new(&[1, 2, 3]);
    scene.pass(1000);
    let before = scene.probes(1, 1);
    for (asker, number) in [(2, 70), (3, 80), (3, 81)] {
        scene.hear(asker, Message::Probe { number, target: peer(1) });
    }
    assert!(scene.probes(1, 1) <= before + 1, "however many ask");
    scene.hear(1, heartbeat(0));
    for (asker, number) in [(2, 70), (3, 81)] {
        let alive = Message::Alive { number, target: peer(1) };
        assert!(scene.sent.contains(&(scene.now, peer(asker), alive)), "{asker}");
    }
    let count = scene.sent.len();
    scene.hear(1, heartbeat(0));
    assert_eq!(scene.sent.len(), count, "said once");
    // Of a stranger nothing is known, and nothing is said.
    scene.hear(2, Message::Probe { number: 1, target: peer(9) });
    assert_eq!(scene.sent.len(), count);
}

#[test]
fn a_loss_of_several_is_told_once_it_lasts_and_again_when_they_are_back() {
    let mut scene = Scene::new(&[1, 2, 3]);
    (scene.answers, scene.speaks) = (vec![(1, None)], vec![(1, 0)]);
    scene.pass(30_000);
    let splits = |scene: &Scene| {
        let split = |event: &Event| {
            let Event::Split { seen, of, .. } = event else { return None };
            Some((*seen, *of))
        };
        scene.events.iter().filter_map(|(_, event)| split(event)).collect::<Vec<_>>()
    };
    assert_eq!(splits(&scene).last(), Some(&(2, 4)));
    for other in [2, 3] {
        scene.input(Input::PeerUp { peer: peer(other), incarnation: 1 });
        scene.hear(other, heartbeat(0));
    }
    scene.speaks = vec![(1, 0), (2, 0), (3, 0)];
    scene.pass(2000);
    let whole = |(_, event): &(Time, Event)| matches!(event, Event::Whole { seen: 4, of: 4, .. });
    assert!(scene.events.iter().any(whole));
}

#[test]
fn who_says_goodbye_is_not_missed() {
    let mut scene = Scene::new(&[1, 2, 3]);
    (scene.answers, scene.speaks) = (vec![(1, None)], vec![(1, 0)]);
    scene.hear(2, Message::Goodbye);
    scene.hear(3, Message::Goodbye);
    scene.pass(30_000);
    let told = |(_, event): &(Time, Event)| matches!(event, Event::Split { .. });
    assert!(!scene.events.iter().any(told));
}

/// An exchange that the neighbour proposes.
fn proposed(scene: &mut Scene, from: u32) -> ExchangeId {
    let exchange = ExchangeId { initiator: peer(from), incarnation: 1, sequence: 0 };
    let terms = terms(Clock(0), Information::default());
    scene.hear(from, Message::Propose { exchange, fragment: FragmentId(0), terms });
    exchange
}

/// Whether this peer has accepted the exchange.
fn accepts(scene: &Scene, exchange: ExchangeId) -> bool {
    let accepted = |(_, _, message): &(Time, PeerId, Message)| matches!(message, Message::Accept { exchange: of, .. } if *of == exchange);
    scene.sent.iter().any(accepted)
}

#[test]
fn what_is_open_with_a_neighbour_that_is_gone_holds_no_fragment() {
    for mixes_after in [false, true] {
        let mut scene = Scene::new(&[1, 2, 3]);
        let (exchange, waits) = (proposed(&mut scene, 1), proposed(&mut scene, 2));
        assert!(accepts(&scene, exchange) && !accepts(&scene, waits));
        let offer = (exchange, Leg::Offer, Clock(0), numbers(&[1.0]));
        scene.host.tensor(peer(1), offer, scene.now);
        if mixes_after {
            scene.input(Input::PeerDown { peer: peer(1) });
        }
        while scene.host.has_work() {
            scene.host.work(scene.now);
        }
        if !mixes_after {
            scene.input(Input::PeerDown { peer: peer(1) });
        }
        scene.pass(0);
        assert!(accepts(&scene, waits), "mixed after its loss: {mixes_after}");
    }
}

/// Does `commits` alone after peer 1 went, which comes back at clock `theirs` in `incarnation`.
fn apart(commits: usize, incarnation: u64, theirs: u64) -> Scene {
    let mut scene = Scene::new(&[1]);
    scene.pass(100);
    scene.input(Input::PeerDown { peer: peer(1) });
    for _ in 0..commits {
        scene.pass(100);
        assert!(scene.host.commit(0.0, scene.now));
    }
    scene.host.take_effects();
    scene.sent.clear();
    scene.input(Input::PeerUp { peer: peer(1), incarnation });
    scene.hear(1, heartbeat(theirs));
    scene
}

#[test]
fn who_is_behind_after_a_split_keeps_its_model_and_takes_over_the_clock() {
    let scene = apart(20, 1, 90);
    assert_eq!((scene.host.core.clock(), scene.host.clock), (Clock(90), Clock(90)));
    assert!(scene.host.training, "nothing is replaced");
    let mut said = scene.sent.iter().filter_map(|(_, _, message)| {
        let Message::Heartbeat(Heartbeat { clock, phase, .. }) = message else { return None };
        Some((*phase, clock.0))
    });
    assert!(said.any(|said| said == (Phase::Joining, 20)));
    assert!(said.any(|said| said == (Phase::Training, 90)));
}

#[test]
fn who_did_little_alone_and_who_meets_a_new_life_pulls() {
    for (commits, incarnation) in [(2, 1), (20, 2)] {
        let scene = apart(commits, incarnation, 90);
        let pulls =
            |(_, _, message): &(Time, PeerId, Message)| matches!(message, Message::Pull { .. });
        assert!(scene.sent.iter().any(pulls), "{commits} commits, incarnation {incarnation}");
        assert!(!scene.host.training);
    }
}

#[test]
fn sides_weigh_by_their_work_and_then_as_before() {
    let mut scene = apart(20, 1, 20);
    // 25 samples in every 100 ms.
    let proposal = |scene: &mut Scene| {
        scene.sent.clear();
        scene.input(Input::RoundDue);
        scene.sent.iter().find_map(|(_, _, message)| {
            let Message::Propose { terms, .. } = message else { return None };
            Some(terms.clone())
        })
    };
    let terms = proposal(&mut scene).unwrap();
    assert!(terms.merges && (200_000..=250_000).contains(&terms.work), "{terms:?}");
    for clock in 21..29 {
        scene.hear(1, heartbeat(clock));
        assert!(scene.host.commit(0.0, scene.now));
    }
    // The first proposal runs out, and the pause after that.
    (scene.answers, scene.speaks) = (vec![(1, None)], vec![(1, 28)]);
    scene.pass(15_000);
    let terms = proposal(&mut scene).unwrap();
    assert!(!terms.merges, "{terms:?}");
}
