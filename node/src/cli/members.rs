//! Flags of the commands for runs with owners.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dnode_protocol::invitation::Role;

/// What to do with a run.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Make a run: an owner's key and the run's secret, in a new data directory.
    #[command(after_help = "Example: dnode run create --data-dir owner")]
    Create {
        /// The data directory.
        #[arg(long, value_name = "DIR", default_value = "dnode-data")]
        data_dir: PathBuf,
        /// Another owner: the peer id of a machine, as `dnode id` prints it; up to three.
        #[arg(long, value_name = "PEER")]
        owner: Vec<String>,
    },
}

/// Flags of `dnode invite`.
#[derive(Debug, Args)]
pub struct Invite {
    /// What it lets its holder do: train, observe (see the model and write checkpoints) or relay.
    #[arg(long, value_name = "ROLE", default_value = "train", value_parser = role)]
    pub role: Role,
    /// How long it lasts, and the membership with it.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    pub expires: String,
    /// How many machines may come by it, 1 to 255; 0 is no bound.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub uses: u8,
    /// How often it may be handed on: whoever comes by it invites others, by one less.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub further: u8,
    /// Address of a live member; several may be given. Without one, where the peer here listens.
    #[arg(long, value_name = "MULTIADDR", num_args = 1..)]
    pub address: Vec<String>,
    /// A file to write it to, which must not be there yet; nobody else can read it. Without one it is
    /// printed.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The data directory of an owner, or of a member that may invite; its peer may run.
    #[arg(long, value_name = "DIR", default_value = "dnode-data")]
    pub data_dir: PathBuf,
}

fn role(text: &str) -> Result<Role, String> {
    text.parse().map_err(|()| "must be train, observe or relay".to_owned())
}
