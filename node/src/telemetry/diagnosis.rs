//! Finds what limits a peer that trains, and what a peer waits for that stands still. These are pure
//! rules: they turn measured shares of time into one sentence with its numbers and the next thing to do.

use std::time::Duration;

pub use dnode_metrics::Shares;

/// Share of the time from which something is reported (a guess: half of it is a nuisance).
const LOUD: f64 = 0.2;
/// The same for coding and mixing, which run beside training on a core of their own.
const BUSY: f64 = 0.8;
/// A peer that computes at less than this share of this peer's rate delays it by its speed, not by its
/// link.
const SLOWER: f64 = 0.5;
/// A step counts as unusually long when it takes longer than this many usual ones.
const STEPS_LONG: u32 = 10;
/// Shortest standstill that is reported.
pub const STALL_MIN: Duration = Duration::from_secs(10);

/// A link, and what it carried in the measured window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// Who is at the other end, in short.
    pub(crate) peer: String,
    /// Bytes per second to it.
    pub(crate) sent: f64,
    /// Bytes per second from it.
    pub(crate) received: f64,
    pub(crate) round_trip: Option<Duration>,
    /// Samples per second that the other end computes, as it says.
    pub(crate) samples_per_s: Option<f64>,
}

impl Line {
    fn text(&self) -> String {
        let [sent, received] = [self.sent, self.received].map(|rate| rate * 8.0 / 1e6);
        let trip = self.round_trip.map_or_else(String::new, |it| format!(", round trip {it:.0?}"));
        format!("{} ({sent:.2} Mbit/s there, {received:.2} back{trip})", self.peer)
    }
}

/// Further measurements of the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Around {
    /// The bound that holds the commit, and the link to the peer that causes it.
    pub(crate) holder: Option<(&'static str, Line)>,
    /// The link that carries most.
    pub(crate) busiest: Option<Line>,
    /// Samples per second of this peer while it computes.
    pub(crate) samples_per_s: f64,
}

/// One sentence with what it is about, so that the same thing is not reported again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The cause in one word.
    pub(crate) cause: &'static str,
    /// The peer that it is about; empty for none.
    pub(crate) peer: String,
    pub(crate) text: String,
}

impl Sentence {
    const fn new(cause: &'static str, peer: String, text: String) -> Self {
        Self { cause, peer, text }
    }

    /// Whether it says the same as `other`, apart from the numbers.
    pub(crate) fn is_about(&self, other: &Self) -> bool {
        self.cause == other.cause && self.peer == other.peer
    }
}

/// What limits this peer, if something does: the largest share of time that is too large.
pub(crate) fn bottleneck(shares: &Shares, around: &Around) -> Option<Sentence> {
    let Shares { window_s: window, late, held, ranks, encode, mix, .. } = *shares;
    let percent = |share: f64| format!("{:.0} % of the last {window:.0} s", 100.0 * share);
    if held >= LOUD && held >= late && held >= ranks {
        let (bound, line) = around.holder.as_ref()?;
        let time = percent(held);
        let slow = line.samples_per_s.filter(|rate| *rate < SLOWER * around.samples_per_s);
        let (cause, text) = if let Some(rate) = slow {
            let (peer, own) = (&line.peer, around.samples_per_s);
            (
                "slow-peer",
                format!(
                    "peer {peer} computes {rate:.0} samples/s, this one {own:.0}: the {bound} held commits for {time}; gossip.balance=\"steps\" lets it do less, a larger gossip.progress_gap waits less"
                ),
            )
        } else {
            (
                "link",
                format!(
                    "the link to peer {} limits this one: the {bound} held commits for {time}; raise gossip.local_steps or use a coarser code, gossip.codecs=[\"int4\"]",
                    line.text()
                ),
            )
        };
        return Some(Sentence::new(cause, line.peer.clone(), text));
    }
    if ranks >= LOUD && ranks >= late {
        let time = percent(ranks);
        let text = format!(
            "waiting for the other ranks took {time}: the slowest rank or link sets the pace; raise gossip.local_steps, or put slow machines in no rack"
        );
        return Some(Sentence::new("ranks", String::new(), text));
    }
    if late >= LOUD {
        let line = around.busiest.clone().unwrap_or_default();
        let (time, link) = (percent(late), line.text());
        let text = format!(
            "exchanges take longer than the steps between them: commits were overdue for {time}; most travels to peer {link}; raise gossip.local_steps and gossip.mix_every, or use a coarser code, gossip.codecs=[\"int4\"]"
        );
        return Some(Sentence::new("exchanges", line.peer, text));
    }
    if encode + mix >= BUSY {
        let time = percent(encode + mix);
        let (encode, mix) = (100.0 * encode, 100.0 * mix);
        let text = format!(
            "coding ({encode:.0} %) and mixing ({mix:.0} %) took {time} of a core beside training: set gossip.mix_every (rule delta-set: gossip.local_steps) to a larger number, or use a plainer code, gossip.codecs=[\"bf16\"]"
        );
        return Some(Sentence::new("mixing", String::new(), text));
    }
    None
}

