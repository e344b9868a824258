//! The lines of a scenario as the link emulator is told of them.

use std::collections::BTreeSet;

use dnode_netem::command::{Change, Lines, Who};
use dnode_netem::nat::{NatKind, UDP_IDLE};
use dnode_netem::{Command, Plan};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::Scenario;
use super::fault::{Fault, Nat};
use super::link::LinkModel;

/// Standard deviations in the width of a uniform distribution: √12.
const UNIFORM_WIDTH: f64 = 3.464_101_615_137_754_5;

impl Scenario {
    /// The network of this scenario with everything that its script does to lines.
    ///
    /// Delays vary uniformly with the standard deviation that `link.jitter` gives a log-normal one
    /// to first order; loss is of packets. Bandwidths are drawn from `seed`.
    #[must_use]
    pub fn network(&self, seed: u64) -> Plan {
        let nodes = self.peers as usize;
        let mut plan = Plan { nodes, seed, setup: self.lines(seed), at: Vec::new() };
        for scripted in &self.script {
            plan.at.push((scripted.at, self.commands(&scripted.fault, seed)));
        }
        plan
    }

    /// All lines as at the start.
    #[must_use]
    pub fn lines(&self, seed: u64) -> Vec<Command> {
        let link = &self.link;
        let every = Change {
            delay: Some(link.delay),
            jitter: Some(link.delay.mul_f64(UNIFORM_WIDTH * link.jitter)),
            loss: Some(link.loss),
            ..Change::default()
        };
        let mut lines = vec![
            Command::Lines(Lines::Between(Who::All, Who::All), every),
            Command::Multicast(false),
        ];
        lines.extend((0..self.peers).flat_map(|peer| self.own(peer, seed, Own::default())));
        lines
    }

    /// What a fault changes about lines; nothing if it is about processes.
    #[must_use]
    pub fn commands(&self, fault: &Fault, seed: u64) -> Vec<Command> {
        match fault {
            Fault::Cut { side, both } => self.cut(|peer| side.contains(&peer), *both),
            Fault::Split { percent, both } => {
                let end = u64::from(self.peers) * u64::from(*percent) / 100;
                self.cut(|peer| u64::from(peer) < end, *both)
            }
            Fault::Heal {} => vec![between(Who::All, Who::All, self.link.loss)],
            Fault::Line { peer, delay, loss, bandwidth } => {
                let own = Own { delay: *delay, loss: *loss, bandwidth: *bandwidth };
                self.own(*peer, seed, own).to_vec()
            }
            Fault::Nat { peer, nat } => {
                let kind = match nat {
                    Nat::None => None,
                    Nat::Cone => Some((NatKind::Cone, UDP_IDLE)),
                    Nat::Symmetric => Some((NatKind::Symmetric, UDP_IDLE)),
                };
                vec![Command::Nat(these([*peer]), kind)]
            }
            Fault::Join { .. }
            | Fault::Crash { .. }
            | Fault::Restart { .. }
            | Fault::Leave { .. }
            | Fault::Pause { .. }
            | Fault::Slow { .. } => Vec::new(),
        }
    }

    /// Everything from those inside to those outside is lost; the other way round too, if `both`.
    fn cut(&self, inside: impl Fn(u32) -> bool, both: bool) -> Vec<Command> {
        let (side, others): (Vec<u32>, Vec<u32>) = (0..self.peers).partition(|peer| inside(*peer));
        if side.is_empty() || others.is_empty() {
            return Vec::new();
        }
        let (side, others) = (these(side), these(others));
        let mut cut = vec![between(side.clone(), others.clone(), 1.0)];
        if both {
            cut.push(between(others, side, 1.0));
        }
        cut
    }

    /// The ways out of and into the machine of a peer.
    fn own(&self, peer: u32, seed: u64, own: Own) -> [Command; 2] {
        let LinkModel { bandwidth, spread, uplink, .. } = &self.link;
        // Each peer has a stream of its own, so that a change finds what was at the start.
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::from(peer));
        let drawn = bandwidth * spread.draw(peer, self.peers, &mut rng);
        let down = if own.bandwidth > 0.0 { own.bandwidth } else { drawn };
        let change = |bits_per_s: f64| Change {
            delay: Some(own.delay),
            loss: Some(own.loss),
            bits_per_s: Some(bits_per_s.round() as u64),
            ..Change::default()
        };
        let who = these([peer]);
        [
            Command::Lines(Lines::Up(who.clone()), change(down * uplink)),
            Command::Lines(Lines::Down(who), change(down)),
        ]
    }
}

/// A peer's own line, beside what all have.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    delay: std::time::Duration,
    loss: f64,
    bandwidth: f64,
}

fn between(from: Who, to: Who, loss: f64) -> Command {
    Command::Lines(Lines::Between(from, to), Change { loss: Some(loss), ..Change::default() })
}

fn these(peers: impl IntoIterator<Item = u32>) -> Who {
    Who::These(peers.into_iter().map(|peer| peer as usize).collect::<BTreeSet<usize>>())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn cuts_and_lines_become_commands_and_processes_do_not() {
        let scenario = Scenario::parse(
            r#"
            peers = 3
            script = [
                { at = "1s", kind = "cut", side = [0], both = true },
                { at = "2s", kind = "crash", peer = 1 },
                { at = "3s", kind = "line", peer = 2, delay = "40ms", bandwidth = 8e6 },
                { at = "4s", kind = "heal" },
            ]
            [link]
            delay = "10ms"
            loss = 0.01
            bandwidth = 100e6
            uplink = 0.5
            "#,
        )
        .unwrap();
        let plan = scenario.network(1);
        plan.router().unwrap();
        assert_eq!(plan.at.iter().map(|(_, lines)| lines.len()).collect::<Vec<_>>(), [2, 0, 2, 1]);
        let Command::Lines(Lines::Up(who), change) = &plan.at[2].1[0] else { panic!("a way up") };
        assert!(who.contains(2) && !who.contains(1));
        assert_eq!(change.delay, Some(Duration::from_millis(40)));
        assert_eq!(change.bits_per_s, Some(4_000_000));
        let up = |lines: &[Command]| {
            lines.iter().any(|line| {
                matches!(line,
            Command::Lines(Lines::Up(_), change) if change.bits_per_s == Some(50_000_000))
            })
        };
        assert!(up(&plan.setup), "{:?}", plan.setup);
    }
}
