//! A newcomer of a swarm that trains: how long until its first step, and what that takes from its
//! donors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::spread;
use crate::swarm::{Peer, Swarm};
use crate::trainer::Kind;

/// Parameters of 1 MB, 100 MB and 1 GB, and how often each is joined.
const STATES: [(usize, usize); 3] = [(250_000, 10), (25_000_000, 8), (250_000_000, 2)];
/// The same with donors that send at most so much, kB/s, and have no exchange open: the newcomer has
/// that for itself.
const BOUNDED: [(usize, usize); 3] = [(250_000, 2), (25_000_000, 2), (250_000_000, 1)];
const BOUND: usize = 5_000;
/// What makes them exchange once, before the newcomer comes.
const SELDOM: [&str; 3] =
    ["gossip.codecs=[\"int4\"]", "gossip.mix_every=100000", "gossip.information_age=1000000"];
const COMMITS_SELDOM: f64 = 80.0;
/// Local steps of a commit, of 10 ms each.
const LOCAL_STEPS: f64 = 40.0;
/// Commits of the donors before somebody joins: further ahead than the progress gap.
const COMMITS: f64 = 8.0;
/// How long the steps of donors are counted before a newcomer comes.
const SPAN: Duration = Duration::from_secs(4);
/// How long they are counted from then on: as long as what donors save up lasts.
const WINDOW: Duration = Duration::from_secs(10);

pub(crate) fn run() {
    println!("join: two donors with steps of 10 ms, which commit every 40; medians (least, most)");
    for (parameters, times) in STATES {
        row(parameters, times, COMMITS, &[]);
    }
}

pub(crate) fn run_bounded() {
    println!("join, as above, but donors exchange nothing, and each sends {BOUND} kB/s at most");
    let bound = format!("network.max_upload={BOUND}");
    let sets = [&[bound.as_str()], SELDOM.as_slice()].concat();
    for (parameters, times) in BOUNDED {
        row(parameters, times, COMMITS_SELDOM, &sets);
    }
}

/// What is measured of one newcomer.
struct Joined {
    /// From the start of its process to its first step.
    seconds: f64,
    /// Donors' steps per second meanwhile, by those before.
    ratio: f64,
    /// The same over [`WINDOW`], or over the join where that is longer.
    window: f64,
}

fn row(parameters: usize, times: usize, commits: f64, sets: &[&str]) {
    let joined: Vec<Joined> = (0..times).map(|_| join(parameters, commits, sets)).collect();
    let seconds: Vec<f64> = joined.iter().map(|joined| joined.seconds).collect();
    let percent = |of: fn(&Joined) -> f64| {
        let (keep, worst, best) = spread(&joined.iter().map(of).collect::<Vec<f64>>());
        format!("{:.1} % ({:.1}, {:.1})", 100.0 * keep, 100.0 * worst, 100.0 * best)
    };
    let (middle, least, most) = spread(&seconds);
    let megabytes = 4.0 * parameters as f64 / 1e6;
    println!(
        "{megabytes:>6.0} MB  first step after {middle:.2} s ({least:.2}, {most:.2}), {:.0} MB/s in all; donors keep {} of their steps per second meanwhile, {} over {} s",
        megabytes / middle,
        percent(|joined| joined.ratio),
        percent(|joined| joined.window),
        WINDOW.as_secs(),
    );
}

fn join(parameters: usize, commits: f64, sets: &[&str]) -> Joined {
    let local_steps = format!("gossip.local_steps={LOCAL_STEPS}");
    let sets = [&[local_steps.as_str(), "gossip.balance=off"], sets].concat();
    let mut swarm = Swarm::start(Kind::Paced, 2, parameters, &sets);
    wait_for_commits(&mut swarm, commits);
    let before = rate(&mut swarm.peers, SPAN);
    let began = now();
    swarm.join(Kind::Joiner, parameters, &sets);
    let [_, done, old] = swarm.peers[2].averaged();
    let during = counts(&mut swarm.peers[..2]);
    assert!(old == 0.0, "{old} of the parameters were not taken over");
    std::thread::sleep(WINDOW.saturating_sub(Duration::from_nanos((now() - began) as u64)));
    let rest = counts(&mut swarm.peers[..2]);
    let both = during.iter().zip(&rest).map(|(one, two)| (one.0 + two.0, one.1 + two.1));
    let (seconds, window) = ((done - began) / 1e9, per_second(both) / before);
    Joined { seconds, ratio: per_second(during) / before, window }
}

/// Waits until every donor has committed often enough.
fn wait_for_commits(swarm: &mut Swarm, commits: f64) {
    for donor in &mut swarm.peers {
        let mut steps = 0.0;
        while steps < commits * LOCAL_STEPS {
            std::thread::sleep(SPAN / 16);
            steps += donor.count().0;
        }
    }
}

/// Steps of all donors per second, for a while from now on.
fn rate(donors: &mut [Peer], span: Duration) -> f64 {
    counts(donors);
    std::thread::sleep(span);
    per_second(counts(donors))
}

/// Steps of each donor since it was asked last, and the seconds of them.
fn counts(donors: &mut [Peer]) -> Vec<(f64, f64)> {
    donors.iter_mut().map(Peer::count).collect()
}

fn per_second(counts: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    counts.into_iter().map(|(steps, seconds)| steps / seconds).sum()
}

/// One donor that computes, its training thread on a core of its own, all else on the other core;
/// without a bound, and with that of a line of 1 Gbit/s.
pub(crate) fn run_beside() {
    beside(0);
    beside(125_000);
}

fn beside(bound: usize) {
    let parameters = 250_000_000;
    let commits = format!("gossip.local_steps={LOCAL_STEPS}");
    let upload = format!("network.max_upload={bound}");
    let sets = [commits.as_str(), "gossip.balance=off", upload.as_str()];
    let mut swarm = Swarm::alone(Kind::Busy, parameters, &sets);
    wait_for_commits(&mut swarm, COMMITS);
    swarm.pin();
    let mark = swarm.peers[0].mark();
    std::thread::sleep(2 * SPAN);
    let before = swarm.peers[0].rates(mark);
    let (mark, began) = (swarm.peers[0].mark(), now());
    swarm.join(Kind::Joiner, parameters, &sets);
    swarm.pin_others();
    let [_, done, _] = swarm.peers[1].averaged();
    let during = swarm.peers[0].rates(mark);
    let keeps = |which: usize| 100.0 * during[which] / before[which];
    println!(
        "1000 MB in {:.2} s from one donor that computes, its training thread alone on a core, bound of {bound} kB/s: {:.1} steps/s before, {:.1} while it is joined: {:.1} %; per second of the thread {:.1} and {:.1}: {:.1} %",
        (done - began) / 1e9,
        before[0],
        during[0],
        keeps(0),
        before[1],
        during[1],
        keeps(1),
    );
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as f64
}
