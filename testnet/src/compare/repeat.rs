//! The last section of a report: what made the runs, and the commands of every arm.

use std::path::Path;

use super::cell::Cell;
use super::content::Findings;
use super::document::Block;
use crate::local::{Arm, Baseline, Program};
use crate::report::MadeBy;
use crate::report::table::Table;
use crate::report::units;

/// What stands for the folder of the data, so that a report says the same wherever it lies.
const DATA: &str = "FOLDER";
/// What stands for the name of an arm in the folder of a peer.
const ARM: &str = "ARM";

/// Commands, machines and commits.
pub(super) fn blocks(findings: &Findings<'_>) -> Vec<Block> {
    let mut blocks = vec![
        Block::Heading(2, "How to repeat it".to_owned()),
        Block::Code(command(findings)),
        Block::List(makers(findings)),
        Block::Text(format!(
            "The commands below are of the first peer of each arm, first seed; the others differ in \
             `data.shard` and `--listen`, and name the first one's address with `--bootstrap`. \
             `{DATA}` is the folder of the data. The command line as it was given is in each cell's \
             `experiment.json`."
        )),
    ];
    for cell in &findings.cells {
        blocks.extend(commands(&cell.cell, findings.data));
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
    for cell in &findings.cells {
        let record = &cell.state.record;
        let whole = MadeBy { machine: record.machine.clone(), program: String::new() };
        for run in &record.runs {
            let made_by = run.made_by.as_ref().unwrap_or(&whole);
            match makers.iter_mut().find(|(known, _)| known == made_by) {
                Some((_, cells)) => cells.push(&cell.cell.name),
                None => makers.push((made_by.clone(), vec![&cell.cell.name])),
            }
        }
    }
    let sentence = |(MadeBy { machine, program }, mut cells): (MadeBy, Vec<&str>)| {
        let runs = cells.len();
        cells.dedup();
        let program = if program.is_empty() {
            String::new()
        } else {
            format!(", `dnode` with BLAKE3 `{program}`")
        };
        format!(
            "{runs} runs of {} at commit `{}`{program}, on {} cores of {} with {} of memory, {}.",
            cells.join(", "),
            machine.commit,
            machine.cores,
            machine.cpu,
            units::bytes(machine.memory_bytes),
            machine.system,
        )
    };
    makers.into_iter().map(sentence).collect()
}

/// The commands of a cell: what all arms have, and each one's own.
fn commands(cell: &Cell, data: Option<&Path>) -> Vec<Block> {
    let arms = &cell.experiment.arms;
    let options: Vec<Vec<String>> = arms.iter().map(|arm| options(cell, arm, data)).collect();
    let mut shared = options.first().cloned().unwrap_or_default();
    shared.retain(|option| options.iter().all(|own| own.contains(option)));
    let killed = arms.iter().any(|arm| !arm.kills.is_empty());
    let columns = ["arm", "program", "options of its own", "killed"];
    let columns = &columns[..columns.len() - usize::from(!killed)];
    let mut table = Table::with_header(columns.iter().map(|&name| name.to_owned()).collect());
    for (arm, options) in arms.iter().zip(&options) {
        let own = options.iter().filter(|option| !shared.contains(option));
        let kills: Vec<String> = arm.kills.iter().map(ToString::to_string).collect();
        let mut row = vec![
            arm.name.clone(),
            program(&arm.program).to_owned(),
            own.map(String::as_str).collect::<Vec<_>>().join(" "),
            kills.join("; "),
        ];
        row.truncate(columns.len());
        table.row(row);
    }
    vec![
        Block::Heading(3, format!("Commands of {}", cell.name)),
        Block::Text("Every arm has these options, then its own:".to_owned()),
        Block::Code(shared.join(" ")),
        Block::Table(table),
    ]
}

const fn program(program: &Program) -> &'static str {
    match program {
        Program::Dnode => "dnode join",
        Program::Baseline(Baseline::Ddp) => "python3 testnet/baselines/ddp.py",
        Program::Baseline(Baseline::Hivemind) => "python3 testnet/baselines/hivemind_peer.py",
        Program::ParameterServer => "dnode-testnet parameter-server work",
    }
}

/// The options of an arm's first peer, each with its value.
fn options(cell: &Cell, arm: &Arm, data: Option<&Path>) -> Vec<String> {
    let experiment = &cell.experiment;
    let seed = experiment.seeds.first().copied().unwrap_or(1);
    let folder = Path::new(ARM).join(seed.to_string()).join("peer-0");
    let words = arm.arguments(&experiment.workload, seed, 0, &folder);
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
    use crate::compare::{Comparison, Maker};

    const PLAN: &str = r#"
        title = "x"
        seeds = [7]
        peers = [2]
        [[workload]]
        name = "w"
        steps = 8
        batch = 4
        settings = ["data.path=/there/it/is/mnist"]
        [[arm]]
        name = "sync"
        kind = "sync"
        [[arm]]
        name = "often"
        kind = "gossip-outer"
        settings = ["gossip.local_steps=2"]
        [[condition]]
        name = "undisturbed"
        what = "Nothing."
    "#;

    #[test]
    fn shared_and_own_options_are_the_command_and_name_no_folder_of_the_data() {
        let plan = Comparison::parse(PLAN).unwrap();
        let maker = Maker { plan: &plan, file: Path::new("x.toml"), cores: 2 };
        let cell = &maker.compared(&[])[0];
        let blocks = commands(cell, Some(Path::new("/there/it/is")));
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
        for arm in &cell.experiment.arms {
            let options = options(cell, arm, None);
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
