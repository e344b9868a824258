//! What the live weights of one fragment have yet to do.

use std::ops::Range;

use crate::codec::{Encoded, decode_slice, displace_part, numbers, pieces};
use crate::kernel::reduce::{add_scaled, scale, set_scaled};

/// What the live weights of one fragment have yet to do: displacements add up to one.
///
/// A coded one that is alone is kept as its code, and so are numbers that lie in the tensor in which they were
/// sent. Whoever makes it reads its numbers piece by piece, so they are never written down as a whole.
#[derive(Debug, Default)]
pub(crate) struct Displacement {
    /// What is added to x, or what x becomes; of the fragment's length once anything but a code is noted.
    values: Vec<f32>,
    /// In place of the values: a coded difference, and the weight by which x moves by it; or, with weight 1,
    /// a tensor whose numbers can be read where they lie, and which x becomes.
    coded: Option<(Encoded, f32)>,
    /// Elements that are noted: none, or all of the fragment.
    noted: usize,
    /// Whether x becomes the values.
    replaces: bool,
}

impl Displacement {
    /// Nothing, in a buffer whose content means nothing.
    pub(crate) const fn in_buffer(values: Vec<f32>) -> Self {
        Self { values, coded: None, noted: 0, replaces: false }
    }

    /// A move of so many elements whose numbers lie on a device.
    pub(crate) const fn elsewhere(len: usize, replaces: bool) -> Self {
        Self { values: Vec::new(), coded: None, noted: len, replaces }
    }

    /// Elements that are moved.
    pub(crate) const fn len(&self) -> usize {
        self.noted
    }

    pub(crate) fn into_buffer(self) -> Vec<f32> {
        self.values
    }

    /// Room to put the numbers of a code in, should more be added to it.
    pub(crate) fn lend(&mut self, buffer: impl FnOnce() -> Vec<f32>) {
        if self.coded.is_some() && self.values.capacity() == 0 {
            self.values = buffer();
        }
    }

    /// Takes back the room that nothing has come to be in: a code is kept as it is.
    pub(crate) fn unused_buffer(&mut self) -> Option<Vec<f32>> {
        self.coded.is_some().then(|| std::mem::take(&mut self.values))
    }

    pub(crate) const fn is_nothing(&self) -> bool {
        self.noted == 0
    }

    pub(crate) const fn replaces(&self) -> bool {
        self.replaces
    }

    /// What is added to a part of x, and how many times, or what that becomes. `range`: within the fragment,
    /// one of the [`crate::weights::chunks`] of it; `scratch`: at least as long.
    pub(crate) fn part<'a>(
        &'a self,
        range: Range<usize>,
        scratch: &'a mut [f32],
    ) -> (&'a [f32], f32) {
        let Some((coded, weight)) = &self.coded else { return (&self.values[range], 1.0) };
        if let Some(values) = coded.view(range.clone()) {
            return (values, *weight);
        }
        let scratch = &mut scratch[..range.len()];
        (numbers(coded.codec, coded.piece(range), scratch).expect(READABLE), *weight)
    }

    /// Makes the move in `x`, the part of the fragment from element `start` on.
    pub(crate) fn make(&self, start: usize, x: &mut [f32]) {
        let part = start..start + x.len();
        let values = match &self.coded {
            Some((coded, _)) if self.replaces => coded.view(part).expect(READABLE),
            Some((coded, weight)) => {
                displace_part(coded, *weight, start, x).expect(READABLE);
                return;
            }
            None => &self.values[part],
        };
        if self.replaces { x.copy_from_slice(values) } else { add_scaled(x, values, 1.0) }
    }

    /// Notes `weight · delta`, `[len]`.
    pub(crate) fn add(&mut self, delta: &[f32], weight: f32) {
        self.write_down();
        self.values.resize(delta.len(), 0.0);
        if self.is_nothing() {
            set_scaled(&mut self.values, delta, weight);
        } else {
            add_scaled(&mut self.values, delta, weight);
        }
        self.noted = delta.len();
    }

    /// Notes `weight` times a coded difference of the whole fragment, all of which was read before.
    pub(crate) fn add_coded(&mut self, coded: &Encoded, weight: f32) {
        if self.noted == 0 {
            self.coded = Some((coded.clone(), weight));
            self.noted = coded.elements;
            return;
        }
        self.write_down();
        displace_part(coded, weight, 0, &mut self.values[..self.noted]).expect(READABLE);
    }

    /// Notes what x becomes.
    pub(crate) fn replace(&mut self, values: &[f32]) {
        self.coded = None;
        self.values.clear();
        self.values.extend_from_slice(values);
        (self.noted, self.replaces) = (values.len(), true);
    }

    /// Notes that x becomes the numbers of a tensor, which can be read where they lie.
    pub(crate) fn replace_by(&mut self, sent: &Encoded) {
        self.coded = Some((sent.clone(), 1.0));
        self.values.clear();
        (self.noted, self.replaces) = (sent.elements, true);
    }

    /// Puts the numbers of a code in its place, because there is more to be added to them.
    fn write_down(&mut self) {
        let Some((coded, weight)) = self.coded.take() else { return };
        self.values.resize(coded.elements, 0.0);
        for piece in pieces(coded.codec, 0..coded.elements) {
            let values = &mut self.values[piece.clone()];
            if let Some(moved) = coded.view(piece.clone()) {
                set_scaled(values, moved, weight);
            } else {
                decode_slice(coded.codec, coded.piece(piece), values).expect(READABLE);
                scale(values, weight);
            }
        }
    }
}

