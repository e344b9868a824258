//! What training and mixing leave for each other, fragment by fragment.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::SharedReplica;
use super::on_device::DevicePending;
use crate::device::SpanMut;
use crate::displacement::Displacement;
use crate::kernel::reduce::add_scaled;

/// Elements of displacements that may wait for training; then mixing does: 256 MiB.
const PENDING_ELEMENTS_MAX: usize = 1 << 26;
/// Elements of buffers that are kept to be used again: 64 MiB.
const SPARE_ELEMENTS_MAX: usize = 1 << 24;

/// Displacements of the live weights that training has yet to make, and fragments of them that it
/// shows to mixing.
///
/// What is shown of a fragment is always x of some step boundary, with all displacements that mixing
/// has asked for since, whether training has made them or not.
#[derive(Debug, Default)]
pub(super) struct PendingUpdates {
    displacements: BTreeMap<usize, Displacement>,
    /// Elements of the displacements.
    waiting: usize,
    /// Fragments that mixing wants to see, in the order in which it will take them up; each once.
    wanted: VecDeque<usize>,
    shown: BTreeMap<usize, Vec<f32>>,
    /// What mixing has waited for and not taken up yet: it stays shown whatever training does.
    kept: Option<usize>,
    /// Whether x does not change and what is shown can be read again.
    standing: bool,
    spare: Vec<Vec<f32>>,
    /// The fragment at which training goes on, so that every one comes up.
    next: usize,
    /// Whether training has last made a move that nobody waits for; then one that is wanted comes next.
    moved: bool,
    closed: bool,
    /// Whether displacements are made at commits alone.
    deferred: bool,
    /// Where the weights lie if not here; displacements and shown fragments are then marks alone.
    device: Option<DevicePending>,
}

/// What mixing holds of one fragment while it works on it.
#[derive(Debug)]
pub(super) struct TakenFragment {
    pub(super) moved: Displacement,
    /// What training has shown of the live weights.
    pub(super) shown: Option<Vec<f32>>,
    /// Whether what is made of that may be read again.
    pub(super) stays: bool,
}

/// One fragment that training has to do with.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) index: usize,
    pub(super) moved: Option<Displacement>,
    /// A buffer to show the fragment in, if that is wanted.
    pub(super) show: Option<Vec<f32>>,
}

/// What training has done with weights on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// There was nothing to do.
    Nothing,
    /// It has shown a fragment.
    Show,
    /// It has moved a fragment, and shown it if that was wanted.
    Move,
}

impl PendingUpdates {
    /// Nothing is pending. The weights lie on a device, if there is one.
    pub(super) fn new(device: Option<DevicePending>) -> Self {
        Self { device, ..Self::default() }
    }

    pub(super) const fn device(&mut self) -> Option<&mut DevicePending> {
        self.device.as_mut()
    }

    /// Notes that a fragment is to be moved, or replaced, on a device; whether that is all it is to do.
    pub(super) fn note_elsewhere(&mut self, index: usize, len: usize, replaces: bool) -> bool {
        let before = self.displacements.remove(&index);
        self.waiting += if before.is_some() { 0 } else { len };
        let replaces = replaces || before.as_ref().is_some_and(Displacement::replaces);
        self.displacements.insert(index, Displacement::elsewhere(len, replaces));
        before.is_none()
    }

    /// Mixing takes a fragment up on a device; whether x of it is shown.
    pub(super) fn take_on_device(&mut self, index: usize) -> bool {
        self.shown.remove(&index).is_some()
    }

    /// Mixing is done with it; whether what it has made of the shown x stays shown.
    pub(super) fn give_on_device(&mut self, index: usize, was_shown: bool) -> bool {
        self.kept = self.kept.filter(|kept| *kept != index);
        // What training has shown meanwhile lacks what mixing did.
        self.shown.remove(&index);
        let stays = was_shown && self.standing;
        if stays {
            self.shown.insert(index, Vec::new());
        }
        stays
    }

    /// Does what training should do next with weights on a device.
    pub(super) fn make_on_device(
        &mut self,
        shared: &SharedReplica,
        weights: &mut SpanMut<'_>,
    ) -> Made {
        let Some(task) = self.task() else { return Made::Nothing };
        let range = shared.range(task.index).expect("updates are of fragments of the model");
        let moved = task.moved.as_ref().map(Displacement::replaces);
        let shows = task.show.is_some();
        if let Some(device) = &mut self.device {
            device.make(range, moved, shows, weights);
        }
        if shows {
            self.shown.insert(task.index, Vec::new());
        }
        if moved.is_some() { Made::Move } else { Made::Show }
    }