/// What a peer is doing that has not taken a step for a while.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Still {
    /// It waits for other peers before it begins.
    Peers { here: usize, wanted: usize },
    /// It waits for the weights that the run begins with; `gives` is whether one of those that are here
    /// may give them.
    Weights { here: usize, gives: bool },
    /// It pulls the model.
    Pulling,
    /// A bound holds the commit because of a peer.
    Held { bound: &'static str, peer: String, gate: Duration },
    /// It waits for the other ranks.
    Ranks,
    /// A local step is under way; `usual` is the usual time of one.
    Step { usual: Duration },
}

/// What a peer waits for that has stood still for the time `since`, and for whom; `None` where that is
/// usual.
pub(crate) fn standstill(still: &Still, since: Duration) -> Option<Sentence> {
    if since < STALL_MIN {
        return None;
    }
    let time = format!("for {:.0} s", since.as_secs_f64());
    let say = |cause, peer: &str, text| Some(Sentence::new(cause, peer.to_owned(), text));
    match still {
        Still::Peers { here, wanted } if here < wanted => say(
            "peers",
            "",
            format!(
                "has waited {time} for {wanted} peers, {here} are here: start the others, or look with `dnode doctor --bootstrap`"
            ),
        ),
        Still::Peers { .. } => say(
            "peers",
            "",
            format!(
                "has waited {time} for the bootstrap peers to answer: look with `dnode doctor --bootstrap`"
            ),
        ),
        Still::Weights { here, gives: false } => say(
            "weights",
            "",
            format!(
                "has waited {time} for the weights that the run begins with: none of the {here} peers that are here has them; start one with --init and their folder, or give this one the folder"
            ),
        ),
        Still::Pulling | Still::Weights { .. } => say(
            "pulling",
            "",
            format!(
                "has pulled the swarm's model {time}: its donors are busy or their links slow; training goes on when it is complete"
            ),
        ),
        Still::Held { bound, peer, gate } => say(
            "held",
            peer,
            format!(
                "has waited {time}: the {bound} of peer {peer} holds the commit, until news of it come or {gate:.0?} are over; is that peer alive and its link up?"
            ),
        ),
        Still::Ranks => say(
            "ranks",
            "",
            format!(
                "has waited {time} for the other ranks: one of them is stopped, slow or cut off"
            ),
        ),
        Still::Step { usual } if since >= STEPS_LONG * *usual => say(
            "step",
            "",
            format!(
                "a local step has gone on {time}, usually {usual:.1?}: the data, the device or the disk does not answer, or the machine is overloaded"
            ),
        ),
        Still::Step { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(samples_per_s: f64) -> Line {
        Line {
            peer: "AbCdEf".to_owned(),
            sent: 50_000.0,
            received: 1.125e6,
            round_trip: Some(Duration::from_millis(80)),
            samples_per_s: Some(samples_per_s),
        }
    }

    fn around(theirs: f64) -> Around {
        Around {
            holder: Some(("information age", line(theirs))),
            busiest: Some(line(theirs)),
            samples_per_s: 1000.0,
        }
    }

    fn shares(change: impl Fn(&mut Shares)) -> Shares {
        let mut shares = Shares { window_s: 30.0, compute: 0.9, ..Shares::default() };
        change(&mut shares);
        shares
    }

    #[test]
    fn nothing_is_said_where_nothing_is_out_of_line() {
        assert_eq!(bottleneck(&shares(|_| ()), &around(900.0)), None);
        let little = shares(|it| (it.held, it.late, it.encode, it.mix) = (0.19, 0.19, 0.4, 0.39));
        assert_eq!(bottleneck(&little, &around(900.0)), None);
        let idle = shares(|it| (it.compute, it.idle, it.network) = (0.0, 1.0, 1.0));
        assert_eq!(bottleneck(&idle, &around(900.0)), None);
    }

    #[test]
    fn a_hold_is_the_link_s_or_the_slow_peer_s_fault() {
        let held = shares(|it| it.held = 0.35);
        let link = bottleneck(&held, &around(900.0)).unwrap();
        assert_eq!((link.cause, &*link.peer), ("link", "AbCdEf"));
        assert_eq!(
            link.text,
            "the link to peer AbCdEf (0.40 Mbit/s there, 9.00 back, round trip 80ms) limits this one: the information age held commits for 35 % of the last 30 s; raise gossip.local_steps or use a coarser code, gossip.codecs=[\"int4\"]"
        );
        let slow = bottleneck(&held, &around(120.0)).unwrap();
        assert_eq!(slow.cause, "slow-peer");
        assert!(slow.text.starts_with("peer AbCdEf computes 120 samples/s, this one 1000: "));
        assert!(!slow.is_about(&link) && link.is_about(&link));
        let nobody = Around { holder: None, ..around(900.0) };
        assert_eq!(bottleneck(&held, &nobody), None, "no name, no blame");
    }

    #[test]
    fn the_largest_of_the_others_is_told() {
        let cause = |change: &dyn Fn(&mut Shares)| {
            bottleneck(&shares(change), &around(900.0)).map(|sentence| sentence.cause)
        };
        assert_eq!(cause(&|it| it.late = 0.3), Some("exchanges"));
        assert_eq!(cause(&|it| (it.late, it.ranks) = (0.3, 0.4)), Some("ranks"));
        assert_eq!(cause(&|it| (it.late, it.held) = (0.4, 0.3)), Some("exchanges"));
        assert_eq!(cause(&|it| (it.encode, it.mix) = (0.5, 0.4)), Some("mixing"));
    }

    #[test]
    fn a_standstill_names_what_it_waits_for_since_when_and_on_whom() {
        let gate = Duration::from_secs(20);
        let held = Still::Held { bound: "progress gap", peer: "AbCdEf".to_owned(), gate };
        assert_eq!(standstill(&held, STALL_MIN - Duration::from_millis(1)), None);
        let sentence = standstill(&held, Duration::from_secs(12)).unwrap();
        assert_eq!((sentence.cause, &*sentence.peer), ("held", "AbCdEf"));
        let want = "has waited for 12 s: the progress gap of peer AbCdEf holds the commit, until news of it come or 20s are over";
        assert!(sentence.text.starts_with(want), "{}", sentence.text);
        let peers = Still::Peers { here: 1, wanted: 3 };
        assert!(standstill(&peers, STALL_MIN).unwrap().text.contains("for 3 peers, 1 are here"));
        let weights = Still::Weights { here: 2, gives: false };
        let text = standstill(&weights, STALL_MIN).unwrap().text;
        assert!(text.contains("none of the 2 peers that are here has them; start one"), "{text}");
        let step =
            |usual| standstill(&Still::Step { usual: Duration::from_secs(usual) }, 3 * STALL_MIN);
        assert_eq!(step(4), None, "ten of these take longer");
        assert!(step(3).unwrap().text.contains("for 30 s, usually 3.0s"));
    }
}
