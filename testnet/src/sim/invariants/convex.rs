//! MixingRule epidemic: averaging leaves no value outside what was ever started with or committed.

use super::super::view::View;
use super::property::{Moment, Property};

/// Rounding that is allowed, relative to the range.
const TOLERANCE: f64 = 1e-9;

/// Keeps the range of each element over all replicas and all time.
#[derive(Debug, Default)]
pub(super) struct Convex {
    /// Least and greatest value of each element: `[fragments · width]`.
    range: Vec<(f64, f64)>,
}

impl Convex {
    fn widen(&mut self, values: &[f64]) {
        self.range.resize(values.len().max(self.range.len()), (f64::MAX, f64::MIN));
        for ((least, most), value) in self.range.iter_mut().zip(values) {
            (*least, *most) = (least.min(*value), most.max(*value));
        }
    }
}

impl Property for Convex {
    fn name(&self) -> &'static str {
        "convex"
    }

    fn observe(&mut self, moment: &Moment<'_>, view: &View<'_>) -> Result<(), String> {
        match moment {
            Moment::Joined { peer } | Moment::Committed { peer, .. } => {
                if let Some(host) = view.host(*peer) {
                    self.widen(&host.values());
                }
                Ok(())
            }
            Moment::Worked { peer, .. } => {
                let values = view.host(*peer).map(|host| host.values()).unwrap_or_default();
                for (element, (value, (least, most))) in values.iter().zip(&self.range).enumerate()
                {
                    let slack = TOLERANCE * (1.0 + most - least);
                    if !(least - slack..=most + slack).contains(value) {
                        return Err(format!(
                            "element {element} of p{peer} is {value}, outside {least} to {most}"
                        ));
                    }
                }
                Ok(())
            }
            Moment::Gone { .. }
            | Moment::Said { .. }
            | Moment::Handled { .. }
            | Moment::Reached(_) => Ok(()),
        }
    }
}
