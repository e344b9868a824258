//! Tests of the guard alone: what it is told, and whom it trusts then.

use dnode_protocol::frame::Codec;
use proptest::prelude::*;

use super::bar::FREQUENT;
use super::*;

mod claims;
mod moments;
mod returns;
use crate::rounds::Interval;
use crate::testing::peer;

/// A meeting with neighbour `index` on fragment 0.
pub(super) fn met(index: u32, round: u64) -> Met {
    let (peer, fragment, clock) = (peer(index), FragmentId(0), Clock(round));
    let (theirs, lag, unlike_speed, speed_known) = (clock, 0, 1.0, true);
    let settles = false;
    Met { peer, fragment, clock, theirs, lag, round, unlike_speed, speed_known, settles }
}

const fn seen(difference: f64) -> Evidence {
    Evidence { difference, own: 1.0, len: 1, refused: false }
}

/// A guard whose own parameters have left their start behind.
pub(super) fn grown(config: &Config) -> Guard {
    Guard { short_until: Clock(0), ..Guard::new(config) }
}

const REFUSED: Evidence = Evidence { difference: 9.0, own: 1.0, len: 1, refused: true };

/// Meets neighbours 1 to 3 in every round from `from` on, whose differences after one round are `lengths`
/// and grow with the root of the rounds in between.
fn rounds(guard: &mut Guard, from: u64, count: u64, lengths: [f64; 3]) -> Vec<(u64, u32, Trust)> {
    let (mut said, mut last) = (Vec::new(), [from - 1; 3]);
    for round in from..from + count {
        for ((index, length), last) in (1..).zip(lengths).zip(&mut last) {
            if guard.meets(&peer(index), round) {
                let apart = round - std::mem::replace(last, round);
                let evidence = seen(length * (apart as f64).sqrt());
                let judged = guard.note(met(index, round), evidence);
                said.extend(judged.map(|(trust, _)| (round, index, trust)));
            }
        }
    }
    said
}

#[test]
fn an_outlier_is_weighed_down_at_once_and_left_out_the_third_time() {
    let mut guard = grown(&Config::default());
    let mut note = |round| guard.note(met(1, round), REFUSED).map(|(trust, _)| trust);
    assert_eq!(note(1), Some(Trust::WeighedDown));
    assert_eq!(note(2), None);
    assert_eq!(note(3), Some(Trust::LeftOut));
    assert!(!guard.meets(&peer(1), 4) && guard.meets(&peer(2), 4));
}

#[test]
fn own_parameters_that_are_short_at_the_start_accuse_nobody() {
    let mut config = Config::default();
    config.pace.local_steps = 5;
    let mut guard = Guard::new(&config);
    assert!((0..20).all(|round| guard.note(met(1, round), REFUSED).is_none()));
    assert!(guard.note(met(1, 20), REFUSED).is_some());
}

#[test]
fn the_radius_is_that_of_the_others_and_a_neighbour_cannot_move_its_own() {
    let mut guard = grown(&Config::default());
    let radius = |guard: &Guard, index, round| guard.tolerance(&met(index, round)).radius;
    let unknown = |radius: f64| (radius - UNTRUSTED_WEIGHTS_MAX).abs() < 1e-9;
    assert!(unknown(radius(&guard, 1, 1)), "nothing is known");
    guard.note(met(1, 1), seen(0.1));
    guard.note(met(2, 1), seen(0.1));
    assert!(unknown(radius(&guard, 1, 1)), "there is one witness");
    assert!((radius(&guard, 3, 1) - WHOLE * 0.1 * 4.0).abs() < 1e-9, "a stranger's");
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 20, [0.1, 0.1, 0.14]);
    for index in 1..=3 {
        let radius = radius(&guard, index, 21);
        assert!((WHOLE * 0.1..WHOLE * 0.13).contains(&radius), "{index}: {radius}");
    }
    rounds(&mut guard, 21, 4, [0.1, 0.1, 1.0]);
    assert!((radius(&guard, 3, 25) - WHOLE * 0.1).abs() < 1e-9, "its own lengths move it");
    let slow = Met { unlike_speed: 1e6, ..met(3, 25) };
    let radius = guard.tolerance(&slow).radius;
    assert!((radius - 2.0 * WHOLE * 0.1).abs() < 1e-9, "a claim to be slow: {radius}");
}

