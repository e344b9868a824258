//! A vector that is reduced while the rest of it is still computed.

use std::sync::mpsc::sync_channel;

use crate::collective::{Collective, Part, Reduction};
use crate::error::Error;

/// Parts that wait while one is reduced; who has more waits (guess: a model of as many layers).
const PARTS_MAX: usize = 256;

/// All-reduces a vector of `whole` elements part by part on another thread, while `produce` makes it: it
/// hands over each part once, with its first element, all ranks the same ones in the same order.
/// Returns what `produce` does, and how the operations ended. The bits are those of one all-reduce.
pub fn all_reduce_while<'a, R>(
    group: &mut dyn Collective,
    (whole, reduction): (usize, Reduction),
    produce: impl FnOnce(&mut (dyn FnMut(usize, &'a mut [f32]) + Send)) -> R,
) -> (R, Result<(), Error>) {
    let (hand, parts) = sync_channel::<(usize, &'a mut [f32])>(PARTS_MAX);
    std::thread::scope(|scope| {
        let reduce = scope.spawn(move || {
            parts.into_iter().try_for_each(|(offset, values)| {
                group.all_reduce_part(values, Part { offset, whole }, reduction)
            })
        });
        // Who hands over to a group that has failed hears of that at the end.
        let produced = produce(&mut move |offset, values| drop(hand.send((offset, values))));
        (produced, reduce.join().unwrap_or(Err(Error::Ended)))
    })
}
