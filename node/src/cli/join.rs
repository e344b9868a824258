//! Flags that make a configuration: those of `dnode join`, `dnode check` and `dnode doctor`.

use std::path::PathBuf;

use clap::Args;
use dnode_protocol::membership::Ticket;

use super::ticket::{names_ticket, ticket};
use crate::config::{Config, ConfigError, Settings};
use crate::peer::membership::MembershipError;

/// Flags of `dnode join`.
#[derive(Debug, Default, Args)]
pub struct Join {
    /// What a member printed (dnode1…), @FILE, or - for standard input.
    #[arg(value_name = "TICKET", help_heading = SWARM)]
    pub ticket: Option<String>,
    /// What stands for configuration keys.
    #[command(flatten)]
    pub flags: Flags,
    /// Go on from the newest good checkpoint in the data directory.
    #[arg(long, help_heading = PROCESS)]
    pub resume: bool,
    /// End in good order when standard input closes: for programs that start peers.
    #[arg(long, help_heading = PROCESS, hide_short_help = true)]
    pub exit_with_stdin: bool,
    /// Write the configuration in force to a file and go on.
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION, hide_short_help = true)]
    pub save_config: Option<PathBuf>,
}

impl Join {
    /// The ticket that was given, on the command line or in the environment.
    ///
    /// # Errors
    /// [`MembershipError`]; no secret is shown.
    pub fn ticket(&self, config: &Config) -> Result<Option<Ticket>, MembershipError> {
        self.flags.ticket(self.ticket.as_deref(), config)
    }
}

/// A word behind a flag that takes addresses, if it is no address but a ticket: that flag takes it because it stands
/// there.
fn behind<'a>(words: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    words.map(String::as_str).find(|text| names_ticket(text))
}

/// Headings of the groups of flags in the help.
const SWARM: &str = "The swarm";
const TRAINING: &str = "The model and its training";
const PROCESS: &str = "This process";
const CONFIGURATION: &str = "Configuration";

/// Flags that stand for configuration keys; each is checked as its key.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// Address of any live member; several may be given.
    #[arg(long, value_name = "MULTIADDR", num_args = 1.., help_heading = SWARM)]
    pub bootstrap: Vec<String>,
    /// Let anybody join the run that begins here [network.open].
    #[arg(long, help_heading = SWARM)]
    pub open: bool,
    /// File with a ticket of a closed run, or with its secret alone [network.secret_file].
    #[arg(long, value_name = "FILE", help_heading = SWARM, hide_short_help = true)]
    pub secret_file: Option<String>,
    /// File with more addresses of live members, one a line [network.peers_file].
    #[arg(long, value_name = "FILE", help_heading = SWARM, hide_short_help = true)]
    pub peers_file: Option<String>,
    /// Address to listen on; several may be given [network.listen].
    #[arg(long, value_name = "MULTIADDR", num_args = 1.., help_heading = SWARM)]
    pub listen: Vec<String>,
    /// Do not look for peers on the local network [network.mdns].
    #[arg(long, help_heading = SWARM, hide_short_help = true)]
    pub no_mdns: bool,
    /// Peers to wait for before training [network.require_peers].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = SWARM)]
    pub require_peers: Option<String>,
    /// Most kB/s sent to all peers together; 0 is no bound [network.max_upload].
    #[arg(long, value_name = "KB/S", allow_negative_numbers = true)]
    #[arg(help_heading = SWARM, hide_short_help = true)]
    pub max_upload: Option<String>,
    /// Most kB/s taken from all peers together; 0 is no bound [network.max_download].
    #[arg(long, value_name = "KB/S", allow_negative_numbers = true)]
    #[arg(help_heading = SWARM, hide_short_help = true)]
    pub max_download: Option<String>,
    /// Near peers of the same rack name train in step and act as one replica [network.rack].
    #[arg(long, value_name = "NAME", help_heading = SWARM)]
    pub rack: Option<String>,
    /// The model: mlp, cnn, gpt, llama or a config.json [model.kind].
    #[arg(long, value_name = "KIND", help_heading = TRAINING)]
    pub model: Option<String>,
    /// Folder with the weights that the model begins with [model.init].
    #[arg(long, value_name = "DIR", help_heading = TRAINING)]
    pub init: Option<String>,
    /// The data: shakespeare, digits, mnist or text [data.kind].
    #[arg(long, value_name = "KIND", help_heading = TRAINING)]
    pub data: Option<String>,
    /// Folder with the MNIST files, or the text file [data.path].
    #[arg(long, value_name = "PATH", help_heading = TRAINING)]
    pub data_path: Option<String>,
    /// What makes tokens of a text, in place of its characters: a tokenizer.json [data.tokenizer].
    #[arg(long, value_name = "FILE", help_heading = TRAINING, hide_short_help = true)]
    pub tokenizer: Option<String>,
    /// This peer's shard, from 0, of how many: 0/4 [data.shard, data.shards].
    #[arg(long, value_name = "I/N", allow_negative_numbers = true, help_heading = TRAINING)]
    pub shard: Option<String>,
    /// How replicas are averaged: gossip-outer, pairwise, delta-set, all-reduce or none [gossip.rule].
    #[arg(long, value_name = "RULE", help_heading = TRAINING)]
    pub rule: Option<String>,
    /// Steps of the run; a peer of mean speed does so many [run.steps].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = TRAINING)]
    pub steps: Option<String>,
    /// Seed of initial weights, data order and shards [run.seed].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(help_heading = TRAINING, hide_short_help = true)]
    pub seed: Option<String>,
    /// End with status 3, after a last checkpoint, when training diverges [run.stop_on_divergence].
    #[arg(long, help_heading = TRAINING, hide_short_help = true)]
    pub stop_on_divergence: bool,
    /// Where to compute: cpu, cuda:N, or auto for the first CUDA device if there is one [node.device].
    #[arg(long, value_name = "DEVICE", help_heading = PROCESS)]
    pub device: Option<String>,
    /// Its name where peers are listed; without it, that of its host [node.name].
    #[arg(long, value_name = "NAME", help_heading = PROCESS)]
    pub name: Option<String>,
    /// Threads for the arithmetic [node.threads].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = PROCESS)]
    pub threads: Option<String>,
    /// Folder of identity, checkpoints and metrics [node.data_dir].
    #[arg(long, value_name = "DIR", help_heading = PROCESS)]
    pub data_dir: Option<String>,
    /// Serve a page that shows the swarm, at port 7878 of this machine or at this address [node.ui].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "auto")]
    #[arg(help_heading = PROCESS)]
    pub ui: Option<String>,
    /// Serve metrics to Prometheus at this address, under /metrics [node.metrics].
    #[arg(long, value_name = "ADDRESS", help_heading = PROCESS, hide_short_help = true)]
    pub metrics: Option<String>,
    /// Write event files for TensorBoard to this folder [node.tensorboard].
    #[arg(long, value_name = "DIR", help_heading = PROCESS, hide_short_help = true)]
    pub tensorboard: Option<String>,
    /// Send OpenTelemetry traces of exchanges to this collector, for example http://127.0.0.1:4318
    /// [node.traces].
    #[arg(long, value_name = "URL", help_heading = PROCESS, hide_short_help = true)]
    pub traces: Option<String>,
    /// Form of the log: human or json [node.log_format].
    #[arg(long, value_name = "FORMAT", help_heading = PROCESS, hide_short_help = true)]
    pub log_format: Option<String>,
    /// Configuration file.
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,
    /// Any configuration key, several times; `dnode config` prints all.
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = CONFIGURATION)]
    pub set: Vec<String>,
}

