//! All peers of a scenario run, and what faults do to them.

use std::io;
use std::path::{Path, PathBuf};

use super::account::Account;
use super::lines::Lines;
use super::peer::{Bounds, LivePeer};
use crate::local::slot::join_arguments;
use crate::local::variant::RunError;
use crate::scenario::fault::{Fault, Return};

/// Live peers whose addresses a new process is given.
const BOOTSTRAP_MAX: usize = 3;

/// What all processes run.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub(super) program: PathBuf,
    /// Settings `section.key=value`.
    pub(super) settings: Vec<String>,
    pub(super) seed: u64,
}

/// The peers and the lines between them.
#[derive(Debug)]
pub(super) struct Stage {
    cast: Cast,
    slots: Vec<LivePeer>,
    /// Dropped after the peers that are on it.
    lines: Lines,
}

impl Stage {
    pub(super) fn new(cast: Cast, peers: u32, lines: Lines, directory: &Path) -> Self {
        Self { cast, slots: (0..peers).map(|peer| LivePeer::new(peer, directory)).collect(), lines }
    }

    pub(super) fn slots(&self) -> &[LivePeer] {
        &self.slots
    }

    pub(super) const fn lines(&mut self) -> &mut Lines {
        &mut self.lines
    }

    pub(super) fn look(&mut self, bounds: &Bounds, account: &mut Account) -> io::Result<()> {
        self.slots.iter_mut().try_for_each(|slot| slot.look(bounds, account))
    }

    /// Starts a process for `peer`, with what it has of the life before.
    pub(super) fn start(
        &mut self,
        peer: u32,
        with: Return,
        account: &mut Account,
    ) -> io::Result<()> {
        let index = peer as usize;
        match with {
            Return::Checkpoint => {}
            Return::Name => self.slots[index].slot.forget()?,
            Return::Nothing => self.slots[index].slot.rename(),
        }
        let mut arguments = self.arguments(index);
        if with == Return::Checkpoint {
            arguments.push("--resume".to_owned());
        }
        for address in self.known(index)? {
            arguments.extend(["--bootstrap".to_owned(), address]);
        }
        let command = self.lines.command(index, (self.cast.program.clone(), arguments));
        account.starts += 1;
        self.slots[index].start(&command, account.elapsed())
    }

    /// What a fault does; one that cannot strike now is left out and said.
    pub(super) fn strike(&mut self, fault: &Fault, account: &mut Account) -> Result<(), RunError> {
        match fault {
            Fault::Crash { peer } => self.end(*peer, true, account)?,
            Fault::Leave { peer } => self.end(*peer, false, account)?,
            Fault::Join { peer } => self.begin(*peer, Return::Name, "join", account)?,
            Fault::Restart { peer, with } => {
                self.begin(*peer, *with, &format!("start {with}"), account)?;
            }
            Fault::Pause { peer, time } => {
                let what = format!("peer {peer} is paused for {:.1} s", time.as_secs_f64());
                self.hinder(*peer, ("pause", &what), account, |slot| slot.pause(*time))?;
            }
            Fault::Slow { peer, factor } => {
                let what = format!("peer {peer} is {factor} times as slow");
                self.hinder(*peer, ("slow", &what), account, |slot| slot.slow(*factor))?;
            }
            Fault::Cut { both: true, .. } | Fault::Split { both: true, .. } => {
                self.change_lines("cut both ways", fault, account)?;
            }
            Fault::Cut { .. } | Fault::Split { .. } => {
                self.change_lines("cut one way", fault, account)?;
            }
            Fault::Heal {} => self.change_lines("heal", fault, account)?,
            Fault::Line { .. } => self.change_lines("line", fault, account)?,
            Fault::Nat { .. } => self.change_lines("nat", fault, account)?,
        }
        Ok(())
    }

    fn begin(
        &mut self,
        peer: u32,
        with: Return,
        kind: &str,
        account: &mut Account,
    ) -> io::Result<()> {
        let what = format!("peer {peer}: {kind}");
        if !self.slots[peer as usize].is_empty() {
            return account.skip("it lives", &what);
        }
        account.struck(kind, &what)?;
        self.start(peer, with, account)
    }

    fn hinder(
        &mut self,
        peer: u32,
        (kind, what): (&str, &str),
        account: &mut Account,
        act: impl FnOnce(&mut LivePeer),
    ) -> io::Result<()> {
        if !self.slots[peer as usize].lives() {
            return account.skip("it does not live", what);
        }
        account.struck(kind, what)?;
        act(&mut self.slots[peer as usize]);
        Ok(())
    }

    fn change_lines(
        &self,
        kind: &str,
        fault: &Fault,
        account: &mut Account,
    ) -> Result<(), RunError> {
        let what = format!("{kind}: {fault:?}");
        if !self.lines.are_emulated() {
            return Ok(account.skip("no emulated network", &what)?);
        }
        account.struck(kind, &what)?;
        self.lines.strike(fault)
    }

    fn end(&mut self, peer: u32, kill: bool, account: &mut Account) -> io::Result<()> {
        let what = if kill { "killed" } else { "told to leave" };
        let what = format!("peer {peer} is {what}");
        let living = self.slots.iter().filter(|slot| slot.lives()).count();
        if !self.slots[peer as usize].lives() {
            return account.skip("it does not live", &what);
        }
        if living <= 2 {
            // The swarm itself is never ended.
            return account.skip("two live", &what);
        }
        account.struck(if kill { "kill" } else { "leave" }, &what)?;
        let slot = &mut self.slots[peer as usize];
        if kill {
            account.killed(peer);
            slot.kill();
        } else {
            slot.leave();
        }
        Ok(())
    }

    /// Nobody is paused, slow or cut off any more.
    pub(super) fn calm(&mut self) -> Result<(), RunError> {
        self.slots.iter_mut().for_each(LivePeer::calm);
        self.lines.calm()
    }

    /// Only evaluations from here on count, and those of who is done.
    pub(super) fn forget_losses(&mut self) {
        self.slots.iter_mut().for_each(LivePeer::forget_loss);
    }

    /// Tells every process to leave.
    pub(super) fn leave(&mut self) {
        self.slots.iter_mut().filter(|slot| slot.lives()).for_each(LivePeer::leave);
    }

    /// Ends every process at once and waits for that.
    pub(super) async fn kill(&mut self) {
        self.slots.iter_mut().for_each(LivePeer::kill);
        for slot in &mut self.slots {
            slot.slot.wait().await;
        }
    }

    /// Addresses of live peers, those after `index` first, so that all serve as bootstrap.
    fn known(&self, index: usize) -> io::Result<Vec<String>> {
        let count = self.slots.len();
        let mut found = Vec::new();
        let mut peers = 0;
        for offset in 1..count {
            if let Some(addresses) = self.slots[(index + offset) % count].addresses()? {
                found.extend(addresses);
                peers += 1;
            }
            if peers == BOOTSTRAP_MAX {
                break;
            }
        }
        Ok(found)
    }

    fn arguments(&self, index: usize) -> Vec<String> {
        let own = [
            format!("run.seed={}", self.cast.seed),
            format!("data.shards={}", self.slots.len()),
            format!("data.shard={index}"),
        ];
        let settings = own.into_iter().chain(self.cast.settings.iter().cloned());
        let folder = self.slots[index].slot.folder();
        join_arguments(&folder, self.lines.host(index), None, settings)
    }
}
