//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{ConfigError, Settings};

/// Peer-to-peer training without a server.
#[derive(Debug, Parser)]
#[command(name = "dnode", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Join a swarm and train; without --bootstrap start a new one.
    Join(Box<Join>),
    /// Compare the first step's loss and gradient on every backend of this machine, and with another
    /// machine's.
    Check(Check),
    /// Print every configuration key with its meaning, legal values and default.
    Config {
        /// As the Markdown page docs/configuration.md instead of a TOML file.
        #[arg(long)]
        markdown: bool,
    },
    /// Measure what this machine or a link does.
    #[command(subcommand)]
    Bench(Bench),
    /// Show the swarm in the terminal, as a peer sees it that was started with --ui.
    Top {
        /// Where its page is, for example 127.0.0.1:7878; else what its data directory says.
        #[arg(value_name = "ADDRESS")]
        address: Option<String>,
        /// The data directory of the running peer.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
    },
    /// Print the peer id kept in a data directory; make one where there is none.
    Id {
        /// The data directory.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
    },
}

/// Flags of `dnode check`; the same as of the `dnode join` that is to follow.
#[derive(Debug, Default, Args)]
pub struct Check {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Any configuration key; several may be given.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Where to compute: cpu, cuda:N or auto [node.device].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// The digest that `dnode check` has printed on another machine of the swarm to be.
    #[arg(long, value_name = "DIGEST")]
    pub against: Option<String>,
}

impl Check {
    /// As [`Join::settings`].
    ///
    /// # Errors
    /// [`ConfigError`] names the first fault.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let Self { config, set, device, .. } = self;
        let (config, set, device) = (config.clone(), set.clone(), device.clone());
        Join { config, set, device, ..Join::default() }.settings()
    }
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The link between this peer and another: rate each way, round trip and CPU time on every kind
    /// of path, and which of them a swarm would take. The other peer runs it with --listen.
    Link(Link),
}

/// Flags of `dnode bench link`.
#[derive(Debug, Args)]
pub struct Link {
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

/// Flags of `dnode join`; a flag that stands for a configuration key is checked as that key.
#[derive(Debug, Default, Args)]
pub struct Join {
    /// Address of any live member; several may be given.
    #[arg(long, value_name = "MULTIADDR", num_args = 1..)]
    pub bootstrap: Vec<String>,
    /// File with more addresses of live members, one a line [network.peers_file].
    #[arg(long, value_name = "FILE")]
    pub peers_file: Option<String>,
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Any configuration key; several may be given. `dnode config` prints them.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Folder of identity, checkpoints and metrics [node.data_dir].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Go on from the newest good checkpoint in the data directory.
    #[arg(long)]
    pub resume: bool,
    /// Peers to wait for before training [network.require_peers].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub require_peers: Option<String>,
    /// Most kB/s sent to all peers together; 0 is no bound [network.max_upload].
    #[arg(long, value_name = "KB/S", allow_negative_numbers = true)]
    pub max_upload: Option<String>,
    /// Most kB/s taken from all peers together; 0 is no bound [network.max_download].
    #[arg(long, value_name = "KB/S", allow_negative_numbers = true)]
    pub max_download: Option<String>,
    /// Name of the rack: near peers of the same name train in step and act as one replica
    /// [network.rack].
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// Address to listen on; several may be given [network.listen].
    #[arg(long, value_name = "MULTIADDR", num_args = 1..)]
    pub listen: Vec<String>,
    /// Do not look for peers on the local network [network.mdns].
    #[arg(long)]
    pub no_mdns: bool,
    /// The model: mlp, cnn or gpt [model.kind].
    #[arg(long, value_name = "KIND")]
    pub model: Option<String>,
    /// The data: digits, mnist or text [data.kind].
    #[arg(long, value_name = "KIND")]
    pub data: Option<String>,
    /// Folder with the MNIST files, or the text file [data.path].
    #[arg(long, value_name = "PATH")]
    pub data_path: Option<String>,
    /// How replicas are averaged: gossip-outer, pairwise, push-sum, delta-set, epidemic, all-reduce or
    /// none [gossip.rule].
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Steps of the run; a peer of mean speed does so many local steps [run.steps].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub steps: Option<String>,
    /// Seed of initial weights, data order and shards [run.seed].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// This peer's shard, counted from 0, of how many: 0/4 [data.shard, data.shards].
    #[arg(long, value_name = "I/N", allow_negative_numbers = true)]
    pub shard: Option<String>,
    /// Threads for the arithmetic [node.threads].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<String>,
    /// Where to compute: cpu, cuda:N, or auto for the first CUDA device if there is one [node.device].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Form of the log: human or json [node.log_format].
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Serve a page that shows the swarm, at port 7878 of this machine or at this address [node.ui].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "auto")]
    pub ui: Option<String>,
    /// Serve metrics to Prometheus at this address, under /metrics [node.metrics].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// End in good order when standard input closes: for programs that start peers.
    #[arg(long)]
    pub exit_with_stdin: bool,
    /// Write the configuration in force to a file and go on.
    #[arg(long, value_name = "FILE")]
    pub save_config: Option<PathBuf>,
}

