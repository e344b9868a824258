//! Groups of ranks over sockets within a process; one operation of a group ends at some ranks only.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use dnode_collective::{
    Abort, Backend, Collective, Error, Link, Meter, Part, Place, Reduction, Sockets,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// An operation that fails at all ranks but some, after all have done its work.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Operations of the group before it.
    pub(super) operation: usize,
    /// Ranks at which it ends without an error.
    pub(super) ends_at: Vec<usize>,
}

/// A rank's end of a group.
#[derive(Debug)]
pub(super) struct Member {
    /// `None` once an operation has failed here.
    group: Option<Sockets>,
    place: Place,
    /// Operations left until the fault; whether that one ends here; where all ranks wait for each
    /// other.
    fault: Option<(usize, bool, Arc<Barrier>)>,
    /// Whether the group claims that a network is between its ranks.
    pub(super) far: bool,
}

/// A group of these ranks, in order.
pub(super) fn group(ranks: &[usize], fault: Option<&Fault>) -> Vec<Member> {
    let size = ranks.len();
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for (one, other) in (0..size).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        links[one][other] = Some(Box::new(near));
        links[other][one] = Some(Box::new(far));
    }
    let barrier = Arc::new(Barrier::new(size));
    let members = links.into_iter().zip(ranks).enumerate().map(|(index, (links, rank))| {
        let place = Place { rank: index, size };
        let fault = fault
            .map(|fault| (fault.operation, fault.ends_at.contains(rank), Arc::clone(&barrier)));
        let group = Some(Sockets::new(place, links, PATIENCE).unwrap());
        Member { group, place, fault, far: false }
    });
    members.collect()
}

impl Member {
    fn operate(
        &mut self,
        values: &mut [f32],
        run: impl FnOnce(&mut Sockets, &mut [f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let group = self.group.as_mut().ok_or(Error::Ended)?;
        let result = run(group, values);
        let Some((left, ends, all)) = &mut self.fault else { return result };
        if *left > 0 {
            *left -= 1;
            return result;
        }
        all.wait();
        let ends = *ends;
        self.fault = None;
        if ends {
            return result;
        }
        self.group = None;
        values.fill(f32::NAN);
        Err(Error::Ended)
    }
}

impl Collective for Member {
    fn place(&self) -> Place {
        self.place
    }

    fn backend(&self) -> Backend {
        Backend::Tcp
    }

    fn has_network(&self) -> bool {
        self.far
    }

    fn abort(&self) -> Abort {
        Abort::default()
    }

    fn meter(&self) -> Meter {
        Meter::default()
    }

    fn set_patience(&mut self, _: Duration) {}

    fn all_reduce_part(
        &mut self,
        values: &mut [f32],
        part: Part,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.operate(values, |group, values| group.all_reduce_part(values, part, reduction))
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.operate(values, Sockets::all_gather)
    }

    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        self.operate(values, |group, values| group.broadcast(root, values))
    }

    fn reduce_scatter(&mut self, _: &mut [f32], _: Reduction) -> Result<(), Error> {
        Err(Error::Ended)
    }

    fn reduce(&mut self, _: usize, _: &mut [f32], _: Reduction) -> Result<(), Error> {
        Err(Error::Ended)
    }

    fn scatter(&mut self, _: usize, _: &mut [f32]) -> Result<(), Error> {
        Err(Error::Ended)
    }

    fn all_to_all(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), Error> {
        Err(Error::Ended)
    }

    fn barrier(&mut self) -> Result<(), Error> {
        Err(Error::Ended)
    }
}
