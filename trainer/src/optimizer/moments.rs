//! Moments of all parameters, in f32 or in blocks of 8 bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::blocks::{BLOCK, Form, decode, encode};
use super::split_off;
use crate::config::MomentFormat;
use crate::kernel::reduce;
use crate::trainer_state::{StateTensor, StateValues};

/// Numbers that are decoded at once, whole blocks: with their gradient and weights they stay in the first
/// two caches.
const AT_ONCE: usize = 16 * BLOCK;

/// One number for each of some parameters.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    form: Form,
    /// How many numbers each tensor has; each begins with a block.
    parts: Vec<usize>,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    F32(Vec<f32>),
    F8 { codes: Vec<u8>, scales: Vec<f32> },
}

/// Which bits are drawn when numbers are rounded: as of [`super::blocks::key`].
pub(super) type Key = u32;

/// The moments that belong to a piece of an update, from the beginning of a block on.
pub(super) enum Piece<'a> {
    F32(&'a mut [f32]),
    F8(Codes<'a>),
}

/// Codes of some numbers that follow each other, with the scales of their blocks.
pub(super) struct Codes<'a> {
    form: Form,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Where the first number lies in the whole vector.
    first: usize,
    key: Key,
}

/// Blocks of parts of these lengths.
fn blocks(parts: &[usize]) -> usize {
    parts.iter().map(|part| part.div_ceil(BLOCK)).sum()
}

/// The blocks that have numbers of `range`: their numbers, and which block it is.
fn blocks_of(parts: &[usize], range: &Range<usize>) -> Vec<(Range<usize>, usize)> {
    let (mut found, mut start, mut block) = (Vec::new(), 0, 0);
    for part in parts {
        let end = start + part;
        for index in range.start.saturating_sub(start) / BLOCK..part.div_ceil(BLOCK) {
            let from = start + index * BLOCK;
            let of = from..end.min(from + BLOCK);
            if of.start >= range.end {
                return found;
            }
            if of.end > range.start && !range.is_empty() {
                found.push((of, block + index));
            }
        }
        (start, block) = (end, block + part.div_ceil(BLOCK));
    }
    found
}

/// Where `a` and `b` overlap, counted from the beginning of each.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let (start, end) = (a.start.max(b.start), a.end.min(b.end));
    (start - a.start..end - a.start, start - b.start..end - b.start)
}

impl Moments {
    /// Zeros, for tensors of these lengths.
    pub(super) fn zeros(format: MomentFormat, form: Form, parts: Vec<usize>) -> Self {
        let count = parts.iter().sum();
        let values = match format {
            MomentFormat::F32 => Values::F32(vec![0.0; count]),
            MomentFormat::F8 => {
                Values::F8 { codes: vec![0; count], scales: vec![0.0; blocks(&parts)] }
            }
        };
        Self { form, parts, values }
    }

    /// Bytes of such zeros.
    pub(super) fn bytes(format: MomentFormat, parts: &[usize]) -> usize {
        let count: usize = parts.iter().sum();
        match format {
            MomentFormat::F32 => size_of::<f32>() * count,
            MomentFormat::F8 => count + size_of::<f32>() * blocks(parts),
        }
    }

    pub(super) const fn len(&self) -> usize {
        match &self.values {
            Values::F32(values) => values.len(),
            Values::F8 { codes, .. } => codes.len(),
        }
    }

