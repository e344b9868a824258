//! One workload with one number of peers under one condition: the plan of a `run`, in a folder of
//! its own.

use dnode_netem::command::{Change, Lines, Who};
use dnode_netem::{Command, Plan};

use crate::experiment::{Churn, Condition, Experiment, Kind, TUNING, Way, Work, place};
use crate::local::{Baseline, Kill, KillAt, LocalExperiment, Program, Variant, Workload};
use crate::scenario::Scenario;
use crate::scenario::link::LinkModel;

/// Lines of training progress of each peer in a run.
const PROGRESS_LINES: u64 = 50;
/// The same where peers are killed: what a killed one does after its last line is not counted.
const PROGRESS_LINES_OF_KILLED: u64 = 200;
/// Checkpoints of a peer that are kept to be measured: all.
const CHECKPOINTS_KEPT: u64 = 1_000_000;

/// One workload, number of peers and condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name of its folder.
    pub name: String,
    /// The workload.
    pub work: Work,
    /// Peers of all variants but those of a single peer.
    pub peers: usize,
    /// The condition.
    pub condition: Condition,
    /// What is run: the variants in the order of the comparison.
    pub experiment: LocalExperiment,
    /// The network between the peers, if it is not loopback.
    pub network: Option<Plan>,
    /// Cores of a peer that is not slow.
    pub share: f64,
    /// The variants of the comparison, those of other cases too.
    pub ways: Vec<String>,
}

/// The best trial of a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Case of the trials.
    pub case: String,
    /// The variant.
    pub variant: String,
    /// Index of the trial.
    pub trial: usize,
    /// Its settings.
    pub settings: Vec<String>,
}

/// What makes cases of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Maker<'a> {
    /// The comparison.
    pub plan: &'a Experiment,
    /// Cores of the machine.
    pub cores: usize,
}

impl Maker<'_> {
    /// The cases in which the variants are tuned: undisturbed, a variant for each trial.
    #[must_use]
    pub fn tuning(&self) -> Vec<Case> {
        let Some(tuning) = &self.plan.tuning else { return Vec::new() };
        let condition = Condition { name: TUNING.to_owned(), ..Condition::default() };
        self.places(&condition, vec![tuning.seed], |way, work, _| {
            let trials = work.trials_of(way).iter().enumerate();
            trials.map(|(index, trial)| (trial_name(&way.name, index), trial.clone())).collect()
        })
    }

    /// The cases that are compared, with the best trial of each variant.
    #[must_use]
    pub fn compared(&self, choices: &[Choice]) -> Vec<Case> {
        let cases = self.plan.condition.iter().map(|condition| {
            self.places(condition, self.plan.seeds.clone(), |way, _, place| {
                let case = format!("{place}-{TUNING}");
                let chosen = choices.iter().find(|c| c.variant == way.name && c.case == case);
                vec![(way.name.clone(), chosen.map_or_else(Vec::new, |c| c.settings.clone()))]
            })
        });
        cases.flatten().collect()
    }

    /// The condition at every workload and number of peers; `variants` names the variants of a way in a
    /// place, and their settings.
    fn places(
        &self,
        condition: &Condition,
        seeds: Vec<u64>,
        variants: impl Fn(&Way, &Work, &str) -> Vec<(String, Vec<String>)>,
    ) -> Vec<Case> {
        let mut cases = Vec::new();
        for (work, peers) in self.plan.places().filter(|(work, _)| condition.is_for(work)) {
            let place = place(work, peers);
            let ways = self.plan.ways(condition, &place).flat_map(|way| {
                let named = variants(way, work, &place).into_iter();
                named.map(|named| self.variant(way, (work, peers), condition, named))
            });
            let experiment = LocalExperiment {
                workload: self.workload((work, peers), condition),
                variants: ways.collect(),
                seeds: seeds.clone(),
            };
            cases.push(Case {
                name: format!("{place}-{}", condition.name),
                work: work.clone(),
                peers,
                condition: condition.clone(),
                experiment,
                network: network(condition, peers),
                share: self.plan.share(peers, self.cores),
                ways: self.plan.variant.iter().map(|way| way.name.clone()).collect(),
            });
        }
        cases
    }

    fn workload(&self, (work, peers): (&Work, usize), condition: &Condition) -> Workload {
        let own = work.settings.iter().chain(&condition.settings).cloned();
        let local =
            ["local_steps", "mix_every"].map(|key| format!("gossip.{key}={}", work.local_steps));
        let length = self.length(work, work.steps, condition);
        let Condition { link, slow, .. } = condition;
        let share = self.plan.share(peers, self.cores);
        let machines = format!("link {link:?}, slow {slow:?}, {share:.4} cores");
        Workload {
            config: None,
            settings: local.into_iter().chain(own).chain(length).collect(),
            emulated: condition.link.is_some(),
            machines,
            rack: condition.racks,
        }
    }

    /// As many steps and as many points for every variant: checkpoints, which are measured after the run.
    fn length(&self, work: &Work, steps: u64, condition: &Condition) -> [String; 6] {
        let is_quiet = condition.churn.is_none();
        let lines = if is_quiet { PROGRESS_LINES } else { PROGRESS_LINES_OF_KILLED };
        [
            format!("run.steps={steps}"),
            format!("run.batch={}", work.batch),
            format!("node.checkpoint_every={}", self.plan.between_points(steps)),
            format!("node.checkpoints_kept={CHECKPOINTS_KEPT}"),
            "node.evaluate_every=0".to_owned(),
            format!("node.metrics_every={}", (steps / lines).max(1)),
        ]
    }

    fn variant(
        &self,
        way: &Way,
        (work, peers): (&Work, usize),
        condition: &Condition,
        (name, tuned): (String, Vec<String>),
    ) -> Variant {
        let alone = way.kind == Kind::Single;
        let mut settings: Vec<String> =
            way.kind.settings().iter().map(ToString::to_string).collect();
        if matches!(way.kind, Kind::LocalSgd | Kind::Diloco) {
            settings.push(format!("gossip.local_steps={}", work.local_steps));
        }
        if alone {
            // The same samples in as many more steps.
            settings.extend(self.length(work, work.steps * peers as u64, condition));
        }
        settings.extend(way.settings.iter().cloned().chain(tuned));
        let peers = if alone { 1 } else { peers };
        let kills = condition.churn.filter(|_| !alone).map_or_else(Vec::new, |c| kills(c, peers));
        let program = match way.kind {
            Kind::ParameterServer => Program::ParameterServer,
            Kind::Ddp => Program::Baseline(Baseline::Ddp),
            Kind::DnodePython => Program::Baseline(Baseline::DnodePython),
            Kind::Hivemind => Program::Baseline(Baseline::Hivemind),
            Kind::Single
            | Kind::Sync
            | Kind::LocalSgd
            | Kind::Diloco
            | Kind::GossipOuter
            | Kind::Pairwise
            | Kind::DeltaSet => Program::Dnode,
        };
        Variant { name, settings, kills, program, ..Variant::new(way.kind.rule(), peers) }
    }
}

