//! The command line.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use dnode_protocol::limits::PROTOCOL_VERSION;

pub use join::{Check, Doctor, Flags, Join};
pub use members::{Invite, RunCommand};
pub use text::{Eval, Generate, TokenizerCommand};
pub(crate) use ticket::without_tickets;

mod join;
mod members;
mod text;
mod ticket;

/// Parameters of the longest fragment that there is.
const FRAGMENT_PARAMETERS_MAX: u32 = dnode_protocol::limits::FRAGMENT_ELEMENTS_MAX as u32;

/// Columns of a screen that every help fits on; a wider terminal is no better to read.
const COLUMNS: usize = 100;

/// The version of the program, and that of its protocol: peers of one run have the same one.
fn version() -> &'static str {
    static VERSION: LazyLock<String> =
        LazyLock::new(|| format!("{}, protocol {PROTOCOL_VERSION}", env!("CARGO_PKG_VERSION")));
    &VERSION
}

/// Peer-to-peer training without a server.
#[derive(Debug, Parser)]
#[command(
    name = "dnode",
    version = version(),
    about = "Peer-to-peer training without a server",
    disable_help_subcommand = true,
    max_term_width = COLUMNS,
    after_help = "Example: dnode join --steps 2000 --ui"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Join a swarm and train; without a ticket or --bootstrap start a new one.
    #[command(after_help = "Example: dnode join @ticket --threads 4 --ui")]
    Join(Box<Join>),
    /// Say what this machine and its network can do, before a run; exit status 1 where something fails.
    #[command(after_help = "Example: dnode doctor @ticket --set model.kind=cnn")]
    Doctor(Box<Doctor>),
    /// Compare the first step's loss and gradient on every backend of this machine, and with other
    /// machines'.
    #[command(after_help = "Example: dnode check @ticket --config run.toml")]
    Check(Box<Check>),
    /// Print every configuration key with its meaning, legal values and default; or do more.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Example: dnode config show --config run.toml --set gossip.rule=pairwise"
    )]
    Config {
        /// As the Markdown page docs/configuration.md instead of a TOML file.
        #[arg(long)]
        markdown: bool,
        /// What to do instead.
        #[command(subcommand)]
        command: Option<ConfigCommand>,
    },
    /// Write text with a gpt or llama that was trained, from a checkpoint alone.
    #[command(after_help = "Example: dnode generate dnode-data --prompt 'ROMEO:'")]
    Generate(Generate),
    /// Write a trained gpt or llama as a folder that Hugging Face's transformers opens; of adapters, one
    /// that its peft opens.
    #[command(after_help = "Example: dnode export my-model --from dnode-data")]
    Export {
        /// The folder, which must be empty or not there yet.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// A data directory, of which the newest checkpoint is taken, a checkpoint's folder, or its file
        /// of parameters.
        #[arg(long, value_name = "PATH", default_value = "dnode-data")]
        from: PathBuf,
        /// Write a whole model: adapters together with the weights that they were trained beside.
        #[arg(long, requires = "base")]
        merge: bool,
        /// Folder of these weights.
        #[arg(long, value_name = "DIR", requires = "merge")]
        base: Option<PathBuf>,
    },
    /// Say how well a gpt or llama predicts a text: loss, perplexity and bits per byte; or how many
    /// questions it answers right.
    #[command(after_help = "Example: dnode eval dnode-data --data book.txt --held-out")]
    Eval(Eval),
    /// Train a tokenizer for data.tokenizer, or show one.
    #[command(
        subcommand,
        after_help = "Example: dnode tokenizer train --data book.txt --vocabulary 4096"
    )]
    Tokenizer(TokenizerCommand),
    /// Measure what this machine or a link does.
    #[command(
        subcommand,
        after_help = "Example: dnode bench link --listen   (there; then here what it prints)"
    )]
    Bench(Bench),
    /// Print the completions of a shell.
    #[command(
        after_help = "Example: dnode completions bash > ~/.local/share/bash-completion/completions/dnode"
    )]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, or write those of all commands to a folder.
    #[command(after_help = "Example: dnode man ~/.local/share/man/man1")]
    Man {
        /// The folder.
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Show the swarm in the terminal, as a peer sees it that was started with --ui.
    #[command(after_help = "Example: dnode top --data-dir peer-0")]
    Top {
        /// Where its page is, for example 127.0.0.1:7878; else what its data directory says.
        #[arg(value_name = "ADDRESS")]
        address: Option<String>,
        /// The data directory of the running peer.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
    },
    /// Say whether a peer's audit log holds, or show it: who took part, who was refused.
    #[command(subcommand, after_help = "Example: dnode audit show peer-0")]
    Audit(AuditCommand),
    /// Make a ticket with a fresh secret: for a run that many machines begin at once, or that is to have
    /// another secret.
    #[command(
        after_help = "Example: dnode ticket new-ticket   (then, everywhere: dnode join @new-ticket)"
    )]
    Ticket {
        /// A file to write it to, which must not be there yet; without one it is printed.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Make a run that has an owner, who alone lets others in.
    #[command(subcommand, after_help = "Example: dnode run create --data-dir owner")]
    Run(RunCommand),
    /// Make an invitation to a run that has owners: a ticket for `dnode join`.
    #[command(after_help = "Example: dnode invite --data-dir owner --expires 7d --out invitation")]
    Invite(Invite),
    /// Remove a member from a run that has owners, or take an invitation back with all who came by it. Of
    /// an owner, more than half of the owners, two at least, have to say it.
    #[command(after_help = "Example: dnode revoke --data-dir owner 12D3KooW…")]
    Revoke {
        /// The peer id of the member, or the number of the invitation.
        #[arg(value_name = "PEER|NUMBER")]
        what: String,
        /// The data directory of an owner, or of the member that has invited; its peer may run.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
    },
    /// Print the peer id kept in a data directory; make one where there is none.
    #[command(after_help = "Example: dnode id --data-dir peer-0")]
    Id {
        /// The data directory.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
    },
}

