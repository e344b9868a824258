//! Tests of what is kept from one life to the next: it decays as in a guard that goes on.

use dnode_protocol::Clock;
use proptest::prelude::*;

use super::*;
use crate::guard::{Met, tests};
use crate::testing::peer;
use crate::{Config, Evidence, Grounds};

const ROUND: Duration = Duration::from_millis(40);

fn grown() -> Guard {
    tests::grown(&Config::default())
}

/// A meeting with neighbour `index` at this clock and round.
fn met(index: u32, clock: u64, round: u64) -> Met {
    let clock = Clock(clock);
    Met { clock, theirs: clock, ..tests::met(index, round) }
}

/// Whether a difference is refused.
fn seen(refused: bool) -> Evidence {
    Evidence { difference: if refused { 9.0 } else { 0.1 }, own: 1.0, len: 1, refused }
}

/// The next life of a guard that is killed after so many rounds, and begins `absence` later.
fn restarted(guard: &Guard, round: u64, absence: Duration) -> Guard {
    let verdicts = Verdicts { round_time: ROUND, held: guard.held(round, |_| 0) };
    let read = Verdicts::from_text(&verdicts.to_text());
    assert_eq!(read.as_ref(), Some(&verdicts), "written and read");
    let mut next = grown();
    next.take_over(&verdicts, absence);
    next
}

/// A guard with a neighbour of every kind after 40 rounds: 1 is left out, 2 weighed down, 3 was left out
/// and let in again, 4 was never anything.
fn judged() -> Guard {
    let mut guard = grown();
    for clock in 1..=3 {
        guard.note(met(1, clock, 20 + clock), seen(true));
    }
    guard.note(met(2, 5, 5), seen(true));
    for clock in 1..=3 {
        guard.note(met(3, clock, clock), seen(true));
    }
    for clock in 28..=40 {
        guard.note(met(3, clock, clock), seen(false));
        guard.note(met(4, clock, clock), seen(false));
    }
    guard
}

#[test]
fn a_restart_forgets_nothing_that_is_held_against_a_neighbour() {
    let guard = judged();
    let trust = |guard: &Guard| [1, 2, 3, 4].map(|index| guard.trust(&peer(index)));
    let expected = [Trust::LeftOut, Trust::WeighedDown, Trust::Trusted, Trust::Trusted];
    assert_eq!(trust(&guard), expected);
    let next = restarted(&guard, 40, Duration::ZERO);
    assert_eq!(trust(&next), expected);
    assert_eq!(next.held(0, |_| 0), guard.held(40, |_| 0));
    let held: Vec<_> = next.held(0, |_| 0).iter().map(|it| (it.peer, it.left_out)).collect();
    assert_eq!(held, [(peer(1), 1), (peer(2), 0), (peer(3), 1)], "the worst first");
}

#[test]
fn the_pause_goes_on_while_the_peer_is_away_and_no_time_passes_where_none_is_known() {
    let guard = judged();
    let trial = |next: &Guard| (0..2000).find(|round| next.meets(&peer(1), *round));
    // Left out in round 23 for 32 rounds, and killed after 40.
    assert_eq!(trial(&restarted(&guard, 40, Duration::ZERO)), Some(16));
    assert_eq!(trial(&restarted(&guard, 40, 9 * ROUND)), Some(6));
    assert_eq!(trial(&restarted(&guard, 40, Duration::MAX)), Some(0));
    let unknown = Verdicts { round_time: Duration::ZERO, held: guard.held(40, |_| 0) };
    let mut next = grown();
    next.take_over(&unknown, Duration::MAX);
    assert_eq!(trial(&next), Some(16));
}

#[test]
fn one_that_fails_its_trial_after_a_restart_waits_twice_as_long_as_before() {
    let mut next = restarted(&judged(), 40, Duration::MAX);
    assert!(next.meets(&peer(1), 0));
    let judged = next.note(met(1, 50, 0), seen(true));
    assert!(judged.is_none(), "it is left out as before");
    assert!(!next.meets(&peer(1), 2 * PAUSE_ROUNDS - 1) && next.meets(&peer(1), 2 * PAUSE_ROUNDS));
}

#[test]
fn one_that_is_well_after_a_restart_is_let_in() {
    let mut next = restarted(&judged(), 40, Duration::MAX);
    let judged: Vec<_> = (50..70)
        .filter_map(|clock| next.note(met(1, clock, 2 * (clock - 50)), seen(false)))
        .collect();
    assert_eq!(judged, [(Trust::Trusted, Grounds::AsUsual)]);
}

#[test]
fn only_the_worst_are_kept() {
    let mut guard = grown();
    for index in 0..500 {
        // Every fifth is left out, the others weighed down.
        let refused = if index % 5 == 0 { 3 } else { 1 };
        for clock in 1..=refused {
            guard.note(met(index, clock, clock), seen(true));
        }
    }
    let held = guard.held(3, |_| 0);
    assert_eq!(held.len(), VERDICTS_MAX);
    assert!(held[..100].iter().all(|it| it.trust == Trust::LeftOut));
    assert!(held[100..].iter().all(|it| it.trust == Trust::WeighedDown));
}