    /// Shows a fragment of x on a device.
    pub(super) fn show_on_device(
        &mut self,
        index: usize,
        range: Range<usize>,
        weights: &mut SpanMut<'_>,
    ) {
        if let Some(device) = &mut self.device {
            device.make(range.clone(), None, true, weights);
            if let Some(later) = self.displacements.get(&index) {
                device.overlay(range, later.replaces());
            }
        }
        self.shown.insert(index, Vec::new());
    }

    /// Mixing takes a fragment up.
    pub(super) fn take(&mut self, index: usize) -> TakenFragment {
        let shown = self.shown.remove(&index);
        let moved = match self.displacements.remove(&index) {
            Some(mut moved) => {
                self.waiting -= moved.len();
                moved.lend(|| self.spare.pop().unwrap_or_default());
                moved
            }
            None => Displacement::in_buffer(self.spare.pop().unwrap_or_default()),
        };
        TakenFragment { moved, shown, stays: self.standing }
    }

    /// Mixing is done with it. What training has shown meanwhile lacks what mixing did.
    pub(super) fn give(&mut self, index: usize, taken: TakenFragment) {
        let TakenFragment { mut moved, shown, stays } = taken;
        self.kept = self.kept.filter(|kept| *kept != index);
        let mut newer = self.shown.remove(&index);
        let (shown, other) = if stays {
            (shown, newer)
        } else {
            // Shown beforehand in the meantime, as nothing was that mixing has moved.
            if let (Some(newer), false) = (&mut newer, moved.is_nothing()) {
                moved.make(0, newer);
            }
            (newer, shown)
        };
        self.recycle(other);
        match shown {
            Some(shown) if self.standing => {
                self.shown.insert(index, shown);
            }
            shown => self.recycle(shown),
        }
        if moved.is_nothing() {
            self.recycle(Some(moved.into_buffer()));
        } else {
            self.waiting += moved.len();
            let unused = moved.unused_buffer();
            self.recycle(unused);
            self.displacements.insert(index, moved);
        }
    }

    /// What training should do next: first what replaces weights, then in turn what is wanted and a move of
    /// another fragment. Else moves would wait while exchanges go on, and weights that are mixed would be
    /// trained without what was mixed into them.
    pub(super) fn task(&mut self) -> Option<Task> {
        let replaced =
            self.displacements.iter().find(|(_, moved)| moved.replaces()).map(|(index, _)| *index);
        let after = || {
            self.displacements
                .range(self.next..)
                .chain(&self.displacements)
                .map(|(index, _)| *index)
                .next()
        };
        let wanted = self.wanted.front().copied();
        let next = if self.moved { wanted.or_else(after) } else { after().or(wanted) };
        let index = replaced.or(next)?;
        let place = self.wanted.iter().position(|wanted| *wanted == index);
        let show = place.and_then(|place| self.wanted.remove(place));
        let show = show.map(|_| self.spare.pop().unwrap_or_default());
        self.moved = show.is_none();
        let moved = self.displacements.remove(&index);
        self.waiting -= moved.as_ref().map_or(0, |moved| moved.len());
        self.next = index + 1;
        Some(Task { index, moved, show })
    }

    /// Training has done it.
    pub(super) fn done(&mut self, task: Task) {
        let Task { index, moved, show } = task;
        self.recycle(moved.map(Displacement::into_buffer));
        if let Some(values) = show {
            self.show(index, values);
        }
    }

    /// Shows a fragment of the live weights.
    pub(super) fn show(&mut self, index: usize, mut values: Vec<f32>) {
        if let Some(later) = self.displacements.get(&index) {
            later.make(0, &mut values);
        }
        let older = self.shown.insert(index, values);
        self.recycle(older);
    }

    /// A buffer that nobody uses.
    pub(super) fn buffer(&mut self) -> Vec<f32> {
        self.spare.pop().unwrap_or_default()
    }

    /// Whether x stands still, so that what is shown stays.
    pub(super) fn stand(&mut self, standing: bool) {
        self.standing = standing;
        if !standing {
            let kept = self.kept.and_then(|index| self.shown.remove_entry(&index));
            while let Some((_, values)) = self.shown.pop_first() {
                self.recycle(Some(values));
            }
            self.shown.extend(kept);
        }
    }

    /// Mixing will take up a fragment that it sees.
    pub(super) const fn keep(&mut self, index: usize) {
        self.kept = Some(index);
    }

    /// Mixing wants to see a fragment; whether training has to show it.
    pub(super) fn want(&mut self, index: usize) -> bool {
        let hidden = !self.shown.contains_key(&index);
        if hidden && !self.wanted.contains(&index) {
            self.wanted.push_back(index);
        }
        hidden
    }

    /// Whether mixing can take a fragment up, which it reads if `reads`.
    pub(super) fn is_ready(&self, index: usize, reads: bool) -> bool {
        // Nobody makes deferred displacements before the next commit; there is one of each fragment at most.
        let has_room = self.deferred || self.waiting <= PENDING_ELEMENTS_MAX;
        has_room && (!reads || self.shown.contains_key(&index))
    }

