//! The last section of a report: what made the runs, and the commands of every variant.

use std::path::Path;

use super::case::Case;
use super::content::Findings;
use crate::local::{Baseline, Program, Variant};
use crate::report::MadeBy;
use crate::report::document::Block;
use crate::report::table::Table;
use crate::report::units;

/// What stands for the folder of the data, so that a report says the same wherever it lies.
const DATA: &str = "FOLDER";
/// What stands for the name of a variant in the folder of a peer.
const ARM: &str = "ARM";

/// Commands, machines and commits.
pub(super) fn blocks(findings: &Findings<'_>) -> Vec<Block> {
    let mut blocks = vec![
        Block::Heading(2, "How to repeat it".to_owned()),
        Block::Code(command(findings)),
        Block::List(makers(findings)),
        Block::Text(format!(
            "The commands below are of the first peer of each variant, first seed; the others differ in \
             `data.shard` and `--listen`, and name the first one's address with `--bootstrap`. \
             `{DATA}` is the folder of the data. The command line as it was given is in each case's \
             `experiment.json`."
        )),
    ];
    for case in &findings.cases {
        blocks.extend(commands(&case.case, findings.data));
    }
    blocks
}

/// The command that makes this comparison.
fn command(findings: &Findings<'_>) -> String {
    let mut words = vec!["dnode-testnet compare".to_owned(), findings.file.display().to_string()];
    words.extend(findings.data.map(|_| format!("--data {DATA}")));
    words.extend(findings.only.iter().map(|name| format!("--only {name}")));
    words.join(" ")
}

/// What made the runs: one sentence for each machine, commit and program.
fn makers(findings: &Findings<'_>) -> Vec<String> {
    let mut makers: Vec<(MadeBy, Vec<&str>)> = Vec::new();
    for case in &findings.cases {
        let record = &case.state.record;
        let whole =
            MadeBy { machine: record.machine.clone(), program: String::new(), limited: true };
        for run in &record.runs {
            let made_by = run.made_by.as_ref().unwrap_or(&whole);
            match makers.iter_mut().find(|(known, _)| known == made_by) {
                Some((_, cases)) => cases.push(&case.case.name),
                None => makers.push((made_by.clone(), vec![&case.case.name])),
            }
        }
    }
    let sentence = |(MadeBy { machine, program, limited: _ }, mut cases): (MadeBy, Vec<&str>)| {
        let runs = cases.len();
        cases.dedup();
        let program = if program.is_empty() {
            String::new()
        } else {
            format!(", `dnode` with BLAKE3 `{program}`")
        };
        format!(
            "{runs} runs of {} at commit `{}`{program}, on {} cores of {} with {} of memory, {}.",
            cases.join(", "),
            machine.commit,
            machine.cores,
            machine.cpu,
            units::bytes(machine.memory_bytes),
            machine.system,
        )
    };
    makers.into_iter().map(sentence).collect()
}

/// The commands of a case: what all variants have, and each one's own.
fn commands(case: &Case, data: Option<&Path>) -> Vec<Block> {
    let variants = &case.experiment.variants;
    let options: Vec<Vec<String>> =
        variants.iter().map(|variant| options(case, variant, data)).collect();
    let mut shared = options.first().cloned().unwrap_or_default();
    shared.retain(|option| options.iter().all(|own| own.contains(option)));
    let killed = variants.iter().any(|variant| !variant.kills.is_empty());
    let columns = ["variant", "program", "options of its own", "killed"];
    let columns = &columns[..columns.len() - usize::from(!killed)];
    let mut table = Table::with_header(columns.iter().map(|&name| name.to_owned()).collect());
    for (variant, options) in variants.iter().zip(&options) {
        let own = options.iter().filter(|option| !shared.contains(option));
        let kills: Vec<String> = variant.kills.iter().map(ToString::to_string).collect();
        let mut row = vec![
            variant.name.clone(),
            program(&variant.program).to_owned(),
            own.map(String::as_str).collect::<Vec<_>>().join(" "),
            kills.join("; "),
        ];
        row.truncate(columns.len());
        table.row(row);
    }
    vec![
        Block::Heading(3, format!("Commands of {}", case.name)),
        Block::Text("Every variant has these options, then its own:".to_owned()),
        Block::Code(shared.join(" ")),
        Block::Table(table),
    ]
}

