//! Makes ranks that form a group equal, also after an operation that ended at some of them only.

use std::sync::Arc;

use dnode_collective::{Collective, Reduction};
use dnode_gossip::is_absurd;
use dnode_protocol::Clock;
use dnode_trainer::{ReplicaState, TrainError};

use super::RackMember;
use super::standing::{HANDED_MAX, STANDING_ELEMENTS, Standing, WeightsMark, lead, units};
use crate::training::steps::context::Context;
use crate::training::steps::end::End;

/// What this rank gave to an operation that failed here, and may have ended at another rank.
#[derive(Debug)]
pub(super) struct Handed {
    /// The weights that contain it at that rank.
    to: WeightsMark,
    /// The slow weights of this rank at that time, `[P]`. Operations between which none moved share
    /// them.
    weights: Arc<Vec<f32>>,
    /// Whether they contain a step that failed here, too.
    lacks_step: bool,
}

/// Why ranks could not become equal.
pub(super) enum Failed {
    /// A rank was lost.
    Group(dnode_collective::Error),
    /// Training ends.
    End(End),
}

impl From<dnode_collective::Error> for Failed {
    fn from(error: dnode_collective::Error) -> Self {
        Self::Group(error)
    }
}

/// All ranks of a group as they know each other.
struct Table {
    ranks: Vec<Standing>,
    own: Standing,
    /// The rank whose state all take over.
    root: usize,
}

impl RackMember {
    /// Takes over the state of the most advanced rank, the lead. What mixing has moved at the other
    /// ranks is added: since what they gave to an operation that the lead contains, or since they had
    /// equal weights. Ranks that are apart from the lead count as much as it, and all take the mean.
    /// Returns the slow weights that all ranks have then.
    pub(super) fn equalize(
        &mut self,
        group: &mut dyn Collective,
        id: u64,
        context: &mut Context,
    ) -> Result<Vec<f32>, Failed> {
        let place = group.place();
        let shared = context.shared.clone();
        let lock = shared.lock();
        let own = self.standing(context.cursor.standing(lock.weights().len() as u64));
        let table = compare(group, own)?;
        let Table { ranks, own, root } = &table;
        let lead = ranks[*root];
        let handed = self.handed.iter().find(|handed| handed.to == lead.mark);
        let lacks_step = handed.is_some_and(|handed| handed.lacks_step) || own.lacks_step_of(lead);
        let mut moved = match (&self.rack, handed) {
            (Some(rack), _) if own.is_in_step_with(lead) => lock.moved_since(&rack.base),
            (_, Some(handed)) if own.is_part_of(lead) => lock.moved_since(&handed.weights),
            _ => lock.weights().to_vec(),
        };
        let (mut state, mut lock) = context.replica.save_in(lock);
        share(group, *root, &mut state)?;
        if place.rank == *root {
            moved.fill(0.0);
        } else if own.is_apart_from(lead) {
            let scale = 1.0 / units(ranks, *root) as f32;
            for (value, theirs) in moved.iter_mut().zip(&state.parameters) {
                *value = (*value - theirs) * scale;
            }
        }
        if let Err(error) = group.all_reduce(&mut moved, Reduction::Sum) {
            self.hand_in(WeightsMark { group: id, commits: 0 }, &lock.weights(), lacks_step);
            return Err(error.into());
        }
        add(&mut state.parameters, &moved);
        if let Some(outer) = &mut state.outer {
            add(&mut outer.live, &moved);
        }
        let restored = context.replica.restore_in(&mut lock, &state);
        restored.map_err(|error| Failed::End(End::Failed(error)))?;
        let base = lock.weights().to_vec();
        self.handed.clear();
        stand_with(&table, lacks_step, context).map_err(Failed::End)?;
        drop(lock);
        Ok(base)
    }

    /// Remembers what this rank gave to an operation that failed here: another rank may have its
    /// result.
    pub(super) fn hand_in(&mut self, to: WeightsMark, weights: &[f32], lacks_step: bool) {
        let last = self.handed.last().map(|handed| &handed.weights);
        let weights = match last {
            Some(last) if last.as_slice() == weights => Arc::clone(last),
            _ => Arc::new(weights.to_vec()),
        };
        if self.handed.len() == HANDED_MAX {
            self.handed.remove(0);
        }
        self.handed.push(Handed { to, weights, lacks_step });
    }

    /// Completes a standing with the marks of the weights that this rank has had in common with others.
    fn standing(&self, mut standing: Standing) -> Standing {
        for (mark, own) in standing.handed.iter_mut().zip(&self.handed) {
            *mark = own.to;
        }
        if let Some(rack) = &self.rack {
            standing.mark = rack.mark;
        }
        standing
    }
}

/// Goes on from where the most advanced rank stands.
fn stand_with(table: &Table, lacks_step: bool, context: &mut Context) -> Result<(), End> {
    if lacks_step {
        // The step that failed here contains this rank's gradient, and is taken over.
        let samples = context.pace.batch();
        context.cursor.count_step(u64::from(samples));
    }
    // All train by one schedule and to one end, whatever each was started with.
    context.end_with(table.ranks.iter().map(|rank| rank.end).max());
    if context.cursor.meet(&table.ranks, table.ranks[table.root]) {
        context.tell_committed(Vec::new())?;
    }
    Ok(())
}

/// Tells all ranks where this one stands.
fn compare(group: &mut dyn Collective, own: Standing) -> Result<Table, Failed> {
    let place = group.place();
    let mut table = vec![0.0; place.size * STANDING_ELEMENTS];
    own.write(&mut table[place.rank * STANDING_ELEMENTS..][..STANDING_ELEMENTS]);
    group.all_gather(&mut table)?;
    let ranks: Vec<Standing> = table.chunks(STANDING_ELEMENTS).map(Standing::read).collect();
    if ranks.iter().any(|rank| rank.parameters != own.parameters) {
        let error = TrainError::Other("the ranks of the rack train different models: `dnode config show` on each tells in what".into());
        return Err(Failed::End(End::Failed(error)));
    }
    if ranks.iter().any(|rank| is_absurd(Clock(rank.clock))) {
        // With it a rank would be refused by all others.
        return Err(Failed::Group(dnode_collective::Error::Arguments("a rank names no clock")));
    }
    let root = lead(&ranks);
    Ok(Table { ranks, own, root })
}

/// Replaces all tensors by those of rank `root`.
fn share(
    group: &mut dyn Collective,
    root: usize,
    state: &mut ReplicaState,
) -> Result<(), dnode_collective::Error> {
    group.broadcast(root, &mut state.parameters)?;
    if let Some(outer) = &mut state.outer {
        group.broadcast(root, &mut outer.live)?;
        group.broadcast(root, &mut outer.momentum)?;
    }
    for tensor in &mut state.trainer.tensors {
        // Codes are refused in racks.
        if let Some(values) = tensor.values.f32_mut() {
            group.broadcast(root, values)?;
        }
    }
    Ok(())
}

fn add(values: &mut [f32], sum: &[f32]) {
    for (value, sum) in values.iter_mut().zip(sum) {
        *value += sum;
    }
}
