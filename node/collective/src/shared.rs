//! Collectives through memory that all processes of a group on one host have mapped.
//!
//! Values travel in chunks. In a chunk every rank stages its values of all pieces (its window of
//! each), reduces its own piece where all have staged, writes the result, and takes the results of
//! the others: each byte is written once and read once beside the reduction, in memory that stays in
//! the cache. Two buffers take turns, so that a rank stages the next chunk before it waits for the
//! present one. Ranks tell each other how far they are by counters, and sleep on them (futex(2)).
//!
//! Nothing that another process writes is used but as a value, or compared with a counter: it can
//! make results wrong, or the operation fail, and no more.

mod layout;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dnode_direct::{Access, Mapping};
use rustix::event::Timespec;
use rustix::thread::futex;

use crate::abort::Abort;
use crate::collective::{Backend, Code, Collective, Operation, Part, Place, Reduction, piece};
use crate::error::Error;
use crate::header::{HEADER_BYTES, header};
use crate::limits::{BUFFERS, FLAT_ELEMENTS, FLAT_RANKS, LOOK};
use crate::links::{Link, in_step};
use crate::meter::Meter;
use crate::sockets::Sockets;
use layout::{Layout, WORDS};

/// Bytes of a value.
const WIDTH: usize = size_of::<f32>();
/// Bytes between two words, so that ranks do not share cache lines.
const LINE: usize = 64;
/// Values that are reduced at once: they stay in the nearest cache.
const BLOCK: usize = 4 << 10;
/// How often a rank looks again before it sleeps, when every rank has a processor of its own.
const SPINS: u32 = 2000;
/// How often it lets others run first, when not.
const YIELDS: u32 = 4;

/// How far a rank is: chunks that it has done something with.
#[derive(Clone, Copy)]
enum Done {
    Staged,
    Reduced,
    Taken,
}

/// A group of processes of one host; every element is added in the order of ranks, wherever it lies.
#[derive(Debug)]
pub struct SharedMemory {
    /// For what moves nothing that is reduced, and to notice the end of a process.
    sockets: Sockets,
    map: Mapping,
    layout: Layout,
    /// Chunks of all operations so far.
    chunks: u32,
    spins: u32,
}

/// One operation under way.
struct Pass<'a> {
    operation: Operation,
    values: &'a mut [f32],
    /// Chunks of it.
    count: u32,
    /// The chunk before its first.
    first: u32,
    /// Whether every rank reduces everything.
    flat: bool,
}

impl SharedMemory {
    /// New memory for a group of `size`, and the file that makes the other ranks part of it.
    ///
    /// # Errors
    /// [`dnode_direct::Error`]: the system has none.
    pub fn create(size: usize) -> Result<(Mapping, OwnedFd), dnode_direct::Error> {
        Mapping::create(Layout::new(size).length())
    }

    /// The memory that another rank of the group has made.
    ///
    /// # Errors
    /// [`dnode_direct::Error`]: the file is none that was made by [`SharedMemory::create`].
    pub fn open(file: &OwnedFd, size: usize) -> Result<Mapping, dnode_direct::Error> {
        Mapping::open(file, Layout::new(size).length(), Access::Write)
    }

    /// A group whose ranks are joined by `links`, as in [`Sockets::new`], and share `map`.
    ///
    /// # Errors
    /// [`Error::Arguments`]: as [`Sockets::new`], or the memory is of another group's size.
    pub fn new(
        place: Place,
        links: Vec<Option<Box<dyn Link>>>,
        map: Mapping,
        patience: Duration,
    ) -> Result<Self, Error> {
        Self::with(Sockets::new(place, links, patience)?, map)
    }