impl Case {
    /// How many runs it has: each variant with each seed.
    #[must_use]
    pub const fn runs(&self) -> usize {
        self.experiment.variants.len() * self.experiment.seeds.len()
    }

    /// Samples that every run of this case trains on.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.work.steps * self.global_batch()
    }

    /// Samples of one step of all peers.
    #[must_use]
    pub const fn global_batch(&self) -> u64 {
        self.work.batch * self.peers as u64
    }

    /// Cores of each process of a variant.
    #[must_use]
    pub fn shares(&self, variant: &Variant) -> Vec<f64> {
        let mut shares = vec![self.share; variant.peers];
        // A peer alone is not the slow one.
        if let (Some(slow), true, Some(last)) =
            (self.condition.slow, variant.peers > 1, shares.last_mut())
        {
            *last /= slow.factor;
        }
        shares
    }
}

/// Name of the variant of a trial.
#[must_use]
pub fn trial_name(variant: &str, index: usize) -> String {
    format!("{variant}.{index}")
}

/// Each wave kills peers that no wave before has killed, as long as there are some.
fn kills(churn: Churn, peers: usize) -> Vec<Kill> {
    let size = ((peers * usize::from(churn.percent) + 50) / 100).clamp(1, peers - 1);
    let waves = (0..usize::from(churn.waves)).flat_map(|wave| {
        let percent = 100 * (wave + 1) / (usize::from(churn.waves) + 1);
        let at = KillAt::Percent(u8::try_from(percent).unwrap_or(99));
        let away_ms = u64::try_from(churn.away.as_millis()).ok();
        (0..size).map(move |index| Kill { peer: (wave * size + index) % peers, at, away_ms })
    });
    waves.collect()
}

