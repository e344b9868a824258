//! The embedded data set: 1,797 handwritten digits of 8×8 pixels.
//!
//! Source and licence: `trainer/data/README.md`.

use std::path::Path;

use super::DataError;
use super::file::Source;
use super::images::Images;
use super::order::{Permutation, Purpose};

/// Rows and columns of an image.
pub(crate) const SIDE: usize = 8;
/// Labels are `0..CLASSES`.
pub(crate) const CLASSES: usize = 10;

const COUNT: usize = 1797;
const PIXEL_MAX: u8 = 16;
/// Seed of the split, the same in every run, so that results of runs can be compared.
const SPLIT_SEED: u64 = 0;

/// Records of 64 pixels `0..=16` and a label, gzip.
static FILE: &[u8] = include_bytes!("../../data/digits.bin.gz");

/// Training and held-out images.
///
/// One fifth of every class is held out, chosen by a fixed seed that has nothing to do with the
/// run's.
pub(crate) fn load() -> Result<(Images, Images), DataError> {
    let all = decode(FILE)?;
    let (train, held_out) = split(&all);
    Ok((all.select(train.into_iter()), all.select(held_out.into_iter())))
}

/// Which records of the file are held out, in its order.
pub(crate) fn held_out() -> Result<Vec<usize>, DataError> {
    Ok(split(&decode(FILE)?).1)
}

/// Records to train on and held-out ones, in the file's order.
fn split(all: &Images) -> (Vec<usize>, Vec<usize>) {
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for class in 0..CLASSES {
        let of_class: Vec<usize> =
            (0..COUNT).filter(|&index| usize::from(all.labels[index]) == class).collect();
        let order = Permutation::new(of_class.len(), Purpose::Split, &[SPLIT_SEED, class as u64]);
        let shuffled = (0..of_class.len()).map(|at| of_class[order.apply(at)]);
        let test = (of_class.len() + 2) / 5;
        held_out.extend(shuffled.clone().take(test));
        train.extend(shuffled.skip(test));
    }
    // In the file's order again: a prefix of the held-out images should hold every class.
    train.sort_unstable();
    held_out.sort_unstable();
    (train, held_out)
}

fn decode(file: &[u8]) -> Result<Images, DataError> {
    let size = SIDE * SIDE;
    let expected = format!("{COUNT} images of {SIDE} x {SIDE} pixels");
    let mut source = Source::gzip(file, Path::new("(built-in digits)"), &expected);
    let bytes = source.rest(COUNT * (size + 1))?;
    let mut images = Images {
        size,
        pixels: Vec::with_capacity(COUNT * size),
        labels: Vec::with_capacity(COUNT),
    };
    for record in bytes.chunks_exact(size + 1) {
        let (pixels, label) = record.split_at(size);
        if pixels.iter().any(|&pixel| pixel > PIXEL_MAX) || usize::from(label[0]) >= CLASSES {
            return Err(source.content("a pixel above 16 or a label above 9".to_owned()));
        }
        images.pixels.extend_from_slice(pixels);
        images.labels.push(label[0]);
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_digits_are_the_published_ones() {
        let all = decode(FILE).unwrap();
        let mut counts = [0; 10];
        all.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
        // Class counts of the 1,797 test digits in the data set's own description.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!(all.pixels[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
    }

    #[test]
    fn a_fifth_of_every_class_is_held_out_and_nothing_is_lost() {
        let (train, held_out) = load().unwrap();
        assert_eq!(train.labels.len() + held_out.labels.len(), COUNT);
        for class in 0..10 {
            let count = |images: &Images| images.labels.iter().filter(|&&l| l == class).count();
            let (train, test) = (count(&train), count(&held_out));
            assert!((5 * test).abs_diff(train + test) <= 2, "class {class}: {train} + {test}");
        }
        let sum = |images: &Images| images.pixels.iter().map(|&p| u64::from(p)).sum::<u64>();
        assert_eq!(sum(&train) + sum(&held_out), sum(&decode(FILE).unwrap()));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        assert!(decode(&FILE[..FILE.len() / 2]).is_err());
        let mut flipped = FILE.to_vec();
        flipped[FILE.len() / 2] ^= 0x40;
        assert!(decode(&flipped).is_err());
    }
}