    /// All numbers.
    pub(super) fn to_vec(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.len()];
        self.read(0..numbers.len(), &mut numbers);
        numbers
    }

    /// Copies the numbers of `range`.
    pub(super) fn read(&self, range: Range<usize>, out: &mut [f32]) {
        let (codes, scales) = match &self.values {
            Values::F32(values) => return out.copy_from_slice(&values[range]),
            Values::F8 { codes, scales } => (codes, scales),
        };
        let mut numbers = [0.0; BLOCK];
        for (of, block) in blocks_of(&self.parts, &range) {
            let numbers = &mut numbers[..of.len()];
            decode(self.form, &codes[of.clone()], &scales[block..=block], numbers);
            let (from, to) = overlap(&of, &range);
            out[to].copy_from_slice(&numbers[from]);
        }
    }

    /// Moves the numbers of `range` by `weight · delta`.
    pub(super) fn displace(
        &mut self,
        range: &Range<usize>,
        (delta, weight): (&[f32], f32),
        key: Key,
    ) {
        let (codes, scales) = match &mut self.values {
            Values::F32(values) => {
                return reduce::add_scaled(&mut values[range.clone()], delta, weight);
            }
            Values::F8 { codes, scales } => (codes, scales),
        };
        let mut numbers = [0.0; BLOCK];
        for (of, block) in blocks_of(&self.parts, range) {
            let numbers = &mut numbers[..of.len()];
            let (codes, scale) = (&mut codes[of.clone()], &mut scales[block..=block]);
            decode(self.form, codes, scale, numbers);
            let (to, from) = overlap(&of, range);
            reduce::add_scaled(&mut numbers[to], &delta[from], weight);
            encode(self.form, numbers, (of.start, key), (codes, scale));
        }
    }

    /// All of them, to be cut into pieces.
    pub(super) fn whole(&mut self, key: Key) -> Piece<'_> {
        match &mut self.values {
            Values::F32(values) => Piece::F32(values),
            Values::F8 { codes, scales } => {
                Piece::F8(Codes { form: self.form, codes, scales, first: 0, key })
            }
        }
    }

    /// Appends the tensors of a saved state: numbers under `name`, or codes under it, and their scales.
    pub(super) fn save<'a>(&'a self, name: &str, tensors: &mut Vec<StateTensor<'a>>) {
        match &self.values {
            Values::F32(values) => tensors.push(StateTensor::new(name, values.as_slice())),
            Values::F8 { codes, scales } => {
                tensors.push(StateTensor::new(name, codes.as_slice()));
                tensors.push(StateTensor::new(scales_of(name), scales.as_slice()));
            }
        }
    }

    /// The moments that [`Moments::save`] of those of this layout, in either format, left in `saved`, which
    /// loses them. Numbers become those nearby that this format has. `None` when they do not fit.
    pub(super) fn restored(
        &self,
        name: &str,
        saved: &mut BTreeMap<String, StateValues<'_>>,
    ) -> Option<Self> {
        let values = saved.remove(name).filter(|values| values.len() == self.len())?;
        let values = match values {
            StateValues::F32(values) => Values::F32(values.into_owned()),
            StateValues::U8(codes) => {
                let StateValues::F32(scales) = saved.remove(&scales_of(name))? else { return None };
                if scales.len() != blocks(&self.parts) {
                    return None;
                }
                Values::F8 { codes: codes.into_owned(), scales: scales.into_owned() }
            }
        };
        let same = matches!(
            (&values, &self.values),
            (Values::F32(_), Values::F32(_)) | (Values::F8 { .. }, Values::F8 { .. })
        );
        let found = Self { form: self.form, parts: self.parts.clone(), values };
        if same {
            return Some(found);
        }
        let format = match &self.values {
            Values::F32(_) => MomentFormat::F32,
            Values::F8 { .. } => MomentFormat::F8,
        };
        let mut own = Self::zeros(format, self.form, self.parts.clone());
        own.displace(&(0..self.len()), (&found.to_vec(), 1.0), 0);
        Some(own)
    }
}

/// What the scales of the codes `name` are called.
fn scales_of(name: &str) -> String {
    format!("{name}.scales")
}

impl Piece<'_> {
    /// The first `length` of these, or all, which then begin behind; `length` ends a tensor, or a block.
    pub(super) fn split_off(&mut self, length: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(split_off(values, length)),
            Self::F8(all) => {
                let codes = split_off(&mut all.codes, length);
                let scales = split_off(&mut all.scales, codes.len().div_ceil(BLOCK));
                let first = all.first;
                all.first += codes.len();
                Self::F8(Codes { codes, scales, first, ..*all })
            }
        }
    }
}

impl Codes<'_> {
    /// Those of `range` that there are, which begins with a block.
    fn within(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.codes.len())..range.end.min(self.codes.len())
    }

    /// Writes the numbers of `range` to the beginning of `out`, which is returned.
    fn load<'o>(&self, range: &Range<usize>, out: &'o mut [f32]) -> &'o mut [f32] {
        let range = self.within(range);
        let (out, scales) = (&mut out[..range.len()], &self.scales[range.start.div_ceil(BLOCK)..]);
        decode(self.form, &self.codes[range], scales, out);
        out
    }

    /// Puts other numbers in the place of those of `range`.
    fn store(&mut self, range: &Range<usize>, values: &[f32]) {
        let range = self.within(range);
        let (values, place) = (&values[..range.len()], (self.first + range.start, self.key));
        let scales = &mut self.scales[range.start.div_ceil(BLOCK)..];
        encode(self.form, values, place, (&mut self.codes[range], scales));
    }
}

