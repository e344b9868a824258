//! Network namespaces with a device each: made, entered, and never left behind.
//!
//! Machine `i` of the network `NAME` is the namespace `NAME.i`, which `ip netns` lists. A locked
//! file says that somebody uses them; namespaces of a name that nobody has locked are what a crash
//! left, and the next network that is made removes them.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::error::WanError;
use super::router::address;
use super::tun;

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";
/// Where networks in use keep their locked files.
const LOCKS: &str = "/run/dnode-wan";
/// Longest name of a network.
const NAME_MAX: usize = 40;
/// Largest packet, in bytes: that of Ethernet.
const MTU: usize = 1500;
/// Packets that a sender's kernel may hold for the router.
const DEVICE_QUEUE: usize = 2000;

/// The namespaces of one network; dropping it removes them and ends what still runs inside.
#[derive(Debug)]
pub struct Namespaces {
    name: String,
    count: usize,
    _lock: Lock,
}

impl Namespaces {
    /// Makes `count` namespaces with addresses and routes; also their devices, in order.
    ///
    /// # Errors
    /// [`WanError`]; nothing is left behind.
    pub fn make(name: &str, count: usize) -> Result<(Self, Vec<File>), WanError> {
        check_name(name)?;
        check_machine()?;
        let gate = gate()?;
        let lock = Lock::take(name)?.ok_or_else(|| WanError::InUse(name.to_owned()))?;
        sweep();
        remove_all(name);
        drop(gate);
        // From here on a drop removes what was made.
        let mut made = Self { name: name.to_owned(), count: 0, _lock: lock };
        let mut devices = Vec::new();
        for index in 0..count {
            let namespace = namespace(name, index);
            ip(&["netns", "add", &namespace], "").map_err(|reason| {
                WanError::Missing(format!("permission to make network namespaces ({reason})"))
            })?;
            made.count += 1;
            let device = made.inside(index, tun::open).join().map_err(|_| WanError::Ended)??;
            devices.push(device.map_err(|error| {
                WanError::Missing(format!("permission to make TUN devices ({error})"))
            })?);
            ip(&["-n", &namespace, "-batch", "-"], &settings(index))
                .map_err(|reason| WanError::Ip { namespace, reason })?;
        }
        Ok((made, devices))
    }

    /// The name of the network.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of machines.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Runs `work` on a thread that lives in machine `index`; its sockets are there.
    pub fn inside<T: Send + 'static>(
        &self,
        index: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Result<T, WanError>> {
        let name = self.name.clone();
        thread::spawn(move || enter(&name, index).map(|()| work()))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove_all(&self.name);
    }
}

/// Moves the calling thread, and what it starts, into machine `index` of the network `name`.
///
/// # Errors
/// [`WanError::NoSuchMachine`] when nobody has made it.
pub fn enter(name: &str, index: usize) -> Result<(), WanError> {
    check_name(name)?;
    let namespace = namespace(name, index);
    let file = File::open(Path::new(NAMESPACES).join(&namespace))
        .map_err(|_| WanError::NoSuchMachine(namespace.clone()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| WanError::System(format!("enter {namespace}"), error.into()))
}

/// The namespace that is machine `index` of the network `name`.
#[must_use]
pub fn namespace(name: &str, index: usize) -> String {
    format!("{name}.{index}")
}

fn check_name(name: &str) -> Result<(), WanError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(fits) || name.starts_with('-')
    {
        return Err(WanError::Name(name.to_owned()));
    }
    Ok(())
}

/// What can be known to be missing before anything is made.
fn check_machine() -> Result<(), WanError> {
    if !geteuid().is_root() {
        return Err(WanError::Missing("root: network namespaces are made by root".to_owned()));
    }
    if !Path::new(tun::CLONE_DEVICE).exists() {
        return Err(WanError::Missing(format!("{}: the kernel's TUN driver", tun::CLONE_DEVICE)));
    }
    ip(&["-Version"], "")
        .map_err(|reason| WanError::Missing(format!("the program ip of iproute2 ({reason})")))
        .map(drop)
}

/// Addresses and routes of machine `index`, as `ip -batch` reads them.
fn settings(index: usize) -> String {
    let (address, device) = (address(index), tun::DEVICE);
    format!(
        "link set lo up\n\
         addr add {address}/16 dev {device}\n\
         link set {device} mtu {MTU} txqueuelen {DEVICE_QUEUE} up\n\
         route add 224.0.0.0/4 dev {device}\n"
    )
}

/// Runs `ip`: what it prints.
fn ip(arguments: &[&str], input: &str) -> Result<String, String> {
    let run = || -> io::Result<std::process::Output> {
        let mut child = Command::new("ip")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = run().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().next().unwrap_or("it said nothing").trim().to_owned())
}

/// Waits until nobody else takes a name or sweeps: a sweep locks names for a moment.
fn gate() -> Result<File, WanError> {
    let fail = |error| WanError::System(format!("lock a file in {LOCKS}"), error);
    fs::create_dir_all(LOCKS).map_err(fail)?;
    let path = Path::new(LOCKS).join("gate");
    let file = File::options().create(true).append(true).open(path).map_err(fail)?;
    file.lock().map_err(fail)?;
    Ok(file)
}

/// Removes the namespaces of every network that nobody has locked.
fn sweep() {
    let Ok(entries) = fs::read_dir(LOCKS) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".lock")) else {
            continue;
        };
        // Dropping the lock removes its file.
        if let Ok(Some(_lock)) = Lock::take(name) {
            remove_all(name);
        }
    }
}

/// Removes all namespaces of a network, and ends the processes inside.
fn remove_all(name: &str) {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let index = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.'));
        let Some(index) = index.and_then(|index| index.parse::<usize>().ok()) else { continue };
        let namespace = namespace(name, index);
        // What cannot be removed is swept by the next network.
        for id in ip(&["netns", "pids", &namespace], "").unwrap_or_default().split_whitespace() {
            if let Some(id) = id.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
        let _ = ip(&["netns", "delete", &namespace], "");
    }
}

/// A locked file; the system unlocks it when the process ends, however it ends.
#[derive(Debug)]
struct Lock {
    name: String,
    _file: File,
}

impl Lock {
    /// Locks the name of a network; `None` when another process or network has it.
    fn take(name: &str) -> Result<Option<Self>, WanError> {
        let fail = |error| WanError::System(format!("lock a file in {LOCKS}"), error);
        let path = Self::path(name);
        loop {
            let file = File::options().create(true).append(true).open(&path).map_err(fail)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(fail(error)),
            }
            // Who had it before may have removed the file between opening and locking.
            let ours = file.metadata().map_err(fail)?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                return Ok(Some(Self { name: name.to_owned(), _file: file }));
            }
        }
    }

    fn path(name: &str) -> std::path::PathBuf {
        Path::new(LOCKS).join(format!("{name}.lock"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked here, so it is nobody else's.
        let _ = fs::remove_file(Self::path(&self.name));
    }
}