#[test]
fn numbers_that_no_guard_says_leave_nobody_out_for_good() {
    let absurd = Verdict {
        peer: peer(1),
        trust: Trust::LeftOut,
        evidence: f64::INFINITY,
        times: f64::NAN,
        outliers: u32::MAX,
        left_out: u32::MAX,
        rounds: u64::MAX,
        passes: u32::MAX,
        joined: u32::MAX,
        life: 0,
    };
    let mut guard = grown();
    guard.take_over(&Verdicts { round_time: ROUND, held: vec![absurd] }, Duration::ZERO);
    let longest = PAUSE_ROUNDS << PAUSE_DOUBLINGS_MAX;
    assert!(guard.meets(&peer(1), longest));
    let judged: Vec<_> = (50..70)
        .filter_map(|clock| guard.note(met(1, clock, longest + clock), seen(false)))
        .collect();
    assert_eq!(judged, [(Trust::Trusted, Grounds::AsUsual)]);
}

proptest! {
    /// A guard that goes on while its neighbours are gone, and one that is restarted and away for as long,
    /// think the same of them then. Both judge the same of all that follows, if what was usual is forgotten.
    #[test]
    fn a_restart_decays_as_a_guard_whose_neighbours_are_gone(
        before in prop::collection::vec((1_u32..4, any::<bool>()), 0..80),
        absence in 0_u64..200,
        after in prop::collection::vec((1_u32..4, any::<bool>()), 0..80),
    ) {
        let mut goes_on = grown();
        let tell = |guard: &mut Guard, at: &[(u32, bool)], (clock, round): (u64, u64)| {
            (0..).zip(at).filter_map(|(step, (index, refused))| {
                let met = met(*index, clock + step, round + step);
                guard.meets(&met.peer, met.round).then(|| guard.note(met, seen(*refused)))?
            }).collect::<Vec<_>>()
        };
        tell(&mut goes_on, &before, (1, 1));
        let end = before.len() as u64;
        // Whether a round is an even one decides when those that are not trusted are met.
        let absence = absence + (end + absence) % 2;
        let mut next = restarted(&goes_on, end, ROUND * u32::try_from(absence).unwrap());
        (1..4).for_each(|index| goes_on.gone(&peer(index)));
        let now = end + absence;
        for index in 1..4 {
            prop_assert_eq!(goes_on.trust(&peer(index)), next.trust(&peer(index)));
            for round in 0..2000 {
                let both = [(&goes_on, now + round), (&next, round)];
                let [one, other] = both.map(|(guard, round)| guard.meets(&peer(index), round));
                prop_assert_eq!(one, other, "{} in round {}", index, round);
            }
        }
        goes_on.peers.retain(|_, record| record.is_held());
        goes_on.replaced(Clock(0));
        let clock = end + 20;
        let said = tell(&mut goes_on, &after, (clock, now));
        prop_assert_eq!(said, tell(&mut next, &after, (clock, 0)));
        let later = after.len() as u64;
        prop_assert_eq!(goes_on.held(now + later, |_| 0), next.held(later, |_| 0));
    }

    #[test]
    fn a_text_is_read_in_its_one_form_or_not_at_all(text in "\\PC*", cut in 0_usize..400, put in any::<char>()) {
        if let Some(read) = Verdicts::from_text(&text) {
            prop_assert_eq!(read.to_text(), text);
        }
        let sound = Verdicts { round_time: ROUND, held: judged().held(40, |_| 7) }.to_text();
        let mut characters: Vec<char> = sound.chars().collect();
        let at = cut % characters.len();
        characters[at] = put;
        for changed in [sound[..at].to_owned(), characters.into_iter().collect::<String>()] {
            if let Some(read) = Verdicts::from_text(&changed) {
                prop_assert_eq!(read.to_text(), changed);
            }
        }
    }
}

#[test]
fn a_crowd_of_names_puts_out_no_verdict_on_one_that_was_left_out_more_often() {
    let mut guard = grown();
    let left_out = |guard: &mut Guard, index: u32, times: u64| {
        // Each pause is twice as long as the one before.
        for round in (0..times).map(|time| PAUSE_ROUNDS << time) {
            for clock in 1..=3 {
                guard.note(met(index, round + clock, 2 * round + clock), seen(true));
            }
        }
    };
    left_out(&mut guard, 0, 3);
    assert_eq!(guard.peers[&peer(0)].left_out, 3);
    guard.note(met(1, 5, 5), seen(false));
    for name in 2..2 + 2 * STRANGERS_MAX as u32 {
        left_out(&mut guard, name, 1);
        guard.gone(&peer(name));
    }
    assert_eq!(guard.peers.len(), STRANGERS_MAX);
    assert_eq!(guard.peers[&peer(0)].left_out, 3);
    assert!(guard.peers.contains_key(&peer(1)), "it is here");
}
