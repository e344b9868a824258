//! UCX: the same connections and rings through whatever it finds between two ranks, which is RDMA
//! where the hardware has it.
//!
//! Only its library is needed, when a group is formed, and nothing to build. It trusts everybody who
//! reaches its ports, as TCP in plain does.

mod api;
mod link;
mod worker;

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use crate::abort::Abort;
use crate::collective::{Backend, Collective, Place};
use crate::error::Error;
use crate::limits::{UCX_ADDRESS_MAX, UCX_PROBE};
use crate::links::{Link, Links};
use crate::sockets::Sockets;
use link::UcxLink;
use worker::Worker;

/// Where the kernel lists devices for RDMA.
const DEVICES: &str = "/sys/class/infiniband";
/// Words by which a rank tells its address: its length, then the bytes.
const WORDS: usize = 1 + UCX_ADDRESS_MAX / size_of::<f32>();

/// Whether the machine has a device for RDMA.
pub(crate) fn has_rdma() -> bool {
    std::fs::read_dir(DEVICES).is_ok_and(|mut devices| devices.next().is_some())
}

/// Whether UCX can be used here; the error is what is missing, and how to get it.
///
/// # Errors
/// One line.
pub fn ucx_is_there() -> Result<(), String> {
    api::Api::get().map(|_| ())
}

/// Replaces the connections of a group by those of UCX, where all ranks can: a group of `Sockets` in
/// any case, and why it is as it was. All ranks call this at the same time.
///
/// # Errors
/// [`Error`] of the connections that the group has.
pub fn over_ucx(mut group: Sockets) -> Result<(Sockets, Option<String>), Error> {
    let place = group.place();
    let worker = Worker::new(place.size);
    let address = worker.as_ref().map_or(Ok(Vec::new()), Worker::address);
    let addresses = tell(&mut group, address.as_deref().unwrap_or_default())?;
    let missing = addresses.iter().position(Vec::is_empty);
    let (worker, why) = match (worker, address) {
        (Err(why), _) | (_, Err(why)) => (None, Some(why)),
        (Ok(worker), Ok(_)) => {
            (Some(worker), missing.map(|rank| format!("rank {rank} has no UCX")))
        }
    };
    if let Some(why) = why.as_ref().filter(|_| missing.is_some()) {
        return Ok((group, Some(why.clone())));
    }
    let links = worker.ok_or_else(|| why.unwrap_or_default()).and_then(|worker| {
        let worker = Arc::new(Mutex::new(worker));
        let connect = |(other, address): (usize, &Vec<u8>)| {
            let ranks = (place.rank, other);
            let way = (&address[..], group.links.is_near(other));
            (other != place.rank)
                .then(|| UcxLink::connect(&worker, ranks, place.size, way))
                .transpose()
        };
        addresses.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()
    });
    let channels: Vec<_> =
        links.iter().flatten().map(|link| link.as_ref().map(UcxLink::channel)).collect();
    // Whether it carries anything is found out before the connections beside it are given away.
    let fast = links.and_then(|links| meet(place, links, group.links.abort.clone()));
    let mut fast = match group.vote(fast, "another rank cannot reach everybody by UCX")? {
        Ok(fast) => fast,
        Err(why) => return Ok((group, Some(why))),
    };
    for (rank, channel) in channels.iter().enumerate() {
        let Some(channel) = channel else { continue };
        let socket = group.links.socket(rank)?.as_fd().try_clone_to_owned().map_err(Error::Form)?;
        // It was empty.
        let _ = channel.set(socket);
    }
    fast.has_network = group.has_network;
    fast.links.take_words(&group.links);
    Ok((fast, None))
}

/// The addresses of all ranks, each in the room of the longest; empty of one that has none.
fn tell(group: &mut Sockets, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let Place { rank, size } = group.place();
    let mut words = vec![0.0_f32; WORDS * size];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words[WORDS * rank..][..WORDS]);
    // The bits of values are moved and not computed with.
    bytes[..4].copy_from_slice(&u32::try_from(own.len()).unwrap_or(0).to_le_bytes());
    bytes[4..4 + own.len()].copy_from_slice(own);
    // One after the other, so that who is waited for is the one that is silent.
    for (root, words) in words.chunks_mut(WORDS).enumerate() {
        group.broadcast(root, words)?;
    }
    Ok(words.chunks(WORDS).map(address).collect())
}

/// The address in the words of one rank, in the room of the longest; empty where it tells none.
fn address(words: &[f32]) -> Vec<u8> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let (length, rest) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(0);
    // UCX reads as far as an address itself says, so all its room stays behind it.
    let is_one = (1..=rest.len()).contains(&length);
    if is_one { rest.to_vec() } else { Vec::new() }
}

/// A group of these links in which everybody has heard of everybody.
fn meet(place: Place, links: Vec<Option<UcxLink>>, abort: Abort) -> Result<Sockets, String> {
    let boxed = |link: Option<UcxLink>| link.map(|link| Box::new(link) as Box<dyn Link>);
    let links = links.into_iter().map(boxed).collect();
    let mut links = Links::new(place, links, UCX_PROBE).map_err(|error| error.to_string())?;
    links.abort = abort;
    let mut group = Sockets::with(Backend::Ucx, links);
    // Who has come through the second one knows that the first is behind everybody, and so are the
    // connections that it has made, which need both ends.
    for _ in 0..2 {
        group.barrier().map_err(|error| format!("UCX: {error}"))?;
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_words_are_an_address_with_all_its_room_or_none() {
        let told = |length: usize| {
            let mut bytes = vec![0xa5; WORDS * size_of::<f32>()];
            bytes[..4].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
            bytes
        };
        let first = [0, 1, 200, UCX_ADDRESS_MAX, UCX_ADDRESS_MAX + 1].map(told);
        let is_one = first.each_ref().map(|bytes| !address(&words(bytes)).is_empty());
        assert_eq!(is_one, [false, true, true, true, false]);
        assert_eq!(address(&[]), [0; 0]);
        dnode_mutate::check_made_inputs(&first, 2000, |bytes| {
            let words = words(bytes);
            let address = address(&words);
            let length = u32::from_le_bytes(words[0].to_le_bytes());
            let fits = (1..=UCX_ADDRESS_MAX).contains(&usize::try_from(length).unwrap());
            assert_eq!(address.len(), if fits { UCX_ADDRESS_MAX } else { 0 });
            let all: &[u8] = bytemuck::cast_slice(&words);
            assert!(address.is_empty() || address == all[4..]);
        });
    }

    /// What one rank has told, of which these are the first bytes.
    fn words(bytes: &[u8]) -> Vec<f32> {
        let mut words = vec![0.0_f32; WORDS];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let length = bytes.len().min(room.len());
        room[..length].copy_from_slice(&bytes[..length]);
        words
    }
}
