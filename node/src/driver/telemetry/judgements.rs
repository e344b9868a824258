//! Logs state transfers, merging, the end of a split of the swarm, and judgements of peers.

use dnode_gossip::{Event, Grounds, Trust, Verdict, Verdicts};
use dnode_protocol::PeerId;

use super::Telemetry;

/// Most peers that a start names as held against.
const HELD_SHOWN_MAX: usize = 8;

impl Telemetry {
    /// Says at the start who is still not trusted from before it.
    pub(crate) fn still_holds(&mut self, verdicts: &Verdicts) {
        let held = || verdicts.held.iter().filter(|it| it.trust != Trust::Trusted);
        for verdict in held().take(HELD_SHOWN_MAX) {
            let why = still_held(verdict);
            self.event(
                "kept-verdict",
                &format!("{}: {}, {why}", verdict.peer, verdict.trust.name()),
            );
        }
        let more = held().count().saturating_sub(HELD_SHOWN_MAX);
        if more > 0 {
            tracing::warn!(peers = more, "more peers are held against from before this start");
        }
    }
}

/// Says so of one, and returns the numbers.
fn still_held(verdict: &Verdict) -> String {
    let Verdict { evidence, outliers, left_out, rounds, .. } = verdict;
    let why = format!(
        "evidence {evidence:.1}, {outliers} refused, left out {left_out} times; tried again after {rounds} rounds"
    );
    let short = verdict.peer.short();
    match verdict.trust {
        Trust::Trusted => {}
        Trust::WeighedDown => {
            tracing::warn!(peer = %short, "peer is still weighed down, as before this start: {why}");
        }
        Trust::LeftOut => {
            tracing::warn!(peer = %short, "peer is still left out, as before this start: {why}");
        }
    }
    why
}

/// Logs such an event, and returns its name and detail for metrics and page; `None` for other events.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other events are told by the journal")]
pub(super) fn tell(event: &Event) -> Option<(&'static str, String)> {
    match event {
        Event::Guarded { peer, trust, grounds } => Some(judged(peer, *trust, *grounds)),
        Event::CatchUpStarted { target } => {
            tracing::info!(commits = target.0, "pulling the swarm's model");
            Some(("catch-up-started", target.to_string()))
        }
        Event::CatchUpDone { clock } => {
            tracing::info!(commits = clock.0, "has the swarm's model");
            Some(("catch-up-done", clock.to_string()))
        }
        Event::LeftOutBy { peer, partners, of } => {
            tracing::warn!(
                peer = %peer.short(),
                "peer leaves this one out, as {partners} of {of} do: are learning rate, data and labels here those of the others?"
            );
            Some(("left-out-by", format!("{peer}: {partners} of {of} peers leave this one out")))
        }
        Event::Exiled { partners, of } => {
            tracing::warn!(
                "{partners} of {of} peers leave this one out, so it takes over the model of one of them"
            );
            Some(("exiled", format!("{partners} of {of} peers leave this one out")))
        }
        Event::Offended { peer, back_off } => {
            Some(("offended", format!("{peer}: back-off {back_off:?}")))
        }
        Event::Whole { seen, of, lasted } => {
            tracing::info!("sees {seen} of {of} peers again after {lasted:.0?}");
            Some(("whole", format!("sees {seen} of {of} peers after {lasted:.0?}")))
        }
        Event::Merging { clock, work } => {
            tracing::info!(commits = clock.0, work, "merging with peers that trained apart");
            Some(("merging", format!("from {clock}, {work} samples in 1000 s")))
        }
        _ => None,
    }
}

fn judged(peer: &PeerId, trust: Trust, grounds: Grounds) -> (&'static str, String) {
    let why = match grounds {
        Grounds::Outlier { length, most } => format!(
            "its weights are {length:.3} times the length of the own ones away, at most {most:.3} is let in"
        ),
        Grounds::Unsound => "its numbers are not finite or out of all proportion".to_owned(),
        Grounds::Unlike { times } => {
            format!("its differences are {times:.1} times as long as those of the other peers")
        }
        Grounds::AsUsual => "its differences are as those of the other peers".to_owned(),
        Grounds::FellBehind => {
            "nearly all others are as far away, so it is this slow peer that has fallen behind; it takes \
             over a replica"
                .to_owned()
        }
        Grounds::Exiled => {
            "nearly all others leave this peer out, so it takes over a replica of theirs".to_owned()
        }
        Grounds::Misled => {
            "it went on to mix with this peer when nearly all others left it out, and may have led it away"
                .to_owned()
        }
        Grounds::BadSnapshot => {
            "nearly all are far away from what this peer has taken over; it takes it over again, and nothing \
             more from who gave it"
                .to_owned()
        }
    };
    let short = peer.short();
    match trust {
        Trust::Trusted => tracing::info!(peer = %short, "peer is let in again: {why}"),
        Trust::WeighedDown => tracing::warn!(
            peer = %short, "peer is weighed down: {why}; is its learning rate or its data another?"
        ),
        Trust::LeftOut => tracing::warn!(
            peer = %short, "peer is left out: {why}; is its learning rate or its data another?"
        ),
    }
    (trust.name(), format!("{peer}: {why}"))
}
