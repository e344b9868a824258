//! A bound on what others can have written down by coming, going and breaking rules, as often as they like.

use std::time::{Duration, Instant};

/// Time over which what others cause is counted.
pub(crate) const CAUSED_EVERY: Duration = Duration::from_secs(30);
/// Most of it in that time that is written down. So nobody can push older lines out of files that are kept,
/// or fill a disk, within hours.
pub(crate) const CAUSED_MAX: u32 = 100;

/// Counts what others cause.
#[derive(Debug)]
pub(crate) struct Caused {
    /// When counting begins anew.
    next: Instant,
    count: u32,
}

impl Caused {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now + CAUSED_EVERY, count: 0 }
    }

    /// Something was caused; whether it is to be written down.
    pub(crate) const fn one_more(&mut self) -> bool {
        self.count = self.count.saturating_add(1);
        self.count <= CAUSED_MAX
    }

    /// How much was left out, when the time over which it is counted ends.
    pub(crate) fn end(&mut self, now: Instant) -> Option<u32> {
        if now < self.next {
            return None;
        }
        let left_out = self.count.saturating_sub(CAUSED_MAX);
        *self = Self::new(now);
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_written_down_in_so_much_time_and_the_rest_is_counted() {
        let now = Instant::now();
        let mut caused = Caused::new(now);
        for number in 1..=3 * CAUSED_MAX {
            assert_eq!(caused.one_more(), number <= CAUSED_MAX);
        }
        assert_eq!(caused.end(now + CAUSED_EVERY / 2), None);
        assert_eq!(caused.end(now + CAUSED_EVERY), Some(2 * CAUSED_MAX));
        assert!(caused.one_more());
        assert_eq!(caused.end(now + 2 * CAUSED_EVERY), Some(0));
    }
}
