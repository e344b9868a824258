//! The thread that carries packets between devices as the router says.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{gettid, set_current_timer_slack};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::command::Command;
use super::error::WanError;
use super::namespace::Namespaces;
use super::plan::Plan;
use super::router::{Due, NODES_MAX, NoSuchNode, Router};
use super::stats::Stats;

/// Requests to the thread that may wait; each is answered before the next of the same caller.
const REQUESTS_MAX: usize = 16;
/// Packets read from one device before the others have a turn and due ones are delivered.
const READ_BURST: usize = 64;
/// Longest packet that a device hands out.
const PACKET_BYTES_MAX: usize = 65_536;
/// Marks the descriptor that wakes the thread; machines are marked by their index.
const WAKE: u64 = u64::MAX;
/// Marks the timer, whose only use is to end a wait.
const TIMER: u64 = u64::MAX - 1;

/// What the thread tells whoever started it.
#[derive(Debug)]
pub enum Notice {
    /// A `stats` of the scenario was due.
    Stats(Stats),
    /// The thread ends because the system failed it.
    Failed(io::Error),
}

enum Request {
    Apply(Command, SyncSender<Result<(), NoSuchNode>>),
    Stats(SyncSender<Stats>),
    Stop,
}

/// A running network. Dropping it ends the thread and removes the namespaces.
#[derive(Debug)]
pub struct Emulator {
    namespaces: Namespaces,
    requests: SyncSender<Request>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    late: Option<String>,
}

impl Emulator {
    /// Makes the network `name` and begins to carry packets; the scenario's time starts here.
    ///
    /// `notify` is called on the thread that carries packets, so it must not wait.
    ///
    /// # Errors
    /// [`WanError`]; nothing is left behind.
    pub fn start(
        name: &str,
        scenario: &Plan,
        notify: impl FnMut(Notice) + Send + 'static,
    ) -> Result<Self, WanError> {
        let router = scenario.router()?;
        let (namespaces, devices) = Namespaces::make(name, scenario.nodes)?;
        let system = |error: io::Error| WanError::System("start the network".to_owned(), error);
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let wake = Arc::new(wake.map_err(|error| system(error.into()))?);
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let shell = Shell::new(router, devices, Arc::clone(&wake), inbox).map_err(system)?;
        let (ready, told) = sync_channel(1);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Whoever started this waits for it.
            let _ = ready.send(be_punctual().err());
            shell.carry(notify);
        });
        let thread = Some(thread.map_err(system)?);
        let late = told.recv().map_err(|_| WanError::Ended)?;
        Ok(Self { namespaces, requests, wake, thread, late })
    }

    /// The namespaces of the machines.
    #[must_use]
    pub const fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Why delays may be longer than asked for on a busy machine, if they may.
    #[must_use]
    pub fn late(&self) -> Option<&str> {
        self.late.as_deref()
    }

    /// Carries out a command; it holds for every packet sent after the return.
    ///
    /// # Errors
    /// [`WanError::NoSuchNode`], or [`WanError::Ended`].
    pub fn apply(&self, command: Command) -> Result<(), WanError> {
        Ok(self.ask(|reply| Request::Apply(command, reply))??)
    }

    /// What happened so far.
    ///
    /// # Errors
    /// [`WanError::Ended`].
    pub fn stats(&self) -> Result<Stats, WanError> {
        self.ask(Request::Stats)
    }

    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, WanError> {
        let (reply, answer) = sync_channel(1);
        self.tell(request(reply));
        answer.recv().map_err(|_| WanError::Ended)
    }

    fn tell(&self, request: Request) {
        // A thread that is gone has dropped its end: nobody waits for ever.
        let _ = self.requests.send(request);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.tell(Request::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }
}

/// Asks for real-time priority and exact timers for this thread.
fn be_punctual() -> Result<(), String> {
    let exact = set_current_timer_slack(NonZeroU64::new(1));
    let thread = gettid().as_raw_nonzero().to_string();
    let said =
        Program::new("chrt").args(["--fifo", "--pid", "1", &thread]).stdin(Stdio::null()).output();
    let error = match said {
        Ok(said) if said.status.success() => None,
        Ok(said) => Some(String::from_utf8_lossy(&said.stderr).trim().to_owned()),
        Err(error) => Some(format!("chrt: {error}")),
    };
    match (error, exact) {
        (Some(error), _) => Err(format!("no real-time priority ({error})")),
        (None, Err(error)) => Err(format!("no exact timers ({error})")),
        (None, Ok(())) => Ok(()),
    }
}