impl Flags {
    /// The settings of file and flags. The flag of a key wins over `--set`, and `--set` wins over the
    /// file.
    ///
    /// # Errors
    /// [`ConfigError`] names the first fault.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        let (settings, faults) = self.settings_and_faults();
        faults.into_iter().next().map_or(Ok(settings), Err)
    }

    /// All faults of file and flags, in the order in which they are read, and then the values that
    /// contradict each other.
    #[must_use]
    pub fn faults(&self) -> Vec<ConfigError> {
        let (settings, mut faults) = self.settings_and_faults();
        let unread = |error: &ConfigError| {
            matches!(error, ConfigError::Read { .. } | ConfigError::Syntax { .. })
        };
        // Nothing is known of a file that cannot be read, so contradictions with its values cannot be
        // found.
        if !faults.iter().any(unread) {
            faults.extend(settings.conflicts());
        }
        faults
    }

    fn settings_and_faults(&self) -> (Settings, Vec<ConfigError>) {
        let mut settings = Settings::new();
        let mut faults = Vec::new();
        if let Some(path) = &self.config {
            faults.extend(settings.file_faults(path));
        }
        for setting in &self.set {
            faults.extend(settings.set(setting).err());
        }
        for (name, text, flag) in self.single() {
            let Some(text) = text else { continue };
            let text = if flag == "--ui" && names_ticket(text) { "auto" } else { text };
            let taken = match flag {
                "--model" => settings.model(text),
                _ => settings.flag(name, text, flag),
            };
            faults.extend(taken.err());
        }
        let lists = [
            ("network.bootstrap", &self.bootstrap, "--bootstrap"),
            ("network.listen", &self.listen, "--listen"),
        ];
        for (name, texts, flag) in lists {
            let mut texts = texts.clone();
            texts.retain(|text| !names_ticket(text));
            if !texts.is_empty() {
                faults.extend(settings.flags(name, &texts, flag).err());
            }
        }
        if self.stop_on_divergence {
            let set = settings.flag("run.stop_on_divergence", "true", "--stop-on-divergence");
            faults.extend(set.err());
        }
        if self.open {
            faults.extend(settings.flag("network.open", "true", "--open").err());
        }
        if self.no_mdns {
            faults.extend(settings.flag("network.mdns", "false", "--no-mdns").err());
        }
        if let Some(text) = &self.shard {
            match text.split_once('/') {
                Some((shard, shards)) => {
                    faults.extend(settings.flag("data.shards", shards, "--shard").err());
                    faults.extend(settings.flag("data.shard", shard, "--shard").err());
                }
                None => faults.push(ConfigError::Flag {
                    flag: "--shard",
                    text: text.clone(),
                    wanted: "must be this peer's shard and their number, for example 0/4",
                }),
            }
        }
        faults.extend(settings.follow_init().err());
        (settings, faults)
    }

    /// The ticket that was given by itself, stands behind a flag that takes addresses, or is in the environment.
    fn ticket(
        &self,
        given: Option<&str>,
        config: &Config,
    ) -> Result<Option<Ticket>, MembershipError> {
        let words = self.bootstrap.iter().chain(&self.listen).chain(&self.ui);
        ticket(given.or_else(|| behind(words)), config)
    }

    /// Flags that stand for one value of one key.
    fn single(&self) -> [(&'static str, Option<&String>, &'static str); 23] {
        [
            ("node.name", self.name.as_ref(), "--name"),
            ("node.data_dir", self.data_dir.as_ref(), "--data-dir"),
            ("network.require_peers", self.require_peers.as_ref(), "--require-peers"),
            ("network.max_upload", self.max_upload.as_ref(), "--max-upload"),
            ("network.max_download", self.max_download.as_ref(), "--max-download"),
            ("network.rack", self.rack.as_ref(), "--rack"),
            ("model.kind", self.model.as_ref(), "--model"),
            ("model.init", self.init.as_ref(), "--init"),
            ("network.secret_file", self.secret_file.as_ref(), "--secret-file"),
            ("network.peers_file", self.peers_file.as_ref(), "--peers-file"),
            ("data.kind", self.data.as_ref(), "--data"),
            ("data.path", self.data_path.as_ref(), "--data-path"),
            ("data.tokenizer", self.tokenizer.as_ref(), "--tokenizer"),
            ("gossip.rule", self.rule.as_ref(), "--rule"),
            ("run.steps", self.steps.as_ref(), "--steps"),
            ("run.seed", self.seed.as_ref(), "--seed"),
            ("node.threads", self.threads.as_ref(), "--threads"),
            ("node.device", self.device.as_ref(), "--device"),
            ("node.log_format", self.log_format.as_ref(), "--log-format"),
            ("node.ui", self.ui.as_ref(), "--ui"),
            ("node.metrics", self.metrics.as_ref(), "--metrics"),
            ("node.tensorboard", self.tensorboard.as_ref(), "--tensorboard"),
            ("node.traces", self.traces.as_ref(), "--traces"),
        ]
    }
}

