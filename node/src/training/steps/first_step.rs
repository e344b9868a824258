//! What others compare their machines by: the digest of a first step that is not taken.

use dnode_trainer::TrainError;

use super::Training;
use super::context::Context;
use super::end::End;
use crate::tools::check::{FirstStep, not_told};
use crate::training::{Activity, Report};

impl Training {
    /// Computes what others compare their machines by, with weights that nobody has moved yet.
    pub(super) fn tell_first_step(&mut self, first_step: FirstStep) -> Result<(), End> {
        let Context { replica, queues, .. } = &mut self.context;
        queues.enter(Activity::Step);
        let digest = first_step.digest(replica.trainer_mut());
        queues.enter(Activity::Idle);
        match digest {
            Ok(digest) => queues.tell(Report::FirstStep(digest)),
            // This peer is to leave.
            Err(TrainError::Interrupted) => Ok(()),
            Err(why) => queues.tell(Report::FirstStep(not_told(&why.to_string()))),
        }
    }
}