    /// Whether training makes displacements at commits alone, as [`Replica::defer`](super::Replica::defer).
    pub(super) const fn defer(&mut self, deferred: bool) {
        self.deferred = deferred;
    }

    /// Adds the displacements that wait to `out`, the live weights of `range`.
    pub(super) fn overlay(&self, shared: &SharedReplica, range: &Range<usize>, out: &mut [f32]) {
        for (index, moved) in &self.displacements {
            let Some(of) = shared.range(*index) else { continue };
            let (start, end) = (of.start.max(range.start), of.end.min(range.end));
            if start >= end {
                continue;
            }
            let out = &mut out[start - range.start..end - range.start];
            match &self.device {
                Some(device) if moved.replaces() => {
                    out.copy_from_slice(&device.pending(start..end));
                }
                Some(device) => add_scaled(out, &device.pending(start..end), 1.0),
                None => moved.make(start - of.start, out),
            }
        }
    }

    /// Forgets all displacements: the weights are set anew.
    pub(super) fn clear(&mut self) {
        self.displacements.clear();
        self.shown.clear();
        self.waiting = 0;
    }

    /// Training has ended.
    pub(super) const fn close(&mut self) {
        self.closed = true;
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    fn recycle(&mut self, buffer: Option<Vec<f32>>) {
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        let buffer = buffer.filter(|buffer| {
            buffer.capacity() > 0 && kept + buffer.capacity() <= SPARE_ELEMENTS_MAX
        });
        self.spare.extend(buffer);
    }
}

#[cfg(test)]
mod tests {
    use dnode_protocol::frame::Codec;

    use super::*;
    use crate::codec::encode;
    use crate::slow::Own;

    fn move_one(pending: &mut PendingUpdates, index: usize) {
        let (mut values, mut taken) = ([0.0; 4], pending.take(index));
        Own::new(0..4, (Some(&mut values), true), None, &mut taken.moved).replace(&mut [1.0; 4]);
        pending.give(index, taken);
    }

    #[test]
    fn mixing_waits_while_too_much_is_to_be_moved() {
        let mut pending =
            PendingUpdates { waiting: PENDING_ELEMENTS_MAX - 7, ..PendingUpdates::default() };
        move_one(&mut pending, 0);
        move_one(&mut pending, 0);
        assert!(pending.is_ready(0, false), "displacements of one fragment are one");
        move_one(&mut pending, 1);
        assert!(!pending.is_ready(0, false));
        // Training makes none of them before the next commit, so waiting would have no end.
        pending.defer(true);
        assert!(pending.is_ready(0, false));
        pending.defer(false);
        let task = pending.task().unwrap();
        pending.done(task);
        assert!(pending.is_ready(0, false));
    }

    #[test]
    fn every_fragment_has_its_turn_and_what_is_wanted_goes_first() {
        let mut pending = PendingUpdates::default();
        let mut order = Vec::new();
        for round in 0..4 {
            (0..3).for_each(|index| move_one(&mut pending, index));
            if round == 3 {
                pending.want(1);
            }
            let task = pending.task().unwrap();
            order.push(task.index);
            pending.done(task);
        }
        assert_eq!(order, [0, 1, 2, 1]);
    }

    #[test]
    fn what_is_wanted_again_and_again_does_not_keep_moves_waiting() {
        let mut pending = PendingUpdates::default();
        (0..4).for_each(|index| move_one(&mut pending, index));
        assert!(pending.want(5) && pending.want(3));
        let mut order = Vec::new();
        for _ in 0..8 {
            pending.want(5);
            let task = pending.task().unwrap();
            order.push((task.index, task.moved.is_some(), task.show.is_some()));
            pending.done(task);
            let shown = pending.take(5);
            pending.give(5, shown);
        }
        let (show, made) = ((5, false, true), |index| (index, true, false));
        assert_eq!(order, [made(0), show, made(1), (3, true, true), made(2), show, show, show]);
    }

    #[test]
    fn a_coded_move_that_waits_holds_no_buffer_and_gets_one_when_more_is_added() {
        let mut pending = PendingUpdates::default();
        pending.recycle(Some(vec![0.0; 8]));
        let coded = encode(Codec::Int8, &[1.0; 8]);
        for moves in 1..=2 {
            let mut taken = pending.take(3);
            taken.moved.add_coded(&coded, 0.5);
            pending.give(3, taken);
            assert_eq!(pending.spare.len(), 2 - moves, "{moves}");
        }
        let task = pending.task().unwrap();
        let mut x = [0.0; 8];
        task.moved.as_ref().unwrap().make(0, &mut x);
        assert!(x.iter().all(|x| (x - 1.0).abs() < 0.02), "{x:?}");
        pending.done(task);
        assert_eq!(pending.spare.len(), 1);
    }
}
