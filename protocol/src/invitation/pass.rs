//! What a member of a run with owners keeps: who they are, and its own chain.
//!
//! ```text
//! count u8 │ count × owner [32] │ chain
//! ```

use super::{Chain, take, take_peer};
use crate::PeerId;
use crate::limits::OWNERS_MAX;

/// The owners of a run, and the chain of one of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    owners: Vec<PeerId>,
    chain: Chain,
}

impl Pass {
    /// A pass; owners are sorted, and none counts twice. `None` when there is no owner, or more than
    /// [`OWNERS_MAX`].
    #[must_use]
    pub fn new(mut owners: Vec<PeerId>, chain: Chain) -> Option<Self> {
        owners.sort_unstable();
        owners.dedup();
        (1..=OWNERS_MAX).contains(&owners.len()).then_some(Self { owners, chain })
    }

    /// The owners, sorted.
    #[must_use]
    pub fn owners(&self) -> &[PeerId] {
        &self.owners
    }

    /// The chain.
    #[must_use]
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(self.owners.len()).unwrap_or(u8::MAX)];
        self.owners.iter().for_each(|owner| bytes.extend(owner.public_key()));
        bytes.extend(self.chain.to_bytes());
        bytes
    }

    /// The pass of these bytes, all of them; `None` when they are none.
    #[must_use]
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        Self::read(&mut bytes).filter(|_| bytes.is_empty())
    }

    /// The pass at the beginning of `rest`, which is then what follows.
    pub(crate) fn read(rest: &mut &[u8]) -> Option<Self> {
        let [count] = take(rest)?;
        let count = Some(usize::from(count)).filter(|count| *count <= OWNERS_MAX)?;
        let owners: Option<Vec<_>> = (0..count).map(|_| take_peer(rest)).collect();
        let (owners, chain) = (owners?, Chain::read(rest)?);
        let sorted = owners.windows(2).all(|pair| pair[0] < pair[1]);
        Self::new(owners, chain).filter(|_| sorted)
    }
}
