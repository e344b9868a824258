//! The accountant beside published values, other accountants, and arithmetic of many digits.

use super::*;

const DELTA: f64 = 1e-5;

fn loss(multiplier: f64, commits: u64) -> PrivacyLoss {
    PrivacyLoss::default().after(commits, multiplier)
}

fn close(found: f64, want: f64, tolerance: f64) {
    assert!((found - want).abs() <= tolerance * want.abs().max(1e-300), "{found}, not {want}");
}

/// Google's dp_accounting, `privacy_loss_mechanism_test.py`, `test_gaussian_get_delta_for_epsilon` and
/// `test_gaussian_from_privacy_parameters`; μ is sensitivity over standard deviation.
#[test]
fn published_deltas_of_one_gaussian() {
    for (mu, epsilon, delta) in [
        (1.0, 1.0, 0.126_936_74),
        (3.0, 1.0, 0.787_600_74),
        (1.0, 2.0, 0.020_923_64),
        (1.0, 0.0, 0.382_924_92),
    ] {
        close(delta_of(mu, epsilon), delta, 2e-7);
    }
    // Given there to three digits: a deviation of 0.344 for (16, 1e-5).
    assert!(epsilon(1.0 / 0.344, DELTA) < 16.05 && epsilon(1.0 / 0.343, DELTA) > 16.0);
}

/// The code of Balle and Wang 2018 (`calibrateAnalyticGaussianMechanism(1.0, 1e-5, 1.0)`, as quoted in
/// the documentation of diPLSlib): the deviation of (1, 1e-5) for a sensitivity of 1.
#[test]
fn the_published_deviation_of_the_analytic_gaussian_mechanism() {
    close(epsilon(1.0 / 3.730_631_634_944_469, DELTA), 1.0, 1e-9);
}

/// Reckoned beside this code: Python's `decimal` with 80 to 1000 digits, the error function by its Taylor
/// series, ε by halving.
#[test]
fn many_commits_are_one_gaussian() {
    for (multiplier, commits, zeroed_out, replaced) in [
        (1.0, 1, 4.377_178_095_7, 9.997_256_146_4),
        (10.0, 100, 4.377_178_095_7, 9.997_256_146_4),
        (1.0, 100, 91.817_289_624_7, 284.391_849_497_8),
        (0.5, 10, 46.211_210_191_2, 133.086_276_258_2),
        (2.0, 1000, 191.549_201_432_7, 633.929_851_335_6),
        (30.0, 1000, 4.652_984_531_0, 10.669_522_809_7),
        (100.0, 100, 0.340_669_364_7, 0.725_521_750_9),
    ] {
        let loss = loss(multiplier, commits);
        close(loss.epsilon(DELTA, Adjacency::ZeroedOut), zeroed_out, 1e-9);
        close(loss.epsilon(DELTA, Adjacency::Replaced), replaced, 1e-9);
    }
}

/// Rényi differential privacy (Mironov 2017, arXiv 1702.07476, Corollary 3 and Proposition 1): `T` commits
/// have `ε(α) = α T / (2 z²)`. To (ε, δ) by Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition
/// 12. Opacus and TF Privacy do the same at a sample rate of 1.
fn by_renyi(multiplier: f64, commits: u64, delta: f64) -> f64 {
    let of = |alpha: f64| {
        let renyi = alpha * commits as f64 / (2.0 * multiplier.powi(2));
        renyi + ((alpha - 1.0) / alpha).ln() - (delta.ln() + alpha.ln()) / (alpha - 1.0)
    };
    // α from a little above 1 to 10⁴.
    (-400..400).map(|k| of(1.0 + 10_f64.powf(f64::from(k) / 100.0))).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_exact_loss_is_a_little_below_what_renyi_accountants_tell() {
    // TF Privacy's rdp_accountant_test: a multiplier of 10 at α = 20 has 0.1.
    close(20.0 / (2.0 * 10.0_f64.powi(2)), 0.1, 1e-12);
    // The minimum over α in steps of 0.001, by the Python beside the above.
    close(by_renyi(1.0, 1, DELTA), 4.728_387, 1e-4);
    close(by_renyi(0.5, 10, DELTA), 48.754_524, 1e-4);
    for multiplier in [0.1, 0.5, 1.0, 3.0, 10.0, 100.0] {
        for commits in [1, 10, 100, 1_000, 10_000] {
            let exact = loss(multiplier, commits).epsilon(DELTA, Adjacency::ZeroedOut);
            let renyi = by_renyi(multiplier, commits, DELTA);
            // Below ε of about 1 the conversion loses more.
            let least = if renyi < 1.0 { 0.6 } else { 0.85 };
            assert!(
                exact <= renyi && exact > least * renyi,
                "{multiplier} {commits} {exact} {renyi}"
            );
        }
    }
}

#[test]
fn losses_of_different_noise_add_up_in_any_order() {
    let mixed = loss(2.0, 30).after(70, 5.0);
    let other = loss(5.0, 70).after(30, 2.0);
    assert_eq!(mixed.commits(), 100);
    close(mixed.inverse_squares(), 30.0 / 4.0 + 70.0 / 25.0, 1e-12);
    close(
        mixed.epsilon(DELTA, Adjacency::Replaced),
        other.epsilon(DELTA, Adjacency::Replaced),
        1e-12,
    );
    let kept = PrivacyLoss::of(mixed.commits(), mixed.inverse_squares());
    assert_eq!(kept, Some(mixed));
    assert_eq!(PrivacyLoss::of(1, f64::NAN), None);
    assert_eq!(PrivacyLoss::of(1, -1.0), None);
}

#[test]
fn nothing_shown_costs_nothing_and_no_noise_everything() {
    assert!(PrivacyLoss::default().epsilon(DELTA, Adjacency::Replaced) <= 0.0);
    assert!(loss(1e9, 1).epsilon(DELTA, Adjacency::Replaced) <= 0.0);
    let much = loss(1e-3, 1_000_000).epsilon(DELTA, Adjacency::Replaced);
    // About μ²/2.
    assert!(much > 2e12 && much.is_finite(), "{much}");
}

#[test]
fn series_and_fraction_meet_where_one_takes_over() {
    let below = tail_ratio(TAIL_FROM - 1e-9);
    close(tail_ratio(TAIL_FROM), below, 1e-8);
    // Φ(−4) and Φ(−10), Abramowitz and Stegun 1964, tables 26.1 and 26.2.
    close(tail(4.0), 3.167_124_183e-5, 1e-9);
    close(tail(10.0), 7.619_853_024e-24, 1e-9);
    close(tail(-4.0), 1.0 - 3.167_124_183e-5, 1e-12);
    close(tail(1.0), 0.158_655_253_9, 1e-9);
}