/// Flags of `dnode check`; the same as of the `dnode join` that is to follow.
#[derive(Debug, Default, Args)]
pub struct Check {
    /// What a member printed, as for `dnode join`.
    #[arg(value_name = "TICKET", help_heading = SWARM)]
    pub ticket: Option<String>,
    /// What stands for configuration keys; the members at `--bootstrap` are asked for their first step.
    #[command(flatten)]
    pub flags: Flags,
    /// The digest that `dnode check` has printed on another machine of the swarm to be.
    #[arg(long, value_name = "DIGEST")]
    pub against: Option<String>,
}

impl Check {
    /// Like [`Join::ticket`].
    ///
    /// # Errors
    /// [`MembershipError`]; no secret is shown.
    pub fn ticket(&self, config: &Config) -> Result<Option<Ticket>, MembershipError> {
        self.flags.ticket(self.ticket.as_deref(), config)
    }
}

/// Flags of `dnode doctor`; those of the `dnode join` that is to follow, and what a person knows.
#[derive(Debug, Default, Args)]
pub struct Doctor {
    /// What a member printed, as for `dnode join`.
    #[arg(value_name = "TICKET", help_heading = SWARM)]
    pub ticket: Option<String>,
    /// What stands for configuration keys; two members at `--bootstrap` tell more about a NAT.
    #[command(flatten)]
    pub flags: Flags,
    /// Measure the link to what `dnode bench link --listen` prints.
    #[arg(long, value_name = "MULTIADDR")]
    pub link: Option<String>,
    /// Rate of the link to reckon with, where it is not measured, Mbit/s.
    #[arg(long, value_name = "MBIT/S", value_parser = positive, hide_short_help = true)]
    pub rate: Option<f64>,
    /// Time of a local step to reckon with, instead of measuring it, ms.
    #[arg(long, value_name = "MS", value_parser = positive, hide_short_help = true)]
    pub step_ms: Option<f64>,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

impl Doctor {
    /// Like [`Join::ticket`].
    ///
    /// # Errors
    /// [`MembershipError`]; no secret is shown.
    pub fn ticket(&self, config: &Config) -> Result<Option<Ticket>, MembershipError> {
        self.flags.ticket(self.ticket.as_deref(), config)
    }
}

/// A number above 0 and below a billion.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number < 1e9);
    number.ok_or_else(|| "must be a number above 0 and below 1e9".to_owned())
}
