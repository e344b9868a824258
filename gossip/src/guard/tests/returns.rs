//! Neighbours that go and come back are the ones that they were.

use super::allowance::TIMES_MAX;
use super::*;

/// Lets three neighbours be met in each commit until `end`; the third one's differences are so many times as
/// long as the others', in the commits in which it is met and not `away`. The commit in which it is left out.
fn left_out(guard: &mut Guard, end: u64, times: f64, away: impl Fn(u64) -> bool) -> Option<u64> {
    (21..end).find(|&commit| {
        (0..4).any(|exchange| {
            guard.note(met(1, commit), seen(0.1));
            guard.note(met(2, commit), seen(0.1));
            let judged =
                (!away(commit)).then(|| guard.note(met(3, commit), seen(0.1 * times))).flatten();
            if exchange == 3 {
                guard.gone(&peer(3));
                guard.here(&peer(3));
            }
            judged.is_some_and(|(trust, _)| trust == Trust::LeftOut)
        })
    })
}

#[test]
fn who_disconnects_after_every_few_exchanges_is_judged_as_one_that_stays() {
    for mut guard in [frequent(), grown(&Config::default())] {
        assert!(left_out(&mut guard, 80, 3.0, |_| false).is_some());
    }
}

#[test]
fn who_was_away_for_long_is_far_by_right_each_time() {
    let rare = |commit: u64| !commit.is_multiple_of(APART_MAX + 2);
    assert_eq!(left_out(&mut frequent(), 400, 3.0, rare), None);
}

#[test]
fn who_starts_again_and_again_is_no_stranger_for_ever() {
    let mut guard = frequent();
    let wide = |guard: &Guard, commit| guard.tolerance(&met(3, commit)).far.is_infinite();
    let mut free = 0;
    for commit in 40..60 {
        (1..=2).for_each(|index| assert_eq!(guard.note(met(index, commit), seen(0.1)), None));
        guard.gone(&peer(3));
        guard.restarted(&peer(3), (Clock(commit), commit));
        free += u32::from(wide(&guard, commit));
        guard.note(met(3, commit), seen(0.3));
    }
    // Each of three starts, and the exchanges that the last one excuses.
    assert_eq!(free, TIMES_MAX + RETURN_EXCHANGES);
}

#[test]
fn of_those_who_are_gone_the_last_are_known_and_none_is_a_witness() {
    let mut guard = frequent();
    let names = 2 * crate::VIEW_MAX as u32;
    for name in 4..4 + names {
        guard.note(met(name, 20 + u64::from(name)), seen(0.1));
        guard.gone(&peer(name));
    }
    let known = guard.peers.values().filter(|it| it.gone && !it.fragments.is_empty()).count();
    assert_eq!(known, crate::VIEW_MAX);
    assert_eq!(guard.peers.len(), 3 + names as usize);
    let mut guard = grown(&Config::default());
    rounds(&mut guard, 1, 20, [0.1; 3]);
    assert!(guard.usual_with_others(&met(1, 20)).is_some());
    (2..=3).for_each(|index| guard.gone(&peer(index)));
    assert!(guard.usual_with_others(&met(1, 20)).is_none());
}
