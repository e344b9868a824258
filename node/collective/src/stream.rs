//! Values around a ring: what comes from the previous rank is added or put in its place, and goes on
//! to the next rank as it comes, so that all links are busy all the time.
//!
//! Reduce-scatter, then all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations"): each rank sends `2(n−1)/n` of the values, which is the
//! least that an all-reduce can do with. In phase `s` of `0..2(n−1)` a rank takes in piece
//! `rank − s − 2` (mod n), which it passes on in phase `s + 1`; pieces of the first `n−1` phases are
//! added, the sums of the others put in place. The first half leaves every rank its own piece.

use std::ops::Range;
use std::time::Instant;

use rustix::event::PollFlags;

use crate::collective::{Operation, Part, Place};
use crate::error::Error;
use crate::header::{HEADER_BYTES, header};
use crate::limits::{RECEIVE_BYTES, SEND_BYTES};
use crate::links::{Links, Want, in_step};

/// Bytes of a value.
const WIDTH: usize = size_of::<f32>();

/// Which phases of the ring an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Reduce-scatter.
    First,
    /// All-gather.
    Second,
    /// All-reduce.
    Both,
}

/// The pieces that pass a rank, and how far.
struct Ring {
    place: Place,
    length: usize,
    part: Part,
    /// Phases, of all `2(n−1)`.
    phases: Range<usize>,
}

impl Ring {
    fn new(place: Place, length: usize, (half, part): (Half, Part)) -> Self {
        let turns = place.size - 1;
        let phases = match half {
            Half::First => 0..turns,
            Half::Second => turns..2 * turns,
            Half::Both => 0..2 * turns,
        };
        Self { place, length, part, phases }
    }

    /// The bytes that are taken in in a phase; those of the phase before the first are the own ones
    /// that are sent first.
    fn bytes(&self, before: usize) -> Range<usize> {
        let Place { rank, size } = self.place;
        // `rank − s − 2` with `s = before − 1`, kept positive.
        let index = (rank + 2 * size - 1 - before % size) % size;
        let Range { start, end } = self.part.piece(self.length, size, index);
        start * WIDTH..end * WIDTH
    }

    const fn adds(&self, phase: usize) -> bool {
        phase < self.place.size - 1
    }

    /// The phase whose sums are whole.
    const fn completes(&self, phase: usize) -> bool {
        phase + 2 == self.place.size
    }
}

/// A place in the pieces that pass: a phase, and bytes of its piece.
#[derive(Clone, Copy)]
struct Cursor {
    phase: usize,
    offset: usize,
}

/// One operation under way.
struct Passage<'a> {
    ring: Ring,
    values: &'a mut [f32],
    scratch: &'a mut [f32],
    /// Bytes of a value that has not come whole.
    part: usize,
    /// The piece that comes.
    incoming: Cursor,
    /// The piece that goes, which came in the phase before.
    outgoing: Cursor,
    /// Bytes that may be sent, and those that were.
    ready: usize,
    sent: usize,
    scale: f32,
}

/// Moves `values`, a part of a vector, around the ring of `links`. `scratch` has [`RECEIVE_BYTES`].
pub(crate) fn pass(
    links: &mut Links,
    operation: &Operation,
    way: (Half, Part),
    values: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), Error> {
    let place = links.place;
    if place.size == 1 {
        return Ok(());
    }
    let (previous, next) =
        ((place.rank + place.size - 1) % place.size, (place.rank + 1) % place.size);
    let ring = Ring::new(place, values.len(), way);
    let first = ring.phases.start;
    let ready = ring.bytes(first).len();
    let scale = operation.reduction.scale(place.size);
    let start = Cursor { phase: first, offset: 0 };
    let mut passage = Passage {
        ring,
        values,
        scratch,
        part: 0,
        incoming: start,
        outgoing: start,
        ready,
        sent: 0,
        scale,
    };
    let (ours, mut theirs) = (header(operation), [0; HEADER_BYTES]);
    let (mut said, mut heard) = (0, 0);
    let mut since = Instant::now();
    loop {
        passage.skip_empty();
        let mut moved = 0;
        if heard < HEADER_BYTES {
            let count = links.receive(operation, previous, &mut theirs[heard..])?;
            (heard, moved) = (heard + count, moved + count);
            if heard == HEADER_BYTES {
                in_step(operation, previous, &theirs)?;
            }
        } else if !passage.has_all() {
            moved += passage.take_in(links, operation, previous)?;
        }
        if said < HEADER_BYTES {
            let count = links.send(operation, next, &ours[said..])?;
            (said, moved) = (said + count, moved + count);
        } else if passage.sent < passage.ready {
            moved += passage.put_out(links, operation, next)?;
        }
        passage.skip_empty();
        let receives = heard < HEADER_BYTES || !passage.has_all();
        let sends = said < HEADER_BYTES || passage.sent < passage.ready;
        let flushed = sends || links.flush(operation, next)?;
        if !receives && !sends && flushed {
            return Ok(());
        }
        if moved > 0 {
            since = Instant::now();
            continue;
        }
        let wants = [
            Want { rank: previous, flags: PollFlags::IN },
            Want { rank: next, flags: PollFlags::OUT },
        ];
        let wanted = match (receives, sends || !flushed) {
            (true, true) => &wants[..],
            (true, false) => &wants[..1],
            (false, _) => &wants[1..],
        };
        links.wait(operation, wanted, since)?;
    }
}

