//! Commands about text: what a model writes, how well it predicts, and what makes tokens.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Flags of `dnode generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// A data directory, of which the newest checkpoint is taken, a checkpoint's folder, its file of
    /// parameters, or a Hugging Face folder: config.json, model.safetensors, tokenizer.json.
    #[arg(value_name = "PATH", default_value = "dnode-data")]
    pub path: PathBuf,
    /// Folder of the weights that the adapters of a checkpoint were trained beside.
    #[arg(long, value_name = "DIR")]
    pub base: Option<PathBuf>,
    /// What the text begins with; empty begins a new line.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prompt: String,
    /// Tokens to write, at most 100,000; characters where the model has no tokenizer.
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub length: usize,
    /// Below 1 prefers what is likely, above 1 what is not.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f32,
    /// Equal seeds write equal text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End before this text; may be given up to 16 times. A tokenizer's token for the end of a text ends
    /// it, too.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Leave out the tokens that the tokenizer puts before a text: for a model that was trained without
    /// them.
    #[arg(long)]
    pub no_bos: bool,
    /// Threads for the arithmetic; 0 is one for each core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
}

/// Flags of `dnode eval`.
#[derive(Debug, Args)]
pub struct Eval {
    /// A data directory, of which the newest checkpoint is taken, a checkpoint's folder, its file of
    /// parameters, or a Hugging Face folder: config.json, model.safetensors, tokenizer.json.
    #[arg(value_name = "PATH", default_value = "dnode-data")]
    pub path: PathBuf,
    /// Folder of the weights that the adapters of a checkpoint were trained beside.
    #[arg(long, value_name = "DIR")]
    pub base: Option<PathBuf>,
    /// The text, UTF-8, plain or gzip; shakespeare is the built-in one.
    #[arg(long, value_name = "FILE", required_unless_present = "choices")]
    pub data: Option<PathBuf>,
    /// Only the last tenth, which training on this text leaves out.
    #[arg(long, requires = "data")]
    pub held_out: bool,
    /// In place of a text, questions with several answers: a JSON object a line, with context, choices and
    /// answer, the index of the right choice.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub choices: Option<PathBuf>,
    /// Only the first questions.
    #[arg(long, value_name = "N", requires = "choices")]
    pub limit: Option<std::num::NonZeroUsize>,
    /// Leave out the tokens that the tokenizer puts before a text: for a model that was trained without
    /// them.
    #[arg(long)]
    pub no_bos: bool,
    /// Threads for the arithmetic; 0 is one for each core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// What to do with a tokenizer.
#[derive(Debug, Subcommand)]
pub enum TokenizerCommand {
    /// Train a byte-level BPE on a text; equal texts make equal files.
    #[command(
        after_help = "Example: dnode tokenizer train --data book.txt --vocabulary 4096 --out tokenizer.json"
    )]
    Train {
        /// The text, UTF-8, plain or gzip; several may be given. shakespeare is the built-in one.
        #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
        data: Vec<PathBuf>,
        /// Kinds of tokens, at least 257: the bytes and the end of a text.
        #[arg(long, value_name = "N")]
        vocabulary: usize,
        /// The file to write, which must not be there yet.
        #[arg(long, value_name = "FILE", default_value = "tokenizer.json")]
        out: PathBuf,
    },
    /// Say what a tokenizer is, and how it encodes a line.
    #[command(after_help = "Example: dnode tokenizer show tokenizer.json --text 'To be'")]
    Show {
        /// A tokenizer.json, or a checkpoint's folder, or a data directory with checkpoints.
        #[arg(value_name = "PATH", default_value = "tokenizer.json")]
        path: PathBuf,
        /// The line to encode.
        #[arg(long, value_name = "TEXT", default_value = "The quick brown fox: 123 naïve jumps.")]
        text: String,
    },
}
