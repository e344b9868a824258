//! A write that is tried again and again, and whose failure is told once.

/// Whether the last try has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToldOnce {
    failing: bool,
}

impl ToldOnce {
    /// Nothing has failed yet.
    pub(crate) const fn new() -> Self {
        Self { failing: false }
    }

    /// Takes note of a try, and calls `tell` with its error if the one before has not failed. Whether it was done.
    pub(crate) fn note<E>(&mut self, tried: Result<(), E>, tell: impl FnOnce(E)) -> bool {
        let before = std::mem::replace(&mut self.failing, tried.is_err());
        if let Err(error) = tried
            && !before
        {
            tell(error);
        }
        !self.failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_until_a_try_is_done() {
        let (mut once, mut told) = (ToldOnce::new(), Vec::new());
        let tries = [Err(1), Err(2), Ok(()), Err(3), Err(4)];
        let done = tries.map(|tried| once.note(tried, |error| told.push(error)));
        assert_eq!((done, told), ([false, false, true, false, false], vec![1, 3]));
    }
}
