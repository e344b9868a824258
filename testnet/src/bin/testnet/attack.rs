//! `attack`: peers that attack their swarm, in the simulator, and what becomes of the honest ones.

use clap::Args;
use dnode_testnet::attack::{ATTACKS, Attack, AttackPlan, Row, Swarm, rules, run, table};

use super::{Failure, bad_usage, failed, say};

#[derive(Debug, Args)]
pub(super) struct AttackArgs {
    /// Print a Markdown table at the end, besides a line for each attack as it is done.
    #[arg(long)]
    table: bool,
    /// Print the names of the attacks, and run none.
    #[arg(long)]
    list: bool,
    /// This attack alone; repeatable.
    #[arg(long = "attack", value_name = "NAME")]
    attacks: Vec<String>,
    /// How strong the attacks are, in place of what their names say; repeatable.
    #[arg(long = "strength", value_name = "FACTOR", value_parser = strength)]
    strengths: Vec<f32>,
    /// Peers that attack, and peers of the swarm; repeatable.
    #[arg(long = "swarm", value_name = "ATTACKERS/PEERS", value_parser = swarm, default_values = ["1/4", "1/8", "2/8", "2/16"])]
    swarms: Vec<Swarm>,
    /// Rule: gossip-outer, pairwise, pairwise-auto (as often as links carry, with int4, the product's
    /// default) or delta-set; or an aggregator to compare with: mean, median, trimmed-mean, krum or
    /// centered-clip. Repeatable.
    #[arg(long = "rule", default_values = ["gossip-outer", "pairwise"])]
    rules: Vec<String>,
    /// Skewed labels (`data.skew`), besides equal data.
    #[arg(long)]
    skew: Option<f64>,
    /// One run for each seed.
    #[arg(long, value_delimiter = ',', default_values = ["1"])]
    seeds: Vec<u64>,
    /// Local steps of a peer.
    #[arg(long, default_value_t = 1600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Honest peers do not guard themselves (`gossip.guard=false`).
    #[arg(long)]
    no_guard: bool,
}

fn swarm(text: &str) -> Result<Swarm, String> {
    let legal =
        || "expected ATTACKERS/PEERS, at most half of 2 to 64 peers, for example 1/4".to_owned();
    let (attackers, peers) = text.split_once('/').ok_or_else(legal)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| legal());
    let swarm = Swarm { attackers: number(attackers)?, peers: number(peers)? };
    let within =
        (2..=64).contains(&swarm.peers) && (1..=swarm.peers / 2).contains(&swarm.attackers);
    within.then_some(swarm).ok_or_else(legal)
}

fn strength(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|it: &f32| it.is_finite());
    number.ok_or_else(|| "expected a number, for example 0.3".to_owned())
}

fn chosen(names: &[String]) -> Result<Vec<Attack>, Failure> {
    if names.is_empty() {
        return Ok(ATTACKS.to_vec());
    }
    let find = |name: &String| {
        let attack = ATTACKS.iter().find(|attack| attack.name == name);
        let unknown = || bad_usage(format!("--attack {name}: no such attack; --list names them"));
        attack.copied().ok_or_else(unknown)
    };
    names.iter().map(find).collect()
}

/// The rules, whose names all are known.
fn checked(names: &[String]) -> Result<Vec<String>, Failure> {
    let unknown = names.iter().find(|name| !rules().any(|rule| rule == name.as_str()));
    let Some(name) = unknown else { return Ok(names.to_vec()) };
    let known: Vec<&str> = rules().collect();
    Err(bad_usage(format!("--rule {name}: no such rule; there are {}", known.join(", "))))
}

pub(super) fn attack(arguments: &AttackArgs) -> Result<(), Failure> {
    if arguments.list {
        for attack in ATTACKS {
            say(&format!("{} ({})\n", attack.name, attack.blow.name()));
        }
        return Ok(());
    }
    let attacks = chosen(&arguments.attacks)?;
    let strengths = &arguments.strengths;
    let stronger = attacks.iter().flat_map(|it| strengths.iter().map(|strength| it.at(*strength)));
    let plan = AttackPlan {
        attacks: if strengths.is_empty() { attacks } else { stronger.collect() },
        swarms: arguments.swarms.clone(),
        rules: checked(&arguments.rules)?,
        skews: [None].into_iter().chain(arguments.skew.map(Some)).collect(),
        seeds: arguments.seeds.clone(),
        steps: arguments.steps,
        guard: !arguments.no_guard,
    };
    let rows = run(&plan, |row| say(&format!("{}\n", line(row)))).map_err(failed)?;
    if arguments.table {
        say(&format!("\n{}\n", table(&rows)));
    }
    Ok(())
}

fn line(row: &Row) -> String {
    format!(
        "{} {}/{} {}: loss {:.3} times, accuracy {:.1} % ({:.1} %), left out by {:.0} %",
        row.name(),
        row.swarm.attackers,
        row.swarm.peers,
        row.rule,
        row.loss_times,
        100.0 * row.accuracy,
        100.0 * row.accuracy_without,
        100.0 * row.named,
    )
}
