//! What is legal of an experiment file.

use super::condition::Condition;
use super::{
    Experiment, Kind, PEERS_MAX, RING_MAX, RUNS_MAX, Simulation, TUNING, Way, Work, place,
};
use crate::file::{ReadError, Rule, check};
use crate::scenario::link::LinkModel;

const NAMES: &str = "unique, of letters, digits, `.` and `-`, and not `tuning`";

/// Whether there are some, and each is there once: runs of two would be in one folder.
fn each_once<T: PartialEq>(values: &[T]) -> bool {
    !values.is_empty() && (1..values.len()).all(|end| !values[..end].contains(&values[end]))
}

impl Experiment {
    /// Checks what only real processes are bound to.
    ///
    /// # Errors
    /// [`ReadError::Range`] names the key.
    pub fn check_for_processes(&self) -> Result<(), ReadError> {
        let ring =
            |variant: &Way| matches!(variant.kind, Kind::Sync | Kind::LocalSgd | Kind::Diloco);
        let most = if self.variant.iter().any(ring) { RING_MAX } else { PEERS_MAX };
        check([
            (
                self.peers.iter().all(|n| (2..=most).contains(n)),
                "peers",
                "2 to 60, 2 to 8 with sync",
            ),
            (!self.target_percent.is_empty(), "target_percent", "one or more"),
            (
                self.simulation == Simulation::default(),
                "simulation",
                "absent: the simulator alone has it",
            ),
            (
                self.condition
                    .iter()
                    .flat_map(|it| &it.link)
                    .all(|it| it.duplicate <= 0.0 && !it.reorder),
                "condition.link",
                "without duplicate and reorder, which the simulator alone has",
            ),
            (
                !self.condition.iter().any(Condition::is_simulated),
                "condition",
                "without speed, split, newcomer and misbehaviour, which the simulator alone has",
            ),
        ])
    }

    /// Checks ranges, names and relations.
    pub(super) fn check(&self) -> Result<(), ReadError> {
        let names = |names: Vec<&str>| {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
            let plain = names.iter().all(|name| !name.is_empty() && name.chars().all(legal));
            // Names are those of folders, in which others lie beside them.
            let reserved = [".", "..", TUNING];
            plain && each_once(&names) && !names.iter().any(|name| reserved.contains(name))
        };
        let steps = self.workload.iter().all(|w| w.steps > 0 && w.batch > 0);
        let within_percent = |accuracy| accuracy > 0.0 && accuracy <= 100.0;
        let places: Vec<String> = self.places().map(|(work, peers)| place(work, peers)).collect();
        let unequal = "as many for every variant, and a [tuning] rule exactly if there are some";
        let rules = [
            (names(self.workload.iter().map(|work| &*work.name).collect()), "workload.name", NAMES),
            (
                names(self.variant.iter().map(|variant| &*variant.name).collect()),
                "variant.name",
                NAMES,
            ),
            (names(self.condition.iter().map(|c| &*c.name).collect()), "condition.name", NAMES),
            (each_once(&self.seeds), "seeds", "one seed or more, each once"),
            (each_once(&self.peers), "peers", "one number or more, each once"),
            (
                self.variant.iter().any(|variant| variant.name == self.reference),
                "reference",
                "name of a variant",
            ),
            (
                self.target_percent.iter().all(|target| *target >= 0.0),
                "target_percent",
                "0 or more",
            ),
            (
                self.workload.iter().filter_map(|w| w.target_accuracy).all(within_percent),
                "workload.target_accuracy",
                "more than 0 and at most 100 percent",
            ),
            (
                self.variant
                    .iter()
                    .flat_map(|variant| &variant.places)
                    .all(|place| places.contains(place)),
                "variant.places",
                "a workload and a number of peers, as `mnist-cnn-4`",
            ),
            (self.evaluations > 0, "evaluations", "at least 1"),
            (self.simulation.samples > 0, "simulation.samples", "at least 1"),
            (!self.simulation.step_time.is_zero(), "simulation.step_time", "longer than 0s"),
            ((0.0..=1.0).contains(&self.share), "share", "0 to 1"),
            (steps, "workload.steps", "positive"),
            (self.workload.iter().all(|work| self.is_fairly_tuned(work)), "trials", unequal),
            (
                self.tuning.as_ref().is_none_or(|tuning| !self.seeds.contains(&tuning.seed)),
                "tuning.seed",
                "no seed of the comparison",
            ),
            (self.runs() <= RUNS_MAX, "seeds", "few enough: at most 20000 runs in all"),
        ];
        let links = self.condition.iter().flat_map(|c| &c.link).flat_map(LinkModel::rules);
        check(rules.into_iter().chain(self.rules_of_conditions()).chain(links))
    }

    /// Whether every variant has as many trials of the workload, and some exactly if there is a rule.
    fn is_fairly_tuned(&self, work: &Work) -> bool {
        let trials = self.trials(work);
        self.variant.iter().all(|way| work.trials_of(way).len() == trials)
            && self.tuning.is_some() == (trials > 0)
    }

    /// What is legal of conditions: whether it holds, the key, and what it must be.
    fn rules_of_conditions(&self) -> [Rule; 7] {
        let of_conditions = |legal: fn(&Condition) -> bool| self.condition.iter().all(legal);
        let all = |names: fn(&Condition) -> &Vec<String>| self.condition.iter().flat_map(names);
        [
            (
                of_conditions(|c| c.slow.is_none_or(|s| (1.0..=20.0).contains(&s.factor))),
                "condition.slow.factor",
                "1 to 20",
            ),
            (
                of_conditions(|c| c.racks != 1 && (c.racks == 0 || c.link.is_some())),
                "condition.racks",
                "0 or 2 and more, with a link",
            ),
            (of_conditions(|c| c.speed.is_legal()), "condition.speed", "a legal distribution"),
            (
                of_conditions(|c| c.churn.is_none_or(|c| c.waves > 0 && c.percent < 100)),
                "condition.churn",
                "one wave or more of less than all peers",
            ),
            (
                of_conditions(|c| (0.0..100.0).contains(&c.samples_within_percent)),
                "condition.samples_within_percent",
                "0 to 100",
            ),
            (
                all(|c| &c.workloads)
                    .all(|name| self.workload.iter().any(|work| &work.name == name)),
                "condition.workloads",
                "names of workloads",
            ),
            (
                all(|c| &c.without).all(|name| self.variant.iter().any(|way| &way.name == name)),
                "condition.without",
                "names of variants",
            ),
        ]
    }
}