/// Calls `update` with the first and second moments of `length` parameters, some parameters at a time: which
/// they are, and their moments, which it changes. There may be no second ones. Both are of one format.
pub(super) fn each(
    length: usize,
    moments: (Piece<'_>, Piece<'_>),
    mut update: impl FnMut(Range<usize>, &mut [f32], &mut [f32]),
) {
    let (mut first, mut second) = match moments {
        (Piece::F32(first), Piece::F32(second)) => return update(0..length, first, second),
        (Piece::F8(first), Piece::F8(second)) => (first, second),
        (Piece::F32(_), Piece::F8(_)) | (Piece::F8(_), Piece::F32(_)) => {
            unreachable!("an optimizer keeps both moments in its one format")
        }
    };
    let (mut of_first, mut of_second) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
    for start in (0..length).step_by(AT_ONCE) {
        let range = start..length.min(start + AT_ONCE);
        let one = first.load(&range, &mut of_first);
        let other = second.load(&range, &mut of_second);
        update(range.clone(), one, other);
        first.store(&range, one);
        second.store(&range, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [usize; 4] = [300, 0, 256, 5];

    fn filled(format: MomentFormat) -> Moments {
        let mut moments = Moments::zeros(format, Form::Signed, PARTS.to_vec());
        let values: Vec<f32> = (0..moments.len()).map(|i| (i % 37) as f32 - 18.0).collect();
        moments.displace(&(0..values.len()), (&values, 1.0), 7);
        moments
    }

    #[test]
    fn a_range_is_read_and_moved_alone_wherever_tensors_end() {
        for format in [MomentFormat::F32, MomentFormat::F8] {
            let mut moments = filled(format);
            let before = moments.to_vec();
            for range in [0..1, 255..257, 290..310, 299..301, 300..556, 550..561, 400..400, 0..561]
            {
                let mut read = vec![f32::NAN; range.len()];
                moments.read(range.clone(), &mut read);
                assert_eq!(read, before[range], "{format:?}");
            }
            moments.displace(&(299..302), (&[4.0; 3], 2.0), 9);
            for (index, (before, after)) in before.iter().zip(moments.to_vec()).enumerate() {
                let want = if (299..302).contains(&index) { before + 8.0 } else { *before };
                let most = if format == MomentFormat::F32 { 0.0 } else { 0.13 * want.abs() + 1e-3 };
                assert!((after - want).abs() <= most, "{format:?} {index}: {after} {want}");
            }
        }
    }

    #[test]
    fn pieces_are_the_whole() {
        for format in [MomentFormat::F32, MomentFormat::F8] {
            let (mut whole, mut parts) = (filled(format), filled(format));
            let of = |m: &mut [f32], at: Range<usize>| {
                m.iter_mut().zip(at).for_each(|(m, i)| *m = 0.5 * *m + i as f32);
            };
            let none = || Moments::zeros(format, Form::Unsigned, vec![0]);
            let (mut piece, mut behind) = (parts.whole(3), 0);
            for length in [256, 44, 256, 5] {
                let mut none = none();
                each(length, (piece.split_off(length), none.whole(0)), |at, m, second| {
                    assert!(second.is_empty());
                    of(m, behind + at.start..behind + at.end);
                });
                behind += length;
            }
            let (mut piece, mut behind) = (whole.whole(3), 0);
            for length in [300, 256, 5] {
                let mut none = none();
                each(length, (piece.split_off(length), none.whole(0)), |at, m, _| {
                    of(m, behind + at.start..behind + at.end);
                });
                behind += length;
            }
            assert_eq!(whole.to_vec(), parts.to_vec(), "{format:?}");
        }
    }

    #[test]
    fn either_format_takes_what_the_other_saved() {
        let formats = [MomentFormat::F32, MomentFormat::F8];
        for (from, to) in formats.into_iter().flat_map(|from| formats.map(|to| (from, to))) {
            let saved = filled(from);
            let mut tensors = Vec::new();
            saved.save("m", &mut tensors);
            let mut tensors: BTreeMap<_, _> =
                tensors.into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
            let own = Moments::zeros(to, Form::Signed, PARTS.to_vec());
            let taken = own.restored("m", &mut tensors).unwrap();
            assert!(tensors.is_empty());
            for (index, (taken, saved)) in taken.to_vec().iter().zip(saved.to_vec()).enumerate() {
                let rounds = (from, to) == (MomentFormat::F32, MomentFormat::F8);
                let most = if rounds { 0.13 * saved.abs() } else { 0.0 };
                assert!((taken - saved).abs() <= most, "{from:?} {to:?} {index}: {taken} {saved}");
            }
        }
        let mut short = BTreeMap::from([("m".to_owned(), vec![0_u8; 561].into())]);
        short.insert("m.scales".to_owned(), vec![0.0; 3].into());
        assert!(filled(MomentFormat::F8).restored("m", &mut short).is_none());
    }
}