impl Passage<'_> {
    fn has_all(&self) -> bool {
        self.incoming.phase == self.ring.phases.end
    }

    /// Goes on behind pieces that are through; of few values, some have none.
    fn skip_empty(&mut self) {
        let end = self.ring.phases.end;
        let skip = |cursor: &mut Cursor, ahead: usize| {
            while cursor.phase < end && cursor.offset == self.ring.bytes(cursor.phase + ahead).len()
            {
                *cursor = Cursor { phase: cursor.phase + 1, offset: 0 };
            }
        };
        skip(&mut self.incoming, 1);
        skip(&mut self.outgoing, 0);
    }

    /// Takes in what there is of the piece that comes. Returns the bytes.
    fn take_in(
        &mut self,
        links: &mut Links,
        operation: &Operation,
        from: usize,
    ) -> Result<usize, Error> {
        let Cursor { phase, offset } = self.incoming;
        let range = self.ring.bytes(phase + 1);
        let (begin, left) = (range.start + offset, range.len() - offset);
        let usable;
        let count = if self.ring.adds(phase) {
            let scratch: &mut [u8] = bytemuck::cast_slice_mut(self.scratch);
            let most = left.min(RECEIVE_BYTES);
            let count = links.receive(operation, from, &mut scratch[self.part..most])?;
            let filled = self.part + count;
            usable = filled - filled % WIDTH;
            let values = &mut self.values[begin / WIDTH..][..usable / WIDTH];
            let came = &self.scratch[..usable / WIDTH];
            if self.ring.completes(phase) {
                let scale = self.scale;
                let pairs = values.iter_mut().zip(came);
                pairs.for_each(|(value, came)| *value = (*value + came) * scale);
            } else {
                values.iter_mut().zip(came).for_each(|(value, came)| *value += came);
            }
            self.part = filled - usable;
            let scratch: &mut [u8] = bytemuck::cast_slice_mut(self.scratch);
            scratch.copy_within(usable..filled, 0);
            count
        } else {
            let most = left.min(RECEIVE_BYTES);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.values);
            usable = links.receive(operation, from, &mut bytes[begin..begin + most])?;
            usable
        };
        self.incoming.offset += usable;
        // What came in the last phase goes no further.
        if phase + 1 < self.ring.phases.end {
            self.ready += usable;
        }
        Ok(count)
    }

    /// Sends what may be sent of the piece that goes. Returns the bytes.
    fn put_out(
        &mut self,
        links: &mut Links,
        operation: &Operation,
        to: usize,
    ) -> Result<usize, Error> {
        let Cursor { phase, offset } = self.outgoing;
        let range = self.ring.bytes(phase);
        let most = (range.len() - offset).min(self.ready - self.sent).min(SEND_BYTES);
        let begin = range.start + offset;
        let bytes: &[u8] = bytemuck::cast_slice(self.values);
        let count = links.send(operation, to, &bytes[begin..begin + most])?;
        self.outgoing.offset += count;
        self.sent += count;
        Ok(count)
    }
}