#[test]
fn one_that_was_away_is_not_judged_by_the_first_exchanges() {
    for forgotten in [false, true] {
        let mut guard = grown(&Config::default());
        rounds(&mut guard, 1, 20, [0.1; 3]);
        if forgotten {
            guard.gone(&peer(3));
        }
        let back = 21 + APART_MAX;
        for round in back..back + 8 {
            guard.note(met(1, round), seen(0.1));
            guard.note(met(2, round), seen(0.1));
            // It is far away, and draws near.
            let far = round - back < u64::from(RETURN_EXCHANGES);
            let judged = guard.note(met(3, round), seen(if far { 1.0 } else { 0.1 }));
            assert_eq!(judged, None, "{round}");
        }
        assert!(guard.peers[&peer(3)].evidence < 1e-9, "{forgotten}");
    }
}

#[test]
fn one_that_is_near_makes_nobody_forget_a_difference_that_was_refused() {
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 9, [0.1; 3]);
    for (round, outlier) in [(11, true), (12, false), (13, true), (14, false), (15, true)] {
        let evidence = if outlier { REFUSED } else { seen(0.1) };
        guard.note(met(1, round), evidence);
        assert_ne!(guard.trust(&peer(1)), Trust::Trusted, "{round}");
    }
    assert_eq!(guard.trust(&peer(1)), Trust::LeftOut);
}

#[test]
fn the_only_neighbour_is_let_in_again_when_it_is_near() {
    let mut guard = grown(&Config::default());
    for round in 1..=u64::from(OUTLIERS_MAX) {
        guard.note(met(1, round), REFUSED);
    }
    assert_eq!(guard.trust(&peer(1)), Trust::LeftOut);
    for round in (4..80).filter(|round| *round >= 4 + PAUSE_ROUNDS) {
        guard.note(met(1, round), seen(0.1));
    }
    assert_eq!(guard.trust(&peer(1)), Trust::Trusted);
}