/// What to do with an audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Check the chain of its lines and their seals; exit status 1 where a line is wrong.
    #[command(after_help = "Example: dnode audit verify peer-0/audit-3.jsonl")]
    Verify {
        /// A data directory, or one file of a log.
        #[arg(value_name = "PATH", default_value = "dnode-data")]
        path: PathBuf,
    },
    /// Print who took part, by which way and when, with how many samples and how much influence on this
    /// peer's model, and who was refused.
    #[command(after_help = "Example: dnode audit show peer-0")]
    Show {
        /// A data directory, or one file of a log.
        #[arg(value_name = "PATH", default_value = "dnode-data")]
        path: PathBuf,
    },
}

/// What to do with a configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Write a file with every key, all commented out; a file that is there stays.
    #[command(after_help = "Example: dnode config init run.toml")]
    Init {
        /// The file.
        #[arg(value_name = "FILE", default_value = "dnode.toml")]
        file: PathBuf,
    },
    /// Say whether the flags of `dnode join` make a sound configuration.
    #[command(after_help = "Example: dnode config check --config run.toml")]
    Check(Box<Flags>),
    /// Print the configuration that the flags of `dnode join` make, with the origin of each value.
    #[command(after_help = "Example: dnode config show --config run.toml --steps 500")]
    Show(Box<Flags>),
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Measure the link to another peer, which runs it with --listen: rates, round trip and CPU time
    /// on every kind of path, and which a swarm would take.
    #[command(
        after_help = "Example: dnode bench link --to /ip4/192.0.2.7/udp/4001/quic-v1/p2p/12D3KooW…"
    )]
    Link(LinkArgs),
    /// Measure one exchange between two peers on this machine, part by part and on every kind of path,
    /// beside what its memory and the path would allow. Takes about a minute.
    #[command(after_help = "Example: dnode bench exchange --parameters 100000")]
    Exchange(ExchangeArgs),
}

/// Flags of `dnode bench exchange`.
#[derive(Debug, Args)]
pub struct ExchangeArgs {
    /// Parameters of the fragment that is exchanged, 1 to 1048576.
    #[arg(long, value_name = "N", default_value_t = FRAGMENT_PARAMETERS_MAX,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(FRAGMENT_PARAMETERS_MAX)))]
    pub parameters: u32,
    /// Nobody else can reach the network: measure TCP without TLS as well.
    #[arg(long)]
    pub trusted: bool,
}

