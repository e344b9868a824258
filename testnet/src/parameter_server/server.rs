//! The process that holds the parameters.

use std::io::{self, BufReader, BufWriter, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use dnode_trainer::{Compute, Optimizer, Trainer, learning_rate};

use super::Error;
use super::arguments::{Arguments, Plan};
use super::wire::{Head, PARAMETERS_MAX, read_numbers, write_numbers};
use crate::local::process::ADDRESS_FILE;

/// The parameters, and what moves them.
struct State {
    parameters: Vec<f32>,
    optimizer: Optimizer,
    compute: Compute,
    /// Gradients that peers may still begin.
    free: u64,
    /// Optimizer steps done.
    version: u64,
    /// Peers that have connected.
    arrived: u64,
}

struct Shared<'a> {
    plan: &'a Plan,
    /// Where it listens.
    door: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// Serves the peers of the run, and ends when the last step is done and everybody has the result.
pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut plan = arguments.plan()?;
    // It trains on nothing: any shard gives it the layout and the initial parameters.
    (plan.data.shards, plan.data.shard) = (1, Some(0));
    let trainer = plan.trainer()?;
    let mut parameters = vec![0.0; trainer.layout().parameters()];
    if parameters.len() as u64 > PARAMETERS_MAX {
        return Err(Error::Usage("the model has too many parameters".to_owned()));
    }
    trainer.read(0..parameters.len(), &mut parameters);
    let optimizer = Optimizer::new(plan.optimizer.clone(), trainer.layout());
    let (compute, free, version, arrived) = (Compute::new(1)?, plan.updates(), 0, 0);
    let state = Mutex::new(State { parameters, optimizer, compute, free, version, arrived });
    let listener = listen(arguments)?;
    let door = listener.local_addr().map_err(Error::system("listen"))?;
    let shared = Shared { plan: &plan, door, state, changed: Condvar::new() };
    thread::scope(|scope| {
        loop {
            let (line, _) = listener.accept().map_err(Error::system("accept a peer"))?;
            if shared.is_done() {
                return Ok(());
            }
            let shared = &shared;
            scope.spawn(move || shared.serve(&line));
        }
    })
}

/// Listens, and says where.
fn listen(arguments: &Arguments) -> Result<TcpListener, Error> {
    let host = arguments.listen.split('/').nth(2).and_then(|host| host.parse::<Ipv4Addr>().ok());
    let host = host.ok_or_else(|| Error::Usage(format!("no address: {}", arguments.listen)))?;
    let listener = TcpListener::bind((host, 0)).map_err(Error::system("listen"))?;
    let address = listener.local_addr().map_err(Error::system("listen"))?;
    let (path, new) =
        (arguments.data_dir.join(ADDRESS_FILE), arguments.data_dir.join("address.new"));
    let written = std::fs::write(&new, format!("{address}\n"));
    written
        .and_then(|()| std::fs::rename(&new, &path))
        .map_err(Error::system("say the address"))?;
    Ok(listener)
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked ends the server anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_done(&self) -> bool {
        self.lock().version >= self.plan.updates()
    }

    /// Serves one peer; the gradient of one that is lost is left to the others.
    fn serve(&self, line: &TcpStream) {
        let mut owed = false;
        if let Err(error) = self.speak(line, &mut owed) {
            let _ = writeln!(io::stderr(), "a peer is lost: {error}");
            self.lock().free += u64::from(owed);
            self.changed.notify_all();
        }
    }

    /// Gives one peer parameters and takes its gradients; `owed` is whether it has one to give.
    fn speak(&self, line: &TcpStream, owed: &mut bool) -> Result<(), Error> {
        let failed = || Error::system("speak with a peer");
        line.set_nodelay(true).map_err(failed())?;
        let mut from = BufReader::new(line);
        let mut to = BufWriter::new(line);
        self.await_all();
        let count = self.lock().parameters.len();
        let mut numbers = vec![0.0; count];
        let mut lag = 0;
        loop {
            let (more, version) = self.take(&mut numbers);
            *owed = more;
            Head { more, version, lag }.write(&mut to).map_err(failed())?;
            write_numbers(&mut to, &numbers).map_err(failed())?;
            if !more {
                return Ok(());
            }
            let head = Head::read(&mut from).map_err(failed())?;
            read_numbers(&mut from, &mut numbers).map_err(failed())?;
            lag = self.apply(&numbers, head.version)?;
            *owed = false;
        }
    }

    /// All peers begin together.
    fn await_all(&self) {
        let mut state = self.lock();
        state.arrived += 1;
        self.changed.notify_all();
        while state.arrived < self.plan.peers {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies the parameters, for a gradient if one is left, else when the last has been applied.
    fn take(&self, numbers: &mut [f32]) -> (bool, u64) {
        let mut state = self.lock();
        loop {
            let more = state.free > 0;
            if more || state.version >= self.plan.updates() {
                state.free -= u64::from(more);
                numbers.copy_from_slice(&state.parameters);
                return (more, state.version);
            }
            // A gradient may still come back from a peer that is lost.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One optimizer step; how many were done since the gradient's parameters were taken.
    fn apply(&self, gradient: &[f32], version: u64) -> Result<u64, Error> {
        let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Err(Error::Usage("a gradient is not finite".to_owned()));
        }
        let longest = f64::from(self.plan.optimizer.clip_norm);
        #[expect(clippy::cast_possible_truncation, reason = "a factor of f32 numbers")]
        let scale = if longest > 0.0 && norm > longest { (longest / norm) as f32 } else { 1.0 };
        let mut guard = self.lock();
        let state = &mut *guard;
        // The schedule follows samples, as it does for every variant.
        let position = state.version / self.plan.peers;
        let rate = learning_rate(&self.plan.optimizer, position, self.plan.steps);
        let State { optimizer, compute, parameters, .. } = state;
        optimizer.update(compute, parameters, gradient, (rate, scale));
        let lag = state.version.saturating_sub(version);
        state.version += 1;
        let done = state.version >= self.plan.updates();
        drop(guard);
        self.changed.notify_all();
        if done {
            // Nobody else will come.
            TcpStream::connect(self.door).map_err(Error::system("close the door"))?;
        }
        Ok(lag)
    }
}
