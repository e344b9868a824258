//! What is there of a comparison already, and goes on: its plan may get more trials, variants and seeds.

use std::path::{Path, PathBuf};

use super::case::Case;
use super::queue::{QueueError, Setup};
use crate::local::variant_run::VariantRun;
use crate::local::{Baseline, LocalExperiment, Program};
use crate::report::record::RECORD_FILE;
use crate::report::{Machine, MadeBy, Record};

/// Runs in a folder that are not of the plan.
#[derive(Debug, thiserror::Error)]
pub enum OtherPlan {
    /// They trained something else.
    #[error(
        "{} has runs of another workload or condition; a changed one needs a new folder", .0.display()
    )]
    Workload(PathBuf),
    /// The plan lacks a variant or a seed that has run, or has the variant with other settings.
    #[error(
        "{} has runs of `{variant}` with seed {seed}, which the experiment has no more or has with other \
         settings; --changed lets such runs go, and makes anew what the experiment has now",
        folder.display()
    )]
    Variant {
        /// The folder.
        folder: PathBuf,
        /// The variant.
        variant: String,
        /// The seed.
        seed: u64,
    },
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct CaseState {
    /// Name of the case.
    pub case: String,
    /// Its record, as written.
    pub record: Record,
    /// Why it was not run, if it cannot be run here.
    pub skipped: Option<String>,
    /// Variants that cannot be run here, and why.
    pub variants_skipped: Vec<(String, String)>,
}

/// What is there of the cases already.
///
/// # Errors
/// [`QueueError`]: a record cannot be read, or belongs to something else.
pub fn found(cases: &[Case], setup: &Setup) -> Result<Vec<CaseState>, QueueError> {
    let lacks = Baseline::ALL.map(|baseline| {
        let used = cases.iter().flat_map(|case| &case.experiment.variants);
        let used = used.into_iter().any(|variant| variant.program == Program::Baseline(baseline));
        (Program::Baseline(baseline), if used { setup.python.lacks(baseline) } else { None })
    });
    let states = cases.iter().map(|case| {
        let mut state = state(case, setup)?;
        for variant in &case.experiment.variants {
            let why = lacks.iter().find(|(program, _)| *program == variant.program);
            if let Some((_, Some(why))) = why {
                state.variants_skipped.push((variant.name.clone(), why.clone()));
            }
        }
        Ok(state)
    });
    states.collect()
}

/// What is there of a case already.
fn state(case: &Case, setup: &Setup) -> Result<CaseState, QueueError> {
    let folder = setup.folder.join(&case.name);
    let machine = setup.made_by.machine.clone();
    let mut record = Record {
        command: setup.command.clone(),
        begun: setup.begun.clone(),
        machine,
        experiment: case.experiment.clone(),
        runs: Vec::new(),
        failure: None,
    };
    if folder.join(RECORD_FILE).exists() {
        let found = Record::load(&folder)?;
        record.failure.clone_from(&found.failure);
        if !found.runs.is_empty() {
            (record.begun, record.machine) = (found.begun.clone(), found.machine.clone());
        }
        record.runs = kept(found, &case.experiment, setup.changed, &folder)?;
    }
    let (case, skipped) = (case.name.clone(), skipped(case, setup));
    Ok(CaseState { case, record, skipped, variants_skipped: Vec::new() })
}

/// Refuses to go on with runs that another machine, commit or program has made, unless that is wanted.
pub(super) fn same_maker(state: &CaseState, setup: &Setup) -> Result<(), QueueError> {
    // The kernel and the memory may be others after a restart.
    let name =
        |MadeBy { machine: Machine { cpu, cores, commit, .. }, program, limited }: &MadeBy| {
            let held = if *limited { "" } else { ", held to no shares" };
            format!("{cores} cores of {cpu}, commit {commit}, dnode {program}{held}")
        };
    let own = name(&setup.made_by);
    let makers = state.record.runs.iter().filter_map(|run| run.made_by.as_ref()).map(name);
    match makers.into_iter().find(|found| *found != own) {
        Some(found) if !setup.mixed => {
            let folder = setup.folder.join(&state.case);
            Err(QueueError::OtherMaker { folder, found, own })
        }
        _ => Ok(()),
    }
}