/// Flags of `dnode bench link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Address that `dnode bench link --listen` has printed.
    #[arg(long, value_name = "MULTIADDR", required_unless_present = "listen")]
    pub to: Option<String>,
    /// Answer at these addresses, or at any free ports, until interrupted.
    #[arg(long, value_name = "MULTIADDR", num_args = 0.., conflicts_with = "to")]
    pub listen: Option<Vec<String>>,
    /// Nobody else can reach the network: measure TCP without TLS as well.
    #[arg(long)]
    pub trusted: bool,
}

/// The fault of a command line in one line: clap's sentence and its tips, without the usage.
#[must_use]
pub fn fault(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let told = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty());
    let told = told.collect::<Vec<_>>().join("; ").replace(":; ", ": ");
    told.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn join(flags: &[&str]) -> Box<Join> {
        let words = ["dnode", "join"].iter().chain(flags);
        let Command::Join(join) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        join
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// Lines of a screen, the prompt after the help included.
    const LINES: usize = 45;

    /// `command` and all below it, their names in full.
    fn each(command: &mut clap::Command, visit: &mut impl FnMut(&mut clap::Command)) {
        visit(command);
        for under in command.get_subcommands_mut() {
            each(under, visit);
        }
    }

    #[test]
    fn every_help_fits_a_screen_and_has_an_example() {
        let mut all = Cli::command();
        all.build();
        each(&mut all, &mut |command| {
            let name = command.get_bin_name().unwrap_or("dnode").to_owned();
            let text = command.render_help().to_string();
            assert!(text.lines().count() < LINES, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            assert!(text.contains(&format!("Example: {name}")), "{name}: {text}");
        });
    }

    #[test]
    fn every_flag_of_join_is_in_a_group_of_the_long_help() {
        let mut all = Cli::command();
        all.build();
        let join = all.find_subcommand("join").unwrap();
        for flag in join.get_arguments().filter(|flag| flag.get_id() != "help") {
            assert!(flag.get_help_heading().is_some(), "{}", flag.get_id());
        }
    }

    #[test]
    fn flags_become_settings_and_win_over_set() {
        let quic = "/ip4/127.0.0.1/udp/1/quic-v1";
        let flags = [
            "--set",
            "run.steps=5",
            "--set",
            "node.threads=2",
            "--steps",
            "9",
            "--shard",
            "1/4",
            "--no-mdns",
            "--rule",
            "pairwise",
            "--bootstrap",
            quic,
            quic,
            "--bootstrap",
            quic,
            "--data-dir",
            "7",
            "--seed",
            "3",
        ];
        let config = join(&flags).flags.settings().unwrap().resolve().unwrap();
        assert_eq!((config.run.steps, config.run.seed, config.node.threads), (9, 3, 2));
        assert_eq!((config.data.shard, config.data.shards), (Some(1), 4));
        assert!(!config.network.mdns);
        assert_eq!(config.network.bootstrap, [quic, quic, quic]);
        assert_eq!(config.node.data_dir, PathBuf::from("7"));
    }

    #[test]
    fn faults_name_the_flag() {
        for (flags, want) in [
            (&["--steps", "-5"][..], "run.steps = -5 in --steps is not legal: must be an integer"),
            (
                &["--steps", "many"],
                "run.steps = \"many\" in --steps is not legal: must be an integer",
            ),
            (
                &["--shard", "3"],
                "--shard 3 is not legal: must be this peer's shard and their number, for example 0/4",
            ),
            (&["--shard", "4/4"], "data.shard = 4 in --shard does not go with data.shards = 4"),
            (&["--set", "steps"], "--set steps is not legal: must be section.key=value"),
            (
                &["--set", "run.step=1"],
                "unknown key `run.step` in --set: did you mean `run.steps`?",
            ),
            (
                &["--rule", "gossip"],
                "gossip.rule = \"gossip\" in --rule is not legal: must be \"gossip-outer\"",
            ),
            (
                &["--config", "/nowhere/run.toml"],
                "cannot read configuration file /nowhere/run.toml: No such file",
            ),
        ] {
            let result = join(flags).flags.settings().and_then(|settings| settings.resolve());
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn an_unknown_flag_is_one_line_with_its_nearest() {
        let error = Cli::try_parse_from(["dnode", "join", "--step", "3"]).unwrap_err();
        let text = fault(&error);
        assert!(text.contains("--step") && text.contains("--steps"), "{text}");
        assert!(!text.contains('\n') && !text.contains("Usage"), "{text}");
    }
}