#[test]
fn whoever_is_left_out_is_tried_again_ever_more_seldom_and_let_in_when_it_is_well() {
    let mut guard = grown(&Config::default());
    let mut round = 0;
    let mut pauses = Vec::new();
    for _ in 0..OUTLIERS_MAX {
        round += 1;
        guard.note(met(1, round), REFUSED);
    }
    for _ in 0..8 {
        let left_out = round;
        while !guard.meets(&peer(1), round) {
            round += 1;
        }
        pauses.push(round - left_out);
        assert_eq!(guard.note(met(1, round), REFUSED), None, "it stays left out");
    }
    assert!(pauses.is_sorted() && pauses[0] >= PAUSE_ROUNDS, "{pauses:?}");
    assert!(
        pauses.iter().all(|pause| *pause <= (PAUSE_ROUNDS << PAUSE_DOUBLINGS_MAX) + RATION_ROUNDS)
    );
    let said = rounds(&mut guard, round, 3000, [1.0; 3]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((said[0].1, said[0].2), (1, Trust::Trusted));
}

#[test]
fn a_neighbour_that_is_further_away_than_the_others_is_weighed_down_then_left_out() {
    for (length, most) in [(2.5, 20), (1.9, 70)] {
        let mut guard = grown(&Config::default());
        let said = rounds(&mut guard, 1, most, [1.0, 1.0, length]);
        let trusts: Vec<Trust> = said.iter().map(|(_, _, trust)| *trust).collect();
        assert!(said.iter().all(|(_, index, _)| *index == 3), "{said:?}");
        assert_eq!(trusts[0], Trust::WeighedDown, "{length}");
        let said = rounds(&mut guard, most + 1, 4 * most, [1.0, 1.0, length]);
        assert_eq!(guard.trust(&peer(3)), Trust::LeftOut, "{length}: {said:?}");
    }
}

#[test]
fn one_that_was_behind_and_has_caught_up_has_moved_by_what_it_caught_up() {
    let mut guard = grown(&Config::default());
    let (mut rest, mut before) = (0.0, [0; 2]);
    for round in 1..300 {
        assert_eq!(guard.note(met(1, round), seen(1.0)), None);
        assert_eq!(guard.note(met(2, round), seen(1.0)), None);
        // The third one falls behind by nine commits, and catches up at once. A difference grows by the
        // root of the commits of both, and an exchange of far clocks leaves a part of it.
        let lag = round % 10;
        let now = [round, round - lag];
        let moved = f64::midpoint((now[0] - before[0]) as f64, (now[1] - before[1]) as f64);
        let squared: f64 = rest + moved;
        let kept = 1.0 - f64::from(crate::lag_factor(lag));
        (rest, before) = (squared * kept * kept, now);
        let met = Met { theirs: Clock(now[1]), lag, ..met(3, round) };
        assert_eq!(guard.note(met, seen(squared.sqrt())), None, "{round}");
    }
    assert!(guard.peers[&peer(3)].evidence < 1.0, "{}", guard.peers[&peer(3)].evidence);
}

#[test]
fn fragments_of_one_commit_are_one_cause() {
    let note = |guard: &mut Guard, index, round, length| {
        (0..4).find_map(|fragment| {
            let met = Met { fragment: FragmentId(fragment), ..met(index, round) };
            guard.note(met, seen(length))
        })
    };
    let mut guard = grown(&Config::default());
    for round in 1..100 {
        // Once in a while it was held up, and is far away in all of its fragments.
        let length = if round % 8 == 7 { 4.0 } else { 1.0 };
        for (index, length) in [(1, 1.0), (2, 1.0), (3, length)] {
            assert_eq!(note(&mut guard, index, round, length), None, "{index} in round {round}");
        }
    }
    let judged = (100..110).find_map(|round| {
        note(&mut guard, 1, round, 1.0);
        note(&mut guard, 2, round, 1.0);
        note(&mut guard, 3, round, 4.0).map(|(trust, _)| (round, trust))
    });
    assert_eq!(judged, Some((101, Trust::WeighedDown)), "whoever is always so far is found");
}

#[test]
fn one_that_copies_makes_nobody_look_far_away() {
    let mut guard = grown(&Config::default());
    let said = rounds(&mut guard, 1, 200, [1.0, 1.3, 0.01]);
    assert_eq!(said, []);
}

#[test]
fn who_is_far_from_all_others_accuses_nobody() {
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 4, [1.2, 1.3, 1.2]);
    for round in 5..20 {
        for index in 1..=3 {
            let far = Evidence { difference: 2.3, refused: true, ..seen(1.0) };
            assert_eq!(guard.note(met(index, round), far), None, "{index} in round {round}");
        }
    }
    // One that is far away where the others are near is accused at once.
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 4, [0.2; 3]);
    let far = Evidence { difference: 2.3, refused: true, ..seen(1.0) };
    assert_eq!(guard.note(met(2, 5), far).map(|(trust, _)| trust), Some(Trust::WeighedDown));
}

#[test]
fn who_is_far_from_nearly_all_has_fallen_behind_and_accuses_nobody() {
    let mut guard = grown(&Config::default());
    let refuse = |guard: &mut Guard, round| {
        for index in 1..=3 {
            guard.note(met(index, round), REFUSED);
        }
    };
    guard.note(met(1, 1), REFUSED);
    assert_eq!(guard.has_fallen_behind(Clock(1), 1), None, "one alone may be unsound");
    guard.note(met(2, 1), REFUSED);
    guard.note(met(3, 1), seen(0.1));
    assert_eq!(guard.has_fallen_behind(Clock(1), 1), None, "two of three are not nearly all");
    refuse(&mut guard, 2);
    let pardoned = guard.has_fallen_behind(Clock(2), 2).unwrap();
    assert_eq!(pardoned.len(), 3);
    assert!((1..=3).all(|index| guard.trust(&peer(index)) == Trust::Trusted));
    refuse(&mut guard, 3);
    assert_eq!(guard.has_fallen_behind(Clock(3), 3), None, "not again so soon");
    assert!(guard.has_fallen_behind(Clock(3), 2 + PAUSE_ROUNDS).is_some());
    refuse(&mut guard, 4);
    assert_eq!(
        guard.has_fallen_behind(Clock(5 + USUAL_COMMITS), 1000),
        None,
        "all that is long ago"
    );
}

