//! How far a fragment has moved by its own training since it was mixed last, estimated from some of its
//! numbers. Others have no part in it: what they move the fragment by is taken out.

/// Numbers of a fragment that are looked at. Of moves that are alike, their length is right to 5 %.
const NUMBERS_MAX: usize = 256;
/// What counts of how far the fragment had moved before, after one more exchange: two that follow each other
/// within a step say nothing of the second one.
const KEPT: f64 = 0.5;

/// Some numbers of one fragment, as its last exchange has left them.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Empty before the first exchange, and where the numbers were not shown.
    left: Vec<f32>,
    /// How far it had moved at the last exchange.
    before: f64,
}

impl Progress {
    /// How far the fragment `values` has moved by itself since its last exchange; `None` before the first.
    /// From now on it is counted from here.
    pub(super) fn take(&mut self, values: &[f32]) -> Option<f64> {
        let every = every(values.len());
        let numbers = || values.iter().copied().step_by(every);
        let known = !self.left.is_empty() && self.left.len() == numbers().len();
        let squares: f64 =
            self.left.iter().zip(numbers()).map(|(left, now)| f64::from(now - left).powi(2)).sum();
        self.left.clear();
        self.left.extend(numbers());
        if !known {
            return None;
        }
        let moved = (squares * values.len() as f64 / self.left.len() as f64).sqrt();
        self.before = moved.max(KEPT * self.before);
        Some(self.before)
    }

    /// The numbers are not shown: nothing is known of the moves until they are again.
    pub(super) fn forget(&mut self) {
        self.left.clear();
    }

    /// An exchange moves the part from `start` on, of a fragment of `len` elements, by `weight · delta`.
    pub(super) fn mix(&mut self, (start, len): (usize, usize), delta: &[f32], weight: f32) {
        let first = start.div_ceil(every(len));
        let moves = looked_at((start, len), delta);
        for (left, delta) in self.left.iter_mut().skip(first).zip(moves) {
            *left += weight * delta;
        }
    }

    /// The same of a whole fragment: `moves` is what [`looked_at`] picks of its parts, in their order.
    pub(super) fn mix_picked(&mut self, moves: &[f32], weight: f32) {
        for (left, delta) in self.left.iter_mut().zip(moves) {
            *left += weight * delta;
        }
    }
}

/// The numbers of the part `values` from `start` on, of a fragment of `len` elements, that are looked at.
pub(super) fn looked_at(
    (start, len): (usize, usize),
    values: &[f32],
) -> impl Iterator<Item = f32> + '_ {
    let every = every(len);
    let first = start.next_multiple_of(every);
    values.iter().copied().skip(first - start).step_by(every)
}

/// Elements from one number that is looked at to the next, in a fragment of `len`.
fn every(len: usize) -> usize {
    len.div_ceil(NUMBERS_MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_moves_count_and_those_of_exchanges_do_not() {
        for len in [1, 7, 256, 257, 5000] {
            let mut values = vec![1.0; len];
            let mut progress = Progress::default();
            assert_eq!(progress.take(&values), None);
            // An exchange, in two parts.
            let (delta, half) = (vec![3.0; len], len / 2);
            for part in [0..half, half..len] {
                progress.mix((part.start, len), &delta[part], -0.5);
            }
            values.iter_mut().for_each(|value| *value -= 1.5 - 0.25);
            let moved = progress.take(&values).unwrap();
            let wanted = 0.25 * (len as f64).sqrt();
            assert!((moved - wanted).abs() < 1e-6 * wanted, "{len}: {moved} {wanted}");
            // No step lies between this exchange and the last one.
            assert!((progress.take(&values).unwrap() - 0.5 * wanted).abs() < 1e-6 * wanted);
            // The same exchange, told at once.
            let moves: Vec<f32> = [0..half, half..len]
                .into_iter()
                .flat_map(|part| looked_at((part.start, len), &delta[part]))
                .collect();
            progress.mix_picked(&moves, 0.5);
            values.iter_mut().for_each(|value| *value += 1.5);
            assert!(progress.take(&values).unwrap() < 0.26 * wanted, "{len}");
        }
    }

    #[test]
    fn numbers_that_were_not_shown_say_nothing() {
        let mut progress = Progress::default();
        progress.take(&[1.0; 8]);
        progress.forget();
        assert_eq!(progress.take(&[2.0; 8]), None);
        assert_eq!(progress.take(&[2.0; 8]), Some(0.0));
    }
}