/// Why a case cannot be run here.
fn skipped(case: &Case, setup: &Setup) -> Option<String> {
    let error = setup.quotas.as_ref().err()?;
    case.condition
        .slow
        .is_some()
        .then(|| format!("a slow peer needs a limit that is not there: {error}"))
}

/// The runs of `found` that are of the plan, too.
///
/// # Errors
/// [`OtherPlan`]: there are others, and they may not go (`changed`), or the workload is another.
pub(super) fn kept(
    found: Record,
    plan: &LocalExperiment,
    changed: bool,
    folder: &Path,
) -> Result<Vec<VariantRun>, OtherPlan> {
    let Record { experiment: before, runs, .. } = found;
    if before.workload != plan.workload && !runs.is_empty() {
        return Err(OtherPlan::Workload(folder.to_owned()));
    }
    let variant_of = |experiment: &LocalExperiment, run: &VariantRun| {
        experiment.variants.iter().find(|variant| variant.name == run.variant).cloned()
    };
    let is_of_plan = |run: &VariantRun| {
        plan.seeds.contains(&run.seed) && variant_of(plan, run) == variant_of(&before, run)
    };
    let (kept, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(is_of_plan);
    match others.into_iter().next() {
        Some(VariantRun { variant, seed, .. }) if !changed => {
            Err(OtherPlan::Variant { folder: folder.to_owned(), variant, seed })
        }
        _ => Ok(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Program, Variant, Workload};
    use crate::report::Machine;

    fn plan(variants: &[(&str, &str)], seeds: &[u64]) -> LocalExperiment {
        let variant = |&(name, setting): &(&str, &str)| Variant {
            name: name.to_owned(),
            rule: "pairwise".to_owned(),
            peers: 2,
            settings: vec![setting.to_owned()],
            kills: Vec::new(),
            program: Program::Dnode,
        };
        let variants = variants.iter().map(variant).collect();
        LocalExperiment { workload: Workload::default(), variants, seeds: seeds.to_vec() }
    }

    fn record(experiment: LocalExperiment, runs: &[(&str, u64)]) -> Record {
        let runs = runs.iter().map(|(variant, seed)| VariantRun::new(variant, *seed)).collect();
        let (command, begun, failure) = Default::default();
        Record { command, begun, machine: Machine::this(), experiment, runs, failure }
    }

    #[test]
    fn a_plan_goes_on_with_more_variants_and_seeds_and_says_which_runs_are_of_another() {
        let folder = Path::new("out");
        let before = || {
            let ran = [("sync", 1), ("pairs", 1), ("pairs", 2)];
            record(plan(&[("sync", "a=1"), ("pairs", "a=2")], &[1, 2]), &ran)
        };
        let more = plan(&[("pairs", "a=2"), ("sync", "a=1"), ("new", "a=3")], &[2, 1, 3]);
        assert_eq!(kept(before(), &more, false, folder).unwrap(), before().runs);
        // Each kind of change: other settings, a variant less, a seed less; and what is left of the three runs.
        let changes = [
            (plan(&[("sync", "a=1"), ("pairs", "a=3")], &[1, 2]), "`pairs` with seed 1", 1),
            (plan(&[("pairs", "a=2")], &[1, 2]), "`sync` with seed 1", 2),
            (plan(&[("sync", "a=1"), ("pairs", "a=2")], &[1]), "`pairs` with seed 2", 2),
        ];
        for (changed, named, left) in changes {
            let error = kept(before(), &changed, false, folder).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("--changed"), "{error}");
            assert_eq!(kept(before(), &changed, true, folder).unwrap().len(), left, "{named}");
        }
        let mut other = before();
        other.experiment.workload.settings.push("run.steps=7".to_owned());
        for changed in [false, true] {
            let error = kept(other.clone(), &more, changed, folder).unwrap_err().to_string();
            assert!(error.contains("another workload"), "{error}");
        }
        other.runs.clear();
        assert_eq!(kept(other, &more, false, folder).unwrap(), [], "nothing has run yet");
    }
}