impl Join {
    /// The settings of file and flags: the flag of a key wins over `--set`, that over the file.
    ///
    /// # Errors
    /// [`ConfigError`] names the first fault.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::new();
        if let Some(path) = &self.config {
            settings.file(path)?;
        }
        for setting in &self.set {
            settings.set(setting)?;
        }
        let single = [
            ("node.data_dir", &self.data_dir, "--data-dir"),
            ("network.require_peers", &self.require_peers, "--require-peers"),
            ("network.max_upload", &self.max_upload, "--max-upload"),
            ("network.max_download", &self.max_download, "--max-download"),
            ("network.rack", &self.rack, "--rack"),
            ("model.kind", &self.model, "--model"),
            ("network.peers_file", &self.peers_file, "--peers-file"),
            ("data.kind", &self.data, "--data"),
            ("data.path", &self.data_path, "--data-path"),
            ("gossip.rule", &self.rule, "--rule"),
            ("run.steps", &self.steps, "--steps"),
            ("run.seed", &self.seed, "--seed"),
            ("node.threads", &self.threads, "--threads"),
            ("node.device", &self.device, "--device"),
            ("node.log_format", &self.log_format, "--log-format"),
            ("node.ui", &self.ui, "--ui"),
            ("node.metrics", &self.metrics, "--metrics"),
        ];
        for (name, text, flag) in single {
            if let Some(text) = text {
                settings.flag(name, text, flag)?;
            }
        }
        let lists = [
            ("network.bootstrap", &self.bootstrap, "--bootstrap"),
            ("network.listen", &self.listen, "--listen"),
        ];
        for (name, texts, flag) in lists {
            if !texts.is_empty() {
                settings.flags(name, texts, flag)?;
            }
        }
        if self.no_mdns {
            settings.flag("network.mdns", "false", "--no-mdns")?;
        }
        if let Some(text) = &self.shard {
            let Some((shard, shards)) = text.split_once('/') else {
                return Err(ConfigError::Flag {
                    flag: "--shard",
                    text: text.clone(),
                    wanted: "must be this peer's shard and their number, for example 0/4",
                });
            };
            settings.flag("data.shards", shards, "--shard")?;
            settings.flag("data.shard", shard, "--shard")?;
        }
        Ok(settings)
    }
}

/// The fault of a command line in one line: clap's sentence and its tips, without the usage.
#[must_use]
pub fn fault(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let told = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty());
    told.collect::<Vec<_>>().join("; ").trim_start_matches("error: ").to_owned()
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
        let config = join(&flags).settings().unwrap().resolve().unwrap();
        assert_eq!((config.run.steps, config.run.seed, config.node.threads), (9, 3, 2));
        assert_eq!((config.data.shard, config.data.shards), (1, 4));
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
            (&["--set", "run.step=1"], "unknown key `run.step` in --set: did you mean `steps`?"),
            (
                &["--rule", "gossip"],
                "gossip.rule = \"gossip\" in --rule is not legal: must be \"gossip-outer\"",
            ),
            (
                &["--config", "/nowhere/run.toml"],
                "cannot read configuration file /nowhere/run.toml: No such file",
            ),
        ] {
            let result = join(flags).settings().and_then(|settings| settings.resolve());
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