fn network(condition: &Condition, peers: usize) -> Option<Plan> {
    let link = condition.link.clone()?;
    // The last line is that of a server, where there is one.
    let machines = u32::try_from((peers + 1).div_ceil(condition.racks.max(1))).ok()?;
    let plan = |link| Scenario { peers: machines, link, ..Scenario::default() }.network(0);
    if condition.racks == 0 {
        return Some(plan(link));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bits per second are checked to be few"
    )]
    let limit = Change { bits_per_s: Some(link.bandwidth.round() as u64), ..Change::default() };
    let mut plan = plan(LinkModel { bandwidth: 0.0, ..link });
    plan.setup.push(Command::Lines(Lines::Between(Who::All, Who::All), limit));
    Some(plan)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use dnode_netem::link::LinkSettings;

    const PLAN: &str = r#"
        title = "two ways"
        seeds = [1, 2]
        peers = [4, 8]
        tuning = { rule = "the best of two", seed = 9 }
        [[workload]]
        name = "digits"
        steps = 100
        batch = 16
        trials = [["optimizer.learning_rate=0.1"], ["optimizer.learning_rate=0.2"]]
        [[variant]]
        name = "sync"
        kind = "sync"
        [[variant]]
        name = "single"
        kind = "single"
        trials = [[], ["optimizer.learning_rate=0.2"]]
        [[condition]]
        name = "hard"
        slow = { factor = 4.0 }
        churn = { waves = 3, percent = 30, away = "1s" }
        set = ["data.skew=0.1"]
    "#;

    #[test]
    fn every_variant_has_the_same_samples_and_its_best_trial() {
        let plan = Experiment::parse(PLAN).unwrap();
        let maker = Maker { plan: &plan, cores: 2 };
        let tuning = maker.tuning();
        let names: Vec<&str> = tuning.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["digits-4-tuning", "digits-8-tuning"]);
        assert_eq!(tuning[0].experiment.variants.len(), 4);
        let choice = Choice {
            case: "digits-8-tuning".to_owned(),
            variant: "sync".to_owned(),
            trial: 1,
            settings: vec!["optimizer.learning_rate=0.2".to_owned()],
        };
        let cases = maker.compared(&[choice]);
        let settings = |case: usize, variant: usize| {
            cases[case].experiment.variants[variant].settings.join(" ")
        };
        assert_eq!(settings(0, 0), "");
        assert_eq!(settings(1, 0), "optimizer.learning_rate=0.2");
        assert!(settings(1, 1).contains("run.steps=800"), "{}", settings(1, 1));
        assert_eq!((cases[1].budget(), cases[1].experiment.variants[1].peers), (100 * 16 * 8, 1));
        assert!(cases[0].experiment.workload.settings.contains(&"data.skew=0.1".to_owned()));
    }

    #[test]
    fn variants_are_left_out_of_a_condition_and_nowhere_else() {
        let text = PLAN.replace("name = \"hard\"", "name = \"hard\"\nwithout = [\"single\"]");
        let plan = Experiment::parse(&text).unwrap();
        let maker = Maker { plan: &plan, cores: 2 };
        let variants = |case: &Case| case.experiment.variants.len();
        assert_eq!(maker.compared(&[]).iter().map(variants).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(maker.tuning().iter().map(variants).collect::<Vec<_>>(), [4, 4]);
        assert!(Experiment::parse(&text.replace("[\"single\"]", "[\"nobody\"]")).is_err());
    }

    #[test]
    fn racks_are_machines_and_each_pair_of_them_has_a_line() {
        let racks = "name = \"hard\"\nracks = 2\nlink = { bandwidth = 1e8, delay = \"5ms\" }";
        let plan = Experiment::parse(&PLAN.replace("name = \"hard\"", racks)).unwrap();
        let maker = Maker { plan: &plan, cores: 2 };
        let network = maker.compared(&[])[0].network.clone().unwrap();
        // Two machines of two peers, and one for a server.
        assert_eq!(network.nodes, 3);
        let between = |from: usize, to: usize| {
            let mut line = LinkSettings::default();
            for command in &network.setup {
                if let Command::Lines(Lines::Between(a, b), change) = command
                    && a.contains(from)
                    && b.contains(to)
                {
                    line = change.apply(&line);
                }
            }
            (line.delay, line.bits_per_s)
        };
        for (from, to) in [(0, 1), (1, 0), (0, 2)] {
            assert_eq!(between(from, to), (Duration::from_millis(5), 100_000_000));
        }
        // Nothing limits what a machine sends in all.
        let all = network.setup.iter().all(|command| {
            let Command::Lines(Lines::Up(_) | Lines::Down(_), change) = command else {
                return true;
            };
            change.bits_per_s == Some(0)
        });
        assert!(all, "{:?}", network.setup);
    }

    #[test]
    fn waves_kill_different_peers_and_the_last_peer_is_slow() {
        let plan = Experiment::parse(PLAN).unwrap();
        let maker = Maker { plan: &plan, cores: 2 };
        let cases = maker.compared(&[]);
        let variant = |index: usize| &cases[1].experiment.variants[index];
        let kills: Vec<String> = variant(0).kills.iter().map(ToString::to_string).collect();
        assert_eq!(kills.len(), 6, "{kills:?}");
        assert_eq!(kills[3], "3@50%, back after 1000 ms");
        assert!(variant(1).kills.is_empty());
        let shares = cases[1].shares(variant(0));
        assert!((shares[7] - shares[0] / 4.0).abs() < 1e-12, "{shares:?}");
        assert_eq!(cases[1].shares(variant(1)).len(), 1);
    }
}