    /// The ranks of `sockets`, which share `map`.
    pub(crate) fn with(mut sockets: Sockets, map: Mapping) -> Result<Self, Error> {
        // What the ranks did before they had it is no operation of this group.
        sockets.links.restart();
        let size = sockets.links.place.size;
        let layout = Layout::new(size);
        if map.length() != layout.length() {
            return Err(Error::Arguments("the memory is not that of a group of this size"));
        }
        let has_room = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= size);
        let spins = if has_room { SPINS } else { 0 };
        Ok(Self { sockets, map, layout, chunks: 0, spins })
    }

    fn operate(
        &mut self,
        (code, reduction): (Code, Reduction),
        root: usize,
        values: &mut [f32],
    ) -> Result<(), Error> {
        let operation = self.sockets.links.begin(code, reduction, (root, values.len()))?;
        if self.layout.size == 1 {
            return Ok(());
        }
        let flat = code == Code::AllReduce
            && (values.len() <= FLAT_ELEMENTS || self.layout.size <= FLAT_RANKS);
        let count = values.len().div_ceil(self.layout.elements()).max(1);
        let count = u32::try_from(count).map_err(|_| Error::Arguments("too many elements"))?;
        let mut pass = Pass { operation, values, count, first: self.chunks, flat };
        let result = if flat { self.flat(&mut pass) } else { self.chunked(&mut pass) };
        self.chunks = self.chunks.wrapping_add(count);
        self.sockets.links.end(result)
    }

    fn chunked(&mut self, pass: &mut Pass<'_>) -> Result<(), Error> {
        self.stage(pass, 0)?;
        for chunk in 0..pass.count {
            if chunk + 1 < pass.count {
                self.stage(pass, chunk + 1)?;
            }
            self.reduce_own(pass, chunk)?;
            self.take(pass, chunk)?;
        }
        Ok(())
    }

    /// Every rank reduces everything: one wait for a chunk in place of two.
    fn flat(&mut self, pass: &mut Pass<'_>) -> Result<(), Error> {
        self.stage(pass, 0)?;
        for chunk in 0..pass.count {
            if chunk + 1 < pass.count {
                self.stage(pass, chunk + 1)?;
            }
            let (number, buffer) = number(pass, chunk);
            self.wait_staged(pass, number, buffer)?;
            self.add_up(pass, buffer, (0, self.all_of(pass, chunk)));
            self.publish(Done::Reduced, number);
            self.publish(Done::Taken, number);
        }
        Ok(())
    }

    /// The elements of a chunk that every rank reduces.
    fn all_of(&self, pass: &Pass<'_>, chunk: u32) -> Range<usize> {
        let (each, len) = (self.layout.elements(), pass.values.len());
        let begin = (chunk as usize * each).min(len);
        begin..(begin + each).min(len)
    }

    /// Waits until nobody reads the buffer of a chunk any more.
    fn may_write(&self, pass: &Pass<'_>, number: u32) -> Result<(), Error> {
        self.wait(pass, Done::Taken, number.wrapping_sub(BUFFERS as u32), None)
    }

    /// Waits until everybody has staged a chunk; with the first, all say what they do.
    fn wait_staged(&self, pass: &Pass<'_>, number: u32, buffer: usize) -> Result<(), Error> {
        self.wait(pass, Done::Staged, number, None)?;
        if number != pass.first.wrapping_add(1) {
            return Ok(());
        }
        for rank in self.sockets.others() {
            let mut theirs = [0; HEADER_BYTES];
            self.map.read(self.layout.header(rank, buffer), &mut theirs);
            in_step(&pass.operation, rank, &theirs)?;
        }
        Ok(())
    }

    /// Writes this rank's values of a chunk where the others find them.
    fn stage(&mut self, pass: &Pass<'_>, chunk: u32) -> Result<(), Error> {
        let Place { rank, .. } = self.sockets.links.place;
        let (number, buffer) = number(pass, chunk);
        self.may_write(pass, number)?;
        let staged = self.layout.staged(rank, buffer);
        if pass.flat {
            self.write(staged, &pass.values[self.all_of(pass, chunk)]);
        } else if pass.reduces() {
            for other in self.sockets.others() {
                let window = self.window(pass, other, chunk);
                let offset = staged + other * self.layout.window * WIDTH;
                self.write(offset, &pass.values[window]);
            }
        }
        if chunk == 0 {
            self.map.write(self.layout.header(rank, buffer), &header(&pass.operation));
        }
        self.publish(Done::Staged, number);
        Ok(())
    }

    /// Writes the results of a chunk that this rank has, or makes them first.
    fn reduce_own(&mut self, pass: &mut Pass<'_>, chunk: u32) -> Result<(), Error> {
        let Place { rank, size } = self.sockets.links.place;
        let (number, buffer) = number(pass, chunk);
        let own = self.window(pass, rank, chunk);
        if pass.reduces() || chunk == 0 {
            self.wait_staged(pass, number, buffer)?;
        }
        if pass.reduces() {
            self.add_up(pass, buffer, (rank * self.layout.window, own));
        }
        let has = match pass.operation.code {
            Code::Broadcast | Code::Scatter if pass.operation.root == rank => 0..size,
            Code::Broadcast | Code::Scatter | Code::ReduceScatter | Code::Barrier => 0..0,
            Code::AllReduce | Code::AllGather | Code::Reduce | Code::AllToAll => rank..rank + 1,
        };
        for of in has {
            let window = self.window(pass, of, chunk);
            let offset = self.layout.result(buffer) + of * self.layout.window * WIDTH;
            self.write(offset, &pass.values[window]);
        }
        self.publish(Done::Reduced, number);
        Ok(())
    }

    /// Reduces `range` of the values, which every rank has staged from element `at` of its chunk on, in
    /// the order of ranks: those before this one beside its values, those behind it where these lie.
    fn add_up(&self, pass: &mut Pass<'_>, buffer: usize, (at, range): (usize, Range<usize>)) {
        let Place { rank, size } = self.sockets.links.place;
        let scale = |last| if last { pass.operation.reduction.scale(size) } else { 1.0 };
        let (mut before, mut theirs) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
        for (index, own) in pass.values[range].chunks_mut(BLOCK).enumerate() {
            let (before, theirs) = (&mut before[..own.len()], &mut theirs[..own.len()]);
            let staged = |of| self.layout.staged(of, buffer) + (at + index * BLOCK) * WIDTH;
            if rank > 0 {
                self.read(staged(0), before);
                for other in 1..rank {
                    self.read(staged(other), theirs);
                    before.iter_mut().zip(&*theirs).for_each(|(sum, value)| *sum += value);
                }
                let scale = scale(rank + 1 == size);
                own.iter_mut().zip(&*before).for_each(|(own, sum)| *own = (sum + *own) * scale);
            }
            for other in rank + 1..size {
                self.read(staged(other), theirs);
                let scale = scale(other + 1 == size);
                own.iter_mut().zip(&*theirs).for_each(|(own, value)| *own = (*own + value) * scale);
            }
        }
    }

    /// Takes the results of a chunk that this rank asks for.
    fn take(&self, pass: &mut Pass<'_>, chunk: u32) -> Result<(), Error> {
        let (Place { rank, size }, root) = (self.sockets.links.place, pass.operation.root);
        let (number, buffer) = number(pass, chunk);
        let wanted = match pass.operation.code {
            Code::AllReduce | Code::AllGather => 0..size,
            Code::Broadcast if rank != root => 0..size,
            Code::Reduce if rank == root => 0..size,
            Code::Scatter if rank != root => rank..rank + 1,
            Code::Broadcast
            | Code::Scatter
            | Code::Reduce
            | Code::ReduceScatter
            | Code::AllToAll
            | Code::Barrier => 0..0,
        };
        let of_root = matches!(pass.operation.code, Code::Broadcast | Code::Scatter);
        if !wanted.is_empty() {
            self.wait(pass, Done::Reduced, number, of_root.then_some(root))?;
        }
        for of in wanted.filter(|of| of_root || *of != rank) {
            let window = self.window(pass, of, chunk);
            let offset = self.layout.result(buffer) + of * self.layout.window * WIDTH;
            self.read(offset, &mut pass.values[window]);
        }
        self.publish(Done::Taken, number);
        Ok(())
    }

    fn write(&mut self, offset: usize, values: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.map.write(offset, bytes);
        self.sockets.links.meter.sent(bytes.len());
    }

    fn read(&self, offset: usize, values: &mut [f32]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.map.read(offset, bytes);
        self.sockets.links.meter.received(bytes.len());
    }

    /// The elements of a rank's piece that travel in a chunk.
    fn window(&self, pass: &Pass<'_>, rank: usize, chunk: u32) -> Range<usize> {
        let Range { start, end } = piece(pass.values.len(), self.layout.size, rank);
        let begin = start + chunk as usize * self.layout.window;
        begin.min(end)..(begin + self.layout.window).min(end)
    }

    /// Says how far this rank is.
    fn publish(&self, done: Done, number: u32) {
        let rank = self.sockets.links.place.rank;
        let word = self.map.word(Layout::word(rank, done as usize));
        let sleepers = self.map.word(Layout::word(rank, done as usize + WORDS / 2));
        word.store(number, Ordering::SeqCst);
        if sleepers.load(Ordering::SeqCst) > 0 {
            // An error means that nobody sleeps there.
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Waits until every other rank, or the one, has done that with chunk `number`.
    fn wait(
        &self,
        pass: &Pass<'_>,
        done: Done,
        number: u32,
        only: Option<usize>,
    ) -> Result<(), Error> {
        for rank in self.sockets.others().filter(|rank| only.is_none_or(|only| only == *rank)) {
            let word = self.map.word(Layout::word(rank, done as usize));
            let reached = |now: u32| now.wrapping_sub(number).cast_signed() >= 0;
            let (mut looks, mut since) = (0, None);
            loop {
                let now = word.load(Ordering::SeqCst);
                if reached(now) {
                    break;
                }
                looks += 1;
                if looks <= self.spins {
                    std::hint::spin_loop();
                } else if looks <= self.spins + YIELDS {
                    std::thread::yield_now();
                } else {
                    let since = *since.get_or_insert_with(Instant::now);
                    self.sleep((rank, done), now, (&pass.operation, since))?;
                }
            }
        }
        Ok(())
    }

    /// Sleeps while a rank's counter stays at `now`, but not for long: the end of a process wakes
    /// nobody.
    fn sleep(
        &self,
        (rank, done): (usize, Done),
        now: u32,
        (operation, since): (&Operation, Instant),
    ) -> Result<(), Error> {
        let word = self.map.word(Layout::word(rank, done as usize));
        let sleepers = self.map.word(Layout::word(rank, done as usize + WORDS / 2));
        sleepers.fetch_add(1, Ordering::SeqCst);
        let slept =
            futex::wait(word, futex::Flags::empty(), now, Timespec::try_from(LOOK).ok().as_ref());
        sleepers.fetch_sub(1, Ordering::SeqCst);
        // A signal may end each sleep early.
        if slept == Err(rustix::io::Errno::TIMEDOUT) || slept == Err(rustix::io::Errno::INTR) {
            self.sockets.links.all_alive(operation)?;
        }
        // A rank that wakes this one without end is waited for no longer than one that is silent.
        self.sockets.links.look(operation, rank, since)?;
        Ok(())
    }
}

/// The number of a chunk among all of the group, from 1, and its buffer.
const fn number(pass: &Pass<'_>, chunk: u32) -> (u32, usize) {
    let number = pass.first.wrapping_add(chunk).wrapping_add(1);
    (number, number as usize % BUFFERS)
}

impl Pass<'_> {
    /// Whether every rank adds something.
    const fn reduces(&self) -> bool {
        matches!(
            self.operation.code,
            Code::AllReduce | Code::ReduceScatter | Code::Reduce | Code::Barrier
        )
    }
}