/// The devices, the router, and the clock that joins them.
struct Shell {
    router: Router,
    devices: Vec<File>,
    poll: OwnedFd,
    /// A timeout of `epoll` is whole milliseconds on older kernels; this is exact on all.
    timer: OwnedFd,
    /// What the timer is set to.
    armed: Option<Duration>,
    wake: Arc<OwnedFd>,
    inbox: Receiver<Request>,
    began: Instant,
}

impl Shell {
    fn new(
        router: Router,
        devices: Vec<File>,
        wake: Arc<OwnedFd>,
        inbox: Receiver<Request>,
    ) -> io::Result<Self> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, device) in devices.iter().enumerate() {
            epoll::add(&poll, device, EventData::new_u64(index as u64), EventFlags::IN)?;
        }
        epoll::add(&poll, wake.as_fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // A timer that is set anew is not ready any more, so nobody has to read it.
        epoll::add(&poll, &timer, EventData::new_u64(TIMER), EventFlags::IN | EventFlags::ET)?;
        #[expect(clippy::disallowed_methods, reason = "this joins the network to the clock")]
        let began = Instant::now();
        Ok(Self { router, devices, poll, timer, armed: None, wake, inbox, began })
    }

    fn carry(mut self, mut notify: impl FnMut(Notice)) {
        let mut events = Vec::with_capacity(NODES_MAX + 2);
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            match self.turn(&mut events, &mut buffer, &mut notify) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return notify(Notice::Failed(error)),
            }
        }
    }

    /// Waits, reads, delivers; whether to go on.
    fn turn(
        &mut self,
        events: &mut Vec<Event>,
        buffer: &mut [u8],
        notify: &mut impl FnMut(Notice),
    ) -> io::Result<bool> {
        self.arm()?;
        events.clear();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                TIMER => self.armed = None,
                WAKE => {
                    if !self.obey()? {
                        return Ok(false);
                    }
                }
                index => self.read(usize::try_from(index).unwrap_or(usize::MAX), buffer)?,
            }
        }
        while let Some(due) = self.router.next(self.began.elapsed()) {
            match due {
                Due::Packet { to, packet } => self.write(to, &packet)?,
                Due::Report => notify(Notice::Stats(self.router.stats())),
            }
        }
        Ok(true)
    }

    /// Sets the timer to when the router has something to do again.
    fn arm(&mut self) -> io::Result<()> {
        let deadline = self.router.deadline();
        if let Some(at) = deadline.filter(|_| deadline != self.armed) {
            // Zero would switch the timer off.
            let left = at.saturating_sub(self.began.elapsed()).max(Duration::from_nanos(1));
            let value =
                Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        }
        self.armed = deadline;
        Ok(())
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) -> io::Result<()> {
        let Some(mut device) = self.devices.get(index) else { return Ok(()) };
        for _ in 0..READ_BURST {
            match device.read(buffer) {
                Ok(length) => {
                    let now = self.began.elapsed();
                    self.router.accept(index, buffer[..length].to_vec(), now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self, to: usize, packet: &[u8]) -> io::Result<()> {
        match self.devices[to].write(packet) {
            Ok(_) => Ok(()),
            // The receiver's kernel has no memory or refuses the packet, as it may on any link.
            Err(error) if error.raw_os_error().is_some_and(is_refusal) => {
                self.router.refused(to);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Carries out what was asked for; whether to go on.
    fn obey(&mut self) -> io::Result<bool> {
        let mut count = [0; 8];
        match rustix::io::read(&*self.wake, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(request) = self.inbox.try_recv() {
            match request {
                Request::Apply(command, reply) => {
                    let _ = reply.send(self.router.apply(&command, self.began.elapsed()));
                }
                Request::Stats(reply) => {
                    let _ = reply.send(self.router.stats());
                }
                Request::Stop => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Whether a write failed for the packet's sake only.
fn is_refusal(code: i32) -> bool {
    use rustix::io::Errno;
    [Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM, Errno::INVAL, Errno::INTR]
        .iter()
        .any(|errno| errno.raw_os_error() == code)
}

fn timespec(duration: Duration) -> Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: duration.subsec_nanos().into() }
}
