//! Moments, which have bounds of their own.

use super::*;

/// A meeting on fragment 1, which holds moments.
fn met_moments(index: u32, round: u64) -> Met {
    Met { fragment: FragmentId(1), ..met(index, round) }
}

fn with_moments() -> Guard {
    grown(&Config { first_of_moments: Some(FragmentId(1)), ..Config::default() })
}

#[test]
fn moments_however_far_apart_raise_no_alarm() {
    let mut guard = with_moments();
    rounds(&mut guard, 1, 9, [0.1; 3]);
    for round in 10..60 {
        for index in 1..4 {
            let far =
                Evidence { difference: f64::from(index) * 3.0, refused: index == 3, ..seen(1.0) };
            assert_eq!(guard.note(met_moments(index, round), far), None);
            assert_eq!(guard.trust(&peer(index)), Trust::Trusted, "{index} in round {round}");
        }
    }
    // What is usual of weights is as before.
    assert!(guard.tolerance(&met(1, 60)).weights >= WEIGHTS_MAX);
}

#[test]
fn moments_of_a_neighbour_that_is_not_trusted_are_not_mixed() {
    let mut guard = with_moments();
    assert!(guard.tolerance(&met_moments(1, 1)).weights >= MOMENTS_MAX);
    guard.note(met(1, 1), REFUSED);
    assert!(guard.tolerance(&met_moments(1, 2)).weights <= 0.0);
    assert!(guard.tolerance(&met_moments(2, 2)).weights >= MOMENTS_MAX);
}

#[test]
fn weights_and_moments_are_each_measured_by_their_own_kind() {
    let mut guard = with_moments();
    let own = |own| Evidence { own, len: 4, ..seen(1.0) };
    guard.note(met(1, 1), own(8.0));
    guard.note(met_moments(1, 1), own(2.0));
    let least = |met: Met| guard.tolerance(&met).rms_min;
    // The root mean squares are 4 and 1.
    assert!((least(met(1, 2)) - WHOLE_SHARE * 4.0).abs() < 1e-9);
    assert!((least(met_moments(1, 2)) - WHOLE_SHARE).abs() < 1e-9);
}