#[test]
fn what_is_refused_of_a_watched_neighbour_alone_is_judged_by_what_is_usual() {
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 8, [0.3; 3]);
    guard.note(met(1, 9), REFUSED);
    assert_eq!(guard.trust(&peer(1)), Trust::WeighedDown);
    assert!(guard.tolerance(&met(1, 11)).weights < 0.4);
    for round in (11..41).step_by(2) {
        guard.note(met(2, round), seen(0.3));
        guard.note(met(3, round), seen(0.3));
        // As far as the others, and more than is let in of it.
        let far = Evidence { difference: 0.4, refused: true, ..seen(1.0) };
        let judged = guard.note(met(1, round), far);
        assert_ne!(judged.map(|(trust, _)| trust), Some(Trust::LeftOut), "{round}");
    }
    assert_eq!(guard.trust(&peer(1)), Trust::Trusted);
}

#[test]
fn who_is_not_trusted_is_no_witness() {
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 8, [1.0; 3]);
    for round in 9..12 {
        guard.note(met(3, round), REFUSED);
    }
    assert_eq!(guard.trust(&peer(3)), Trust::LeftOut);
    // One witness is left, and of two that differ nobody knows which is right.
    for round in 12..200 {
        assert_eq!(guard.note(met(1, round), seen(1.0)), None, "{round}");
        assert_eq!(guard.note(met(2, round), seen(3.0)), None, "{round}");
    }
}

#[test]
fn of_two_that_differ_nobody_knows_which_is_right() {
    let mut guard = grown(&Config::default());
    for round in 1..500 {
        for (index, length) in [(1, 1.0), (2, 3.0)] {
            assert_eq!(guard.note(met(index, round), seen(length)), None);
        }
    }
}

#[test]
fn a_slow_neighbour_may_be_further_away() {
    let mut guard = grown(&Config::default());
    for round in 1..500 {
        for (index, length, unlike_speed) in [(1, 1.0, 8.0), (2, 1.0, 8.0), (3, 2.0, 8.0)] {
            let met = Met { unlike_speed, ..met(index, round) };
            assert_eq!(guard.note(met, seen(length)), None);
        }
    }
}

proptest! {
    /// Whatever is said, records are bounded and a neighbour is met again in the end.
    #[test]
    fn nobody_is_left_out_for_ever(steps in prop::collection::vec((1..5_u32, 0.0..5.0_f64, any::<bool>()), 1..300)) {
        let mut guard = grown(&Config::default());
        for (round, (index, difference, refused)) in (1..).zip(&steps) {
            let evidence = Evidence { difference: *difference, own: 1.0, len: 1, refused: *refused };
            guard.note(met(*index, round), evidence);
        }
        let end = steps.len() as u64;
        let pause = PAUSE_ROUNDS << PAUSE_DOUBLINGS_MAX;
        for index in 1..5 {
            prop_assert!((end..=end + pause + RATION_ROUNDS).any(|round| guard.meets(&peer(index), round)));
        }
        prop_assert!(guard.peers.values().all(|record| record.evidence <= guard.bar.left_out_at));
    }

    /// Differences that scatter by half around one length for all fire never.
    #[test]
    fn neighbours_that_are_alike_are_trusted(lengths in prop::collection::vec(0.5..1.5_f64, 900)) {
        let mut guard = grown(&Config::default());
        for (turn, length) in (0..).zip(lengths) {
            let index = 1 + u32::try_from(turn % 3).unwrap();
            prop_assert_eq!(guard.note(met(index, 1 + turn / 3), seen(length)), None);
        }
    }
}

#[test]
fn whoever_comes_often_is_no_stranger_where_differences_do_not_grow() {
    let mut guard = grown(&Config::default());
    for round in 1..200 {
        // Frequent mixes hold all replicas at one distance, however long ago two of them met.
        let coming = if round % 8 == 0 { 1..=3 } else { 1..=1 };
        for index in coming {
            assert_eq!(guard.note(met(index, round), seen(0.1)), None, "{index} in round {round}");
        }
    }
}

#[test]
fn a_coarse_code_or_frequent_commits_ask_for_more_evidence() {
    let found = |config: &Config| {
        let said = rounds(&mut Guard::new(config), 1, 100, [0.1, 0.1, 0.25]);
        let out = |(_, index, trust): &&(u64, u32, Trust)| *index == 3 && *trust == Trust::LeftOut;
        said.iter().find(out).map(|(round, _, _)| *round)
    };
    let (rare, mut frequent, mut coarse) =
        (Config::default(), Config::default(), Config::default());
    frequent.pace.local_steps = FREQUENT_STEPS - 1;
    coarse.codecs = vec![Codec::F32, Codec::Int2];
    assert!(found(&rare).is_some() && found(&rare) < found(&frequent), "{:?}", found(&frequent));
    assert_eq!(found(&coarse), None);
    let mut guard = grown(&coarse);
    for round in 1..=u64::from(OUTLIERS_MAX) {
        guard.note(met(1, round), REFUSED);
    }
    assert_eq!(guard.trust(&peer(1)), Trust::LeftOut);
}