const fn program(program: &Program) -> &'static str {
    match program {
        Program::Dnode => "dnode join",
        Program::Baseline(Baseline::Ddp) => "python3 testnet/baselines/ddp.py",
        Program::Baseline(Baseline::DnodePython) => "python3 testnet/baselines/dnode_peer.py",
        Program::Baseline(Baseline::Hivemind) => "python3 testnet/baselines/hivemind_peer.py",
        Program::ParameterServer => "dnode-testnet parameter-server work",
    }
}

/// The options of a variant's first peer, each with its value.
fn options(case: &Case, variant: &Variant, data: Option<&Path>) -> Vec<String> {
    let experiment = &case.experiment;
    let seed = experiment.seeds.first().copied().unwrap_or(1);
    let folder = Path::new(ARM).join(seed.to_string()).join("peer-0");
    let words = variant.arguments(&experiment.workload, seed, 0, &folder);
    let data = data.map(|data| data.display().to_string());
    let mut options: Vec<String> = Vec::new();
    // The first word is the program's command.
    for word in words.into_iter().skip(1) {
        let word = data.as_ref().map_or_else(|| word.clone(), |data| word.replace(data, DATA));
        match options.last_mut() {
            Some(option) if !word.starts_with("--") => {
                option.push(' ');
                option.push_str(&word);
            }
            _ => options.push(word),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Maker;
    use crate::experiment::Experiment;

    const PLAN: &str = r#"
        title = "x"
        seeds = [7]
        peers = [2]
        [[workload]]
        name = "w"
        steps = 8
        batch = 4
        set = ["data.path=/there/it/is/mnist"]
        [[variant]]
        name = "sync"
        kind = "sync"
        [[variant]]
        name = "often"
        kind = "gossip-outer"
        set = ["gossip.local_steps=2"]
        [[condition]]
        name = "undisturbed"
        what = "Nothing."
    "#;

    #[test]
    fn shared_and_own_options_are_the_command_and_name_no_folder_of_the_data() {
        let plan = Experiment::parse(PLAN).unwrap();
        let maker = Maker { plan: &plan, cores: 2 };
        let case = &maker.compared(&[])[0];
        let blocks = commands(case, Some(Path::new("/there/it/is")));
        let [_, _, Block::Code(shared), Block::Table(table)] = &blocks[..] else {
            panic!("{blocks:?}")
        };
        let table = table.render();
        let lines = [shared.as_str(), &table];
        assert!(lines.iter().all(|text| !text.contains("/there")), "{lines:?}");
        assert!(shared.contains("--set data.path=FOLDER/mnist"), "{shared}");
        assert!(shared.starts_with("--exit-with-stdin --no-mdns --data-dir ARM/7/peer-0"));
        let row = |name: &str| {
            let row = table.lines().find(|line| line.contains(&format!("| {name} ")));
            row.unwrap_or_default().to_owned()
        };
        assert!(row("often").contains("gossip.local_steps=2 "), "{table}");
        assert!(row("sync").contains("--set gossip.rule=all-reduce"), "{table}");
        // Of two values of one setting the later one counts: shared ones come first.
        for variant in &case.experiment.variants {
            let options = options(case, variant, None);
            let is_shared = |option: &String| shared.contains(option.as_str());
            for (at, option) in options.iter().enumerate().filter(|(_, option)| !is_shared(option))
            {
                let key = option.split('=').next().unwrap_or_default();
                let later = options[at..].iter().filter(|later| is_shared(later));
                assert!(
                    later.clone().all(|later| later.split('=').next() != Some(key)),
                    "{option} is overruled: {options:?}"
                );
            }
        }
    }
}
