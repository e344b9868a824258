//! How exactly a sum over all replicas was kept, and in how many exchanges.

use std::fmt;

/// What a rule keeps, and the worst that was seen of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// `mean` or `mean weighted by samples`.
    pub what: &'static str,
    /// Largest distance of a sum over all replicas from what it must be, relative to the largest sum
    /// of magnitudes of any element.
    pub worst: f64,
    /// Exchanges that both ends applied.
    pub exchanges: u64,
    /// Halves that were taken back.
    pub undone: u64,
    /// Exchanges of which one half is left for good, because an end died or the two could not agree.
    /// What they have moved is booked, as is what a dead peer took along.
    pub torn: u64,
}

impl Kept {
    /// Nothing was seen yet.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self { what, worst: 0.0, exchanges: 0, undone: 0, torn: 0 }
    }

    /// Notes that a sum is off by `distance`, of numbers whose magnitudes add up to `size`; where
    /// nobody lives there is nothing to keep.
    pub(super) fn off(&mut self, distance: f64, size: f64) {
        if size > 0.0 {
            self.worst = self.worst.max(distance / size);
        }
    }

    /// Adds what another simulation saw of the same.
    pub fn add(&mut self, other: &Self) {
        self.worst = self.worst.max(other.worst);
        self.exchanges += other.exchanges;
        self.undone += other.undone;
        self.torn += other.torn;
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, worst, exchanges, undone, torn } = self;
        write!(f, "{what} off by {worst:.1e} at most in {exchanges} exchanges")?;
        if undone + torn > 0 {
            write!(f, ", {undone} halves taken back, {torn} torn")?;
        }
        Ok(())
    }
}