/// A guard of frequent mixes that has met three neighbours in rounds 1 to 20, whose differences were 0.1.
fn frequent() -> Guard {
    let interval = Interval::Fixed(FREQUENT_STEPS - 1);
    let config = Config { interval, ..Config::default() };
    let mut guard = grown(&config);
    rounds(&mut guard, 1, 20, [0.1; 3]);
    guard
}

#[test]
fn where_mixes_are_frequent_the_radius_grows_by_a_bounded_factor_in_a_commit() {
    let mut guard = frequent();
    let radius = |guard: &Guard, round| guard.tolerance(&met(1, round)).radius;
    let mut last = radius(&guard, 20);
    assert!((last - FREQUENT.whole * 0.1).abs() < 1e-9, "{last}");
    // Both witnesses are suddenly ten times as far, as where one of them drags the other along.
    for round in 21..=40 {
        for _ in 0..3 {
            for (index, difference) in [(2, 1.0), (3, 1.0), (1, 0.1)] {
                guard.note(met(index, round), seen(difference));
            }
        }
        let now = radius(&guard, round);
        assert!(now > last && now <= last * GROWTH + 1e-9, "{round}: {last} {now}");
        last = now;
    }
    // Without witnesses the last bound is kept.
    (2..=3).for_each(|index| guard.gone(&peer(index)));
    let alone = radius(&guard, 41);
    assert!((last..=last * GROWTH + 1e-9).contains(&alone), "{last} {alone}");
}

#[test]
fn where_mixes_are_frequent_who_is_new_or_was_away_is_far_by_right() {
    let terms = |guard: &Guard, index, round| guard.tolerance(&met(index, round));
    let mut guard = frequent();
    let known = terms(&guard, 1, 21);
    assert!((known.far - FAR * 0.1).abs() < 1e-9, "{known:?}");
    for (index, round) in [(4, 21), (1, 20 + APART_MAX + 1)] {
        let it = terms(&guard, index, round);
        assert!((it.radius - UNTRUSTED_WEIGHTS_MAX).abs() < 1e-9 && it.far.is_infinite(), "{it:?}");
    }
    guard.replaced(Clock(21));
    assert!((terms(&guard, 4, 21).radius - START_RADIUS).abs() < 1e-9, "all begin alike");
    let rare = terms(&grown(&Config::default()), 1, 1);
    assert!(rare.far.is_infinite(), "{rare:?}");
}

#[test]
fn where_mixes_are_rare_who_is_far_moves_less_after_the_last_step() {
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 20, [0.1; 3]);
    let far = |settles| guard.tolerance(&Met { settles, ..met(1, 21) }).far;
    assert!(far(false).is_infinite());
    let mut equal = grown(&Config::default());
    rounds(&mut equal, 1, 20, [0.0; 3]);
    assert!(equal.tolerance(&met(1, 21)).far.is_infinite(), "nothing lies between them");
    assert!((far(true) - FAR_SETTLING * 0.1).abs() < 1e-9, "{}", far(true));
}

#[test]
fn where_mixes_are_frequent_each_one_counts_and_a_commit_has_a_most() {
    let mut guard = frequent();
    let mut found = None;
    for round in 21..40 {
        for _ in 0..8 {
            for (index, difference) in [(1, 0.1), (2, 0.1), (3, 0.25)] {
                guard.note(met(index, round), seen(difference));
            }
        }
        if guard.trust(&peer(3)) == Trust::LeftOut {
            found = found.or(Some(round - 20));
        }
    }
    let least = (FREQUENT.left_out_at / FREQUENT.commit_most(&met(3, 21))).ceil() as u64;
    assert_eq!(found, Some(least));
    for other in [Met { unlike_speed: 4.0, ..met(3, 21) }, Met { speed_known: false, ..met(3, 21) }]
    {
        assert!(FREQUENT.commit_most(&other) < FREQUENT.commit_most(&met(3, 21)), "{other:?}");
    }
}
