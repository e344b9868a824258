//! Which contributions a replica of delta-set contains, as integers of a checkpoint.
//!
//! One tensor names the authors, sorted; the other has a row for each fragment: of each author the
//! number up to which the fragment contains everything, 0 for nothing. `F` fragments, `A` authors.

use std::collections::BTreeSet;

use dnode_protocol::limits::VERSIONS_MAX;
use dnode_protocol::{Origin, PeerId, Versions};

/// Words of an author: four of its peer's key, little-endian, and its incarnation.
const WORDS: usize = 5;
/// Authors of all fragments together: those of one, and as many again where fragments differ (guess:
/// fragments differ by what is on its way).
const AUTHORS_MAX: usize = 2 * VERSIONS_MAX;

/// Bytes that both tensors of so many fragments have at most.
pub(super) const fn bytes_max(fragments: usize) -> usize {
    8 * AUTHORS_MAX * (WORDS + fragments)
}

/// What every fragment contains, in integers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// `[A, WORDS]`.
    pub(super) authors: Vec<u64>,
    /// `[F, A]`.
    pub(super) numbers: Vec<u64>,
}

impl Contents {
    /// In integers; the error says what there is too much of.
    pub(super) fn write(fragments: &[Versions]) -> Result<Self, String> {
        let entries = fragments.iter().flat_map(|versions| &versions.entries);
        let origins: BTreeSet<Origin> = entries.map(|(origin, _)| *origin).collect();
        let most = fragments.iter().map(|versions| versions.entries.len()).max().unwrap_or(0);
        if most > VERSIONS_MAX || origins.len() > AUTHORS_MAX {
            return Err(format!(
                "contributions of {} authors, {most} of them in one fragment: at most {AUTHORS_MAX} and {VERSIONS_MAX} are kept",
                origins.len()
            ));
        }
        let number = |versions: &Versions, origin: &Origin| {
            let at = versions.entries.binary_search_by_key(origin, |(known, _)| *known);
            at.map_or(0, |index| versions.entries[index].1)
        };
        let rows = fragments.iter();
        let numbers = rows.flat_map(|row| origins.iter().map(move |origin| number(row, origin)));
        Ok(Self { numbers: numbers.collect(), authors: origins.iter().flat_map(words).collect() })
    }

    /// The contents of `fragments` fragments, if these are what [`Contents::write`] makes of such; the
    /// error says what was expected and what was found.
    pub(super) fn read(&self, fragments: usize) -> Result<Vec<Versions>, String> {
        let (authors, rest) = self.authors.as_chunks::<WORDS>();
        let origins: Vec<Origin> = authors.iter().map(origin).collect();
        let count = origins.len();
        if !rest.is_empty() || count > AUTHORS_MAX {
            let found = self.authors.len();
            return Err(format!(
                "expected at most {AUTHORS_MAX} authors of {WORDS} words, found {found} words"
            ));
        }
        if !origins.is_sorted_by(|one, next| one < next) {
            return Err("expected authors in order, found another one or one twice".to_owned());
        }
        if self.numbers.len() != fragments * count {
            let found = self.numbers.len();
            return Err(format!(
                "expected numbers of {count} authors in {fragments} fragments, found {found} numbers"
            ));
        }
        let row = |index: usize| {
            let numbers = self.numbers[index * count..][..count].iter();
            let entries = origins.iter().copied().zip(numbers.copied());
            let entries: Vec<_> = entries.filter(|(_, number)| *number > 0).collect();
            if entries.len() > VERSIONS_MAX {
                let found = entries.len();
                return Err(format!(
                    "expected at most {VERSIONS_MAX} authors in a fragment, found {found}"
                ));
            }
            Ok(Versions { entries })
        };
        (0..fragments).map(row).collect()
    }
}

fn words(origin: &Origin) -> [u64; WORDS] {
    let key = origin.peer.public_key().as_chunks().0;
    let mut words = [origin.incarnation; WORDS];
    words.iter_mut().zip(key).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    words
}

fn origin(words: &[u64; WORDS]) -> Origin {
    let mut key = [0; 32];
    let bytes = key.as_chunks_mut().0.iter_mut();
    bytes.zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    Origin { peer: PeerId::from_public_key(key), incarnation: words[WORDS - 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(key: u8, incarnation: u64) -> Origin {
        Origin { peer: PeerId::from_public_key([key; 32]), incarnation }
    }

    fn contents(rows: &[&[(Origin, u64)]]) -> Vec<Versions> {
        rows.iter().map(|entries| Versions { entries: entries.to_vec() }).collect()
    }

    #[test]
    fn what_fragments_contain_survives_being_written() {
        let (a, b, c) = (author(1, 1 << 24), author(1, 2 << 24), author(200, u64::MAX));
        let rows: [&[(Origin, u64)]; 3] = [&[(a, 7), (c, 1)], &[], &[(b, u64::MAX), (c, 3)]];
        for rows in [&rows[..], &rows[..1], &rows[1..2], &[]] {
            let written = Contents::write(&contents(rows)).unwrap();
            assert_eq!(written.read(rows.len()).unwrap(), contents(rows));
        }
    }

    #[test]
    fn what_no_replica_contains_is_refused_with_a_reason() {
        let good = Contents::write(&contents(&[&[(author(1, 1), 7), (author(2, 1), 9)]])).unwrap();
        let check = |change: fn(&mut Contents), fragments, want: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let error = bad.read(fragments).unwrap_err();
            assert!(error.contains(want) && !error.contains('\n'), "{error}");
        };
        check(|_| (), 2, "found 2 numbers");
        check(|bad| bad.numbers.truncate(1), 1, "found 1 numbers");
        check(|bad| bad.authors.truncate(9), 1, "found 9 words");
        check(|bad| bad.authors.copy_within(5.., 0), 1, "found another one or one twice");
        check(|bad| bad.authors.resize(5 * (AUTHORS_MAX + 1), 0), 1, "at most 1024 authors");
        let many = |count: u64| (0..count).map(|start| (author(1, start), 1)).collect::<Vec<_>>();
        let (most, more) = (many(VERSIONS_MAX as u64), many(VERSIONS_MAX as u64 + 1));
        assert!(Contents::write(&contents(&[&most])).unwrap().read(1).is_ok());
        assert!(Contents::write(&contents(&[&more])).unwrap_err().contains("513 authors"));
        let mut full = Contents::write(&contents(&[&most, &more[1..]])).unwrap();
        assert!(full.read(2).is_ok());
        full.numbers.fill(1);
        assert!(full.read(2).unwrap_err().contains("found 513"));
    }

    #[test]
    fn any_words_are_read_or_refused_without_a_panic() {
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for _ in 0..2000 {
            let mut some = |most| (0..next() % most).map(|_| next() % 3).collect::<Vec<_>>();
            let contents = Contents { authors: some(16), numbers: some(8) };
            for fragments in 0..4 {
                if let Ok(read) = contents.read(fragments) {
                    assert_eq!(read.len(), fragments);
                }
            }
        }
    }
}