impl Collective for SharedMemory {
    fn place(&self) -> Place {
        self.sockets.links.place
    }

    fn backend(&self) -> Backend {
        Backend::Shm
    }

    fn abort(&self) -> Abort {
        self.sockets.links.abort.clone()
    }

    fn meter(&self) -> Meter {
        self.sockets.links.meter.clone()
    }

    fn set_patience(&mut self, patience: Duration) {
        self.sockets.links.set_patience(patience);
    }

    fn all_reduce_part(
        &mut self,
        values: &mut [f32],
        _: Part,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.operate((Code::AllReduce, reduction), 0, values)
    }

    fn reduce_scatter(&mut self, values: &mut [f32], reduction: Reduction) -> Result<(), Error> {
        self.operate((Code::ReduceScatter, reduction), 0, values)
    }

    fn all_gather(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.operate((Code::AllGather, Reduction::Sum), 0, values)
    }

    fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        self.operate((Code::Broadcast, Reduction::Sum), root, values)
    }

    fn reduce(
        &mut self,
        root: usize,
        values: &mut [f32],
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.operate((Code::Reduce, reduction), root, values)
    }

    fn scatter(&mut self, root: usize, values: &mut [f32]) -> Result<(), Error> {
        self.operate((Code::Scatter, Reduction::Sum), root, values)
    }

    fn all_to_all(&mut self, values: &[f32], gathered: &mut [f32]) -> Result<(), Error> {
        self.sockets.all_to_all(values, gathered)
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.operate((Code::Barrier, Reduction::Sum), 0, &mut [])
    }
}