const READABLE: &str = "a code is noted after it was read";

#[cfg(test)]
mod tests {
    use dnode_protocol::frame::Codec;

    use super::*;
    use crate::codec::{decode, encode};
    use crate::weights::chunks;

    const LEN: usize = 70_000;

    fn numbers(salt: usize) -> Vec<f32> {
        (0..LEN).map(|i| ((i * salt * 31) % 977) as f32 / 977.0 - 0.5).collect()
    }

    /// Noted as numbers, which is what a code has to be like.
    fn by_numbers(moves: &[(&Encoded, f32)]) -> Displacement {
        let mut noted = Displacement::default();
        for (coded, weight) in moves {
            let mut values = vec![0.0; LEN];
            decode(coded, &mut values).unwrap();
            noted.add(&values, *weight);
        }
        noted
    }

    #[test]
    fn a_code_moves_weights_as_its_numbers_do_whole_in_chunks_and_in_any_part() {
        for codec in Codec::CHOICES {
            let (one, two) = (encode(codec, &numbers(3)), encode(codec, &numbers(5)));
            for moves in [&[(&one, 0.3)][..], &[(&one, 0.3), (&two, -0.7)], &[(&two, 1.0); 3]] {
                let (mut coded, plain) = (Displacement::default(), by_numbers(moves));
                moves.iter().for_each(|(code, weight)| coded.add_coded(code, *weight));
                assert_eq!((coded.len(), coded.replaces()), (LEN, false));
                let mut scratch = vec![0.0; LEN];
                for part in chunks(0..LEN) {
                    let moved = |noted: &Displacement, scratch: &mut [f32]| {
                        let mut x = vec![0.0; part.len()];
                        let (delta, weight) = noted.part(part.clone(), scratch);
                        add_scaled(&mut x, delta, weight);
                        x
                    };
                    let want = moved(&plain, &mut []);
                    assert!(moved(&coded, &mut scratch) == want, "{codec}");
                }
                for (start, end) in [(0, LEN), (1, 2), (4095, 9000), (65_535, LEN), (7, 7)] {
                    let (mut x, mut y) = (numbers(7), numbers(7));
                    coded.make(start, &mut x[start..end]);
                    plain.make(start, &mut y[start..end]);
                    assert!(x == y, "{codec} {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn numbers_and_codes_add_up_in_any_order_and_a_replacement_stays_one() {
        let code = encode(Codec::Int8, &numbers(3));
        let mut values = vec![0.0; LEN];
        decode(&code, &mut values).unwrap();
        let (mut first, mut last) = (Displacement::default(), Displacement::default());
        first.add_coded(&code, 0.5);
        first.add(&values, 0.25);
        last.add(&values, 0.5);
        last.add_coded(&code, 0.25);
        assert!(first.part(0..LEN, &mut []) == last.part(0..LEN, &mut []));
        let mut replaced = Displacement::default();
        replaced.add_coded(&code, 0.5);
        replaced.replace(&numbers(7));
        replaced.add_coded(&code, 1.0);
        assert!(replaced.replaces());
        let mut want = numbers(7);
        add_scaled(&mut want, &values, 1.0);
        assert!(replaced.part(0..LEN, &mut []).0 == want);
    }

    #[test]
    fn a_replacement_is_read_where_it_was_sent_until_something_is_added() {
        let (sent, code) = (encode(Codec::F32, &numbers(7)), encode(Codec::Int8, &numbers(3)));
        let mut replaced = Displacement::default();
        replaced.add_coded(&code, 0.5);
        replaced.replace_by(&sent);
        assert_eq!((replaced.len(), replaced.replaces()), (LEN, true));
        let place = sent.bytes.as_ptr_range();
        assert!(place.contains(&replaced.part(5..LEN, &mut []).0.as_ptr().cast()));
        let mut plain = Displacement::default();
        plain.replace(&numbers(7));
        for moves in 0..3 {
            for (start, end) in [(0, LEN), (1, 2), (4095, 9000), (65_535, LEN)] {
                let (mut x, mut y) = (numbers(5), numbers(5));
                replaced.make(start, &mut x[start..end]);
                plain.make(start, &mut y[start..end]);
                assert!(x == y, "{moves} {start}..{end}");
            }
            replaced.add_coded(&code, 0.25);
            plain.add_coded(&code, 0.25);
        }
    }
}
