//! MNIST and data sets of its form: four IDX files of 28×28 images in ten classes.
//!
//! The format is that of Y. LeCun's MNIST page: big-endian u32 magic, count (and rows, columns),
//! then bytes.

use std::path::{Path, PathBuf};

use super::DataError;
use super::file::Source;
use super::images::Images;

/// Rows and columns of an image.
pub(crate) const SIDE: usize = 28;
/// Labels are `0..CLASSES`.
pub(crate) const CLASSES: usize = 10;
/// Most images in a file, a limit against lying headers: 784 MB.
const COUNT_MAX: u32 = 1_000_000;

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;

/// Training and held-out images from the files in `folder`, `.gz` or not.
pub(crate) fn load(folder: &Path) -> Result<(Images, Images), DataError> {
    Ok((part(folder, "train")?, part(folder, "t10k")?))
}

fn part(folder: &Path, name: &str) -> Result<Images, DataError> {
    let pixels = pixels(&find(folder, &format!("{name}-images"), "idx3-ubyte")?)?;
    let path = find(folder, &format!("{name}-labels"), "idx1-ubyte")?;
    let labels = labels(&path)?;
    let (images, found) = (pixels.len() / (SIDE * SIDE), labels.len());
    if images != found {
        return Err(DataError::Content {
            path,
            expected: format!("{images} labels, one for each image of {name}-images"),
            found: format!("{found}"),
        });
    }
    Ok(Images { size: SIDE * SIDE, pixels, labels })
}

/// The file of this name in `folder`, in one of the spellings that are in use.
fn find(folder: &Path, stem: &str, kind: &str) -> Result<PathBuf, DataError> {
    let names = [
        format!("{stem}-{kind}"),
        format!("{stem}-{kind}.gz"),
        format!("{stem}.{kind}"),
        format!("{stem}.{kind}.gz"),
    ];
    let paths = names.iter().map(|name| folder.join(name));
    paths.into_iter().find(|path| path.is_file()).ok_or_else(|| DataError::Missing {
        path: folder.to_owned(),
        expected: format!("a folder with {stem}-{kind} or {stem}-{kind}.gz (data.path)"),
    })
}

fn pixels(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut source =
        Source::open(path, &format!("an IDX file of {SIDE} x {SIDE} images (magic 0x0803)"))?;
    let [magic, count, rows, columns] = header(&mut source)?;
    if magic != IMAGES_MAGIC {
        return Err(source.content(format!("magic {magic:#06x}")));
    }
    if (rows as usize, columns as usize) != (SIDE, SIDE) {
        return Err(source.content(format!("images of {rows} x {columns}")));
    }
    let count = check_count(&mut source, count, "images")?;
    source.expect(format!("{count} images of {SIDE} x {SIDE} pixels, as its header says"));
    source.rest(count * SIDE * SIDE)
}

fn labels(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut source = Source::open(path, "an IDX file of labels (magic 0x0801)")?;
    let [magic, count] = header(&mut source)?;
    if magic != LABELS_MAGIC {
        return Err(source.content(format!("magic {magic:#06x}")));
    }
    let count = check_count(&mut source, count, "labels")?;
    source.expect(format!("{count} labels from 0 to {}, as its header says", CLASSES - 1));
    let labels = source.rest(count)?;
    match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        Some(index) => Err(source.content(format!("label {} at index {index}", labels[index]))),
        None => Ok(labels),
    }
}

fn header<const N: usize>(source: &mut Source<'_>) -> Result<[u32; N], DataError> {
    let mut fields = [0; N];
    for field in &mut fields {
        *field = u32::from_be_bytes(source.array()?);
    }
    Ok(fields)
}

fn check_count(source: &mut Source<'_>, count: u32, what: &str) -> Result<usize, DataError> {
    source.expect(format!("1 to {COUNT_MAX} {what}"));
    if (1..=COUNT_MAX).contains(&count) {
        Ok(count as usize)
    } else {
        Err(source.content(format!("a header that says {count}")))
    }
}

#[cfg(test)]
mod tests;
