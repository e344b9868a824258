//! What a member says of itself hides neither it nor another one.

use super::allowance::TIMES_MAX;
use super::*;

/// Whom the guard leaves out when one of three has differences so many times as long, and how fast one of all says
/// to be makes everybody unlike it.
fn left_out(times: f64, unlike_speed: f64) -> Vec<u32> {
    let mut guard = grown(&Config::default());
    let mut found = Vec::new();
    for round in 1..500 {
        for (index, length) in [(1, 1.0), (2, 1.0), (3, times)] {
            let met = Met { unlike_speed, ..met(index, round) };
            let judged = guard.note(met, seen(length));
            if matches!(judged, Some((Trust::LeftOut, _))) && !found.contains(&index) {
                found.push(index);
            }
        }
    }
    found
}

#[test]
fn who_says_that_it_is_a_million_times_as_fast_hides_nobody() {
    for unlike_speed in [1.0, 4.0, 1e6] {
        assert_eq!(left_out(6.0, unlike_speed), [3], "{unlike_speed}");
        assert_eq!(left_out(1.2, unlike_speed), [], "{unlike_speed}");
    }
}

#[test]
fn who_starts_again_and_again_is_tried_at_once_a_few_times_only() {
    let mut guard = grown(&Config::default());
    let mut at_once = 0;
    for turn in 1..20 {
        let round = turn * RATION_ROUNDS;
        guard.unsound(peer(1), round);
        assert!(!guard.meets(&peer(1), round), "{turn}");
        guard.restarted(&peer(1), (Clock(turn), round));
        at_once += u32::from(guard.meets(&peer(1), round));
    }
    assert_eq!(at_once, TIMES_MAX);
    // Honest neighbours start as often as they like.
    for round in 1..20 {
        guard.restarted(&peer(2), (Clock(round), round));
        assert!(guard.meets(&peer(2), round));
    }
    assert_eq!(guard.peers.get(&peer(2)).map_or(0, |record| record.joined.used()), 0);
}

#[test]
fn who_was_left_out_is_not_let_in_because_one_other_is_left() {
    for (length, lets_in) in [(6.0, false), (1.0, true)] {
        let mut guard = grown(&Config::default());
        let found = rounds(&mut guard, 1, 60, [0.04, 0.04, 0.24]);
        assert!(found.iter().any(|said| said.1 == 3 && said.2 == Trust::LeftOut), "{found:?}");
        guard.gone(&peer(2));
        let mut let_in = false;
        for round in 61..600 {
            for (index, length) in [(1, 0.04), (3, 0.04 * length)] {
                if guard.meets(&peer(index), round) {
                    let judged = guard.note(met(index, round), seen(length));
                    let_in |= index == 3 && matches!(judged, Some((Trust::Trusted, _)));
                    assert!(index == 3 || judged.is_none(), "{round}: {judged:?}");
                }
            }
        }
        assert_eq!(let_in, lets_in, "{length}");
    }
}

/// One exchange of each commit is near and names a clock of long ago, the other is far and names the right one.
#[test]
fn who_names_a_low_clock_in_between_was_not_apart_for_as_long() {
    let left_out = |lies: bool| {
        let mut guard = frequent();
        (21..=420_u64).find(|&round| {
            for index in [1, 2] {
                guard.note(met(index, round), seen(0.1));
            }
            let low = if lies { Clock(0) } else { Clock(round) };
            guard.note(Met { theirs: low, ..met(3, round) }, seen(0.1));
            guard.note(met(3, round), seen(2.0));
            guard.trust(&peer(3)) == Trust::LeftOut
        })
    };
    let honest = left_out(false).unwrap();
    let lies = left_out(true).expect("it is left out");
    assert!(lies <= 2 * honest, "{lies} {honest}");
}
