//! The `dnode` program: flags to configuration, configuration to a running peer.
//!
//! It is part of the library so that the Python package has the command, too.

mod making;
mod tickets;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;

use crate::backend::BackendError;
use crate::check::{self, CheckError};
use crate::cli::{
    AuditCommand, Bench, Check, Cli, Command, ConfigCommand, Doctor, Eval, ExchangeArgs, Generate,
    Join, LinkArgs, RunCommand, TokenizerCommand, fault, without_tickets,
};
use crate::config::{ConfigError, origin_text, reference_markdown, reference_text};
use crate::data_dir::{DataDir, DataDirError};
use crate::doctor::{self, Verdict, Wishes};
use crate::exchange_bench;
use crate::identity::Identity;
use crate::link_bench::{self, LinkError};
use crate::membership::{self, MembershipError};
use crate::peer::relay::relay_until;
use crate::progress::Significant;
use crate::tools::audit::{self, AuditError};
use crate::tools::choices::{self, ChoicesError};
use crate::tools::language::{self, LanguageError};
use crate::tools::members::{self, MembersError};
use crate::top::{self, TopError};
use crate::view::figure;
use crate::{DriveError, Evaluation, JoinError, LastEvaluation, Options, Outcome, error_text};
use dnode_network::{DirectConfig, Multiaddr};
use dnode_protocol::invitation::Role;
use dnode_trainer::{ExportError, Exported, GenerateError, Generation, checkpoint};
use making::{make, save};

/// Exit status of a wrong command line or configuration.
const USAGE: u8 = 2;
/// Exit status of a run that ended because training diverged, where that was asked for.
const DIVERGED: u8 = 3;

/// Why the program ends early; each is told in one line.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Top(#[from] TopError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(
        "the first step does not come out alike: these machines or backends should not train together"
    )]
    Differs,
    #[error(
        "{0} of the members would refuse this configuration: the lines before say what differs and what to do"
    )]
    OtherRun(usize),
    #[error("{0} of the members did not tell how their first step comes out")]
    Unknown(usize),
    #[error("training diverged, and was stopped: {0}")]
    Diverged(String),
    #[error("{0} of the checks failed: see what they advise")]
    Unfit(usize),
    #[error(
        "no checkpoint in {0}: name a data directory, a checkpoint's folder, or its parameters.safetensors"
    )]
    NoCheckpoint(String),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Language(#[from] LanguageError),
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Members(#[from] MembersError),
    #[error("cannot start a thread: {0}; allow this user more of them (`ulimit -u`)")]
    Thread(io::Error),
    #[error("cannot write {what}: {reason}; is there room, and is the name free and writable?")]
    Write { what: String, reason: io::Error },
    #[error("cannot write {0}: it exists already; choose another name, or remove it")]
    Exists(String),
}

impl Failure {
    const fn status(&self) -> u8 {
        match self {
            Self::OtherRun(_)
            | Self::Config(_)
            | Self::Backend(_)
            | Self::NoCheckpoint(_)
            | Self::Exists(_)
            | Self::Export(
                ExportError::Content { .. } | ExportError::Taken(_) | ExportError::Base(_),
            )
            | Self::Language(_)
            | Self::Choices(_)
            | Self::Link(LinkError::Address(_)) => USAGE,
            Self::Diverged(_) | Self::Join(JoinError::Drive(DriveError::Diverged(_))) => DIVERGED,
            Self::DataDir(error) | Self::Membership(MembershipError::DataDir(error))
                if !error.is_usage() =>
            {
                1
            }
            Self::DataDir(_) | Self::Membership(_) => USAGE,
            Self::Join(error) if error.is_usage() => USAGE,
            Self::Check(CheckError::Backend(_) | CheckError::Digest | CheckError::Address(_)) => {
                USAGE
            }
            Self::Top(error) if error.is_usage() => USAGE,
            Self::Audit(error) if error.is_usage() => USAGE,
            Self::Generate(error) if !matches!(error, GenerateError::Output(_)) => USAGE,
            Self::Members(error) if error.is_usage() => USAGE,
            Self::Check(CheckError::Step { .. } | CheckError::Ask(_))
            | Self::Differs
            | Self::Unknown(_)
            | Self::Unfit(_)
            | Self::Top(_)
            | Self::Audit(_)
            | Self::Generate(_)
            | Self::Members(_)
            | Self::Join(_)
            | Self::Link(_)
            | Self::Export(_)
            | Self::Thread(_)
            | Self::Write { .. } => 1,
        }
    }
}

/// Runs the program with these words of a command line, its own name first, and returns its exit status
/// (docs/operations.md).
pub fn program(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            return u8::from(print(&error.render().to_string()).is_err());
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = io::stderr().write_all(error.render().to_string().as_bytes());
            return USAGE;
        }
        Err(error) => return fail(&fault(&error), USAGE),
    };
    let result = match cli.command {
        Command::Join(join) => run(&join),
        Command::Check(check) => check_backends(&check),
        Command::Doctor(doctor) => examine(&doctor),
        Command::Config { command: Some(command), .. } => configure(&command),
        Command::Config { markdown: true, .. } => print(&reference_markdown()),
        Command::Config { markdown: false, .. } => print(&reference_text()),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => manual(folder.as_deref()),
        Command::Generate(flags) => generate(flags),
        Command::Export { folder, from, base, .. } => export((&from, base.as_deref()), &folder),
        Command::Eval(flags) => evaluate(&flags),
        Command::Tokenizer(command) => tokenizer(command),
        Command::Bench(Bench::Link(link)) => bench_link(&link),
        Command::Bench(Bench::Exchange(exchange)) => bench_exchange(&exchange),
        Command::Top { address, data_dir } => show(address, &data_dir),
        Command::Audit(command) => judge(&command),
        Command::Run(RunCommand::Create { data_dir, owner }) => {
            members::create(&data_dir, &owner).map_err(Into::into).and_then(|text| print(&text))
        }
        Command::Invite(flags) => tickets::invite(&flags),
        Command::Revoke { what, data_dir } => {
            members::revoke(&data_dir, &what).map_err(Into::into).and_then(|text| print(&text))
        }
        Command::Ticket { file } => tickets::make_ticket(file.as_deref()),
        Command::Id { data_dir } => id(&data_dir),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => fail(&error_text(&failure), failure.status()),
    }
}

fn run(join: &Join) -> Result<(), Failure> {
    let settings = join.flags.settings()?;
    let steps_given = settings.origin("run.steps") != crate::config::Origin::Default;
    let config = settings.resolve()?;
    // Before the data is loaded, which may take long.
    let stop = crate::signals::listen().map_err(Failure::Thread)?;
    let ticket = join.ticket(&config)?;
    if join.exit_with_stdin {
        crate::signals::end_with_stdin().map_err(Failure::Thread)?;
    }
    if let Some(path) = &join.save_config {
        save(&config, path, join.flags.config.as_deref())?;
    }
    if membership::role(&config, ticket.as_ref())? == Role::Relay {
        let peer = relay_until(config, ticket, stop)?;
        return print(&format!("{}: relayed until it was stopped\n", peer.short()));
    }
    let trainer = crate::backend::trainer(&config)?;
    let options = Options::new(config);
    let (resume, tells_first_step) = (join.resume, true);
    let options = Options { resume, tells_first_step, steps_given, ticket, ..options };
    match crate::join_until(options, trainer, stop) {
        Ok(outcome) => {
            let printed = print(&outcome_text(&outcome));
            match outcome.diverged {
                Some(what) if outcome.reason == "diverged" => Err(Failure::Diverged(what)),
                _ => printed,
            }
        }
        Err(error) => {
            if let JoinError::NotSaved { outcome, .. } = &error {
                // What is lost is told even where nobody reads the outcome.
                let _ = print(&outcome_text(outcome));
            }
            Err(error.into())
        }
    }
}

/// How the run ended, for a person.
fn outcome_text(outcome: &Outcome) -> String {
    let Outcome { peer, reason, step, samples, exchanges, .. } = outcome;
    let mut text = format!("{}: {reason} after {step} steps, {samples} samples", peer.short());
    if let Some(rate) = outcome.samples_per_s {
        text += &format!(" ({} samples/s while training)", figure(rate));
    }
    text += ", ";
    text += &match exchanges {
        Some(exchanges) => format!("{exchanges} exchanges"),
        None => "alone: no peer was met".to_owned(),
    };
    let numbers = |Evaluation { loss, accuracy, .. }: Evaluation| {
        format!("held-out loss {}, accuracy {:.2} %", Significant(loss), 100.0 * accuracy)
    };
    text += &match (outcome.evaluation, outcome.evaluated) {
        (Some(evaluation), _) => format!("; {}", numbers(evaluation)),
        (None, Some(LastEvaluation { step, evaluation })) => {
            format!("; last evaluated at step {step}: {}", numbers(evaluation))
        }
        (None, None) => "; not evaluated".to_owned(),
    };
    if let Some(what) = &outcome.diverged {
        text += &format!("; TRAINING DIVERGES: {what}");
    }
    if let Some(path) = &outcome.parameters {
        text += &format!("; parameters in {}", path.display());
    }
    if let Some((evaluation, path)) = &outcome.averaged {
        let told = numbers(*evaluation);
        text += &format!("; averaged over the last part of the run: {told}, in {}", path.display());
    }
    text + "\n"
}

fn check_backends(flags: &Check) -> Result<(), Failure> {
    let config = crate::with_peers_file(flags.flags.settings()?.resolve()?)?;
    let ticket = flags.ticket(&config)?;
    let (config, secret) = membership::to_ask(config, ticket)?;
    let members = match config.network.bootstrap.as_slice() {
        [] => Vec::new(),
        addresses => check::ask(addresses, secret.as_ref())?,
    };
    let report = check::check(&config, flags.against.as_deref(), &members)?;
    print(&report.text)?;
    match report.unknown {
        _ if report.other > 0 => Err(Failure::OtherRun(report.other)),
        _ if !report.agrees => Err(Failure::Differs),
        0 => Ok(()),
        unknown => Err(Failure::Unknown(unknown)),
    }
}

fn examine(flags: &Doctor) -> Result<(), Failure> {
    let config = crate::with_peers_file(flags.flags.settings()?.resolve()?)?;
    let ticket = flags.ticket(&config)?;
    let (config, secret) = membership::to_ask(config, ticket)?;
    let parse = |text: &String| text.parse().map_err(|_| LinkError::Address(text.clone()));
    let wishes = Wishes {
        link: flags.link.as_ref().map(parse).transpose()?,
        rate: flags.rate.map(|mbit| mbit * 1e6 / 8.0),
        step: flags.step_ms.map(|ms| Duration::from_secs_f64(ms / 1e3)),
    };
    let report = link_bench::block_on(async {
        Ok(doctor::examine(&config, secret.as_ref(), &wishes).await)
    })?;
    print(&if flags.json { report.json() } else { report.text() })?;
    match report.count(Verdict::Fail) {
        0 => Ok(()),
        failed => Err(Failure::Unfit(failed)),
    }
}

fn bench_exchange(exchange: &ExchangeArgs) -> Result<(), Failure> {
    let measured = exchange_bench::measure(exchange.parameters as usize, exchange.trusted);
    print(&link_bench::block_on(measured)?)
}

fn bench_link(link: &LinkArgs) -> Result<(), Failure> {
    let addresses = link.to.iter().chain(link.listen.iter().flatten());
    let parsed = addresses.map(|text| text.parse().map_err(|_| LinkError::Address(text.clone())));
    let mut addresses = parsed.collect::<Result<Vec<Multiaddr>, _>>()?;
    if link.to.is_none() {
        let direct = DirectConfig { trusted: link.trusted, ..DirectConfig::default() };
        let tell = |address: &Multiaddr| {
            // Nobody reads it any more: it answers all the same.
            let _ = print(&format!("dnode bench link --to {address}\n"));
        };
        return Ok(link_bench::block_on(link_bench::answer(addresses, direct, tell))?);
    }
    let Some(to) = addresses.pop() else { return Ok(()) };
    print(&link_bench::block_on(link_bench::ask(&to, link.trusted))?)
}

/// The file of parameters that `place` means.
fn parameters(place: &Path) -> Result<PathBuf, Failure> {
    let missing = || Failure::NoCheckpoint(place.display().to_string());
    checkpoint::parameters_at(place).ok_or_else(missing)
}

fn generate(flags: Generate) -> Result<(), Failure> {
    let Generate { path, base, prompt, length, temperature, seed, stop, no_bos, threads } = flags;
    let request = Generation { prompt, length, temperature, seed, begins: !no_bos, stop };
    let mut screen = io::stdout();
    let mut say = |piece: &str| {
        screen.write_all(piece.as_bytes())?;
        screen.flush()
    };
    let from = (path.as_path(), base.as_deref());
    match dnode_trainer::generate_to(from, &request, threads, &mut say) {
        Ok(()) => print("\n"),
        // Nobody reads on.
        Err(GenerateError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn evaluate(flags: &Eval) -> Result<(), Failure> {
    let Eval { path, base, data, held_out, choices, limit, no_bos, threads, json } = flags;
    let how = (!no_bos, *threads, *json);
    let from = (path.as_path(), base.as_deref());
    if let Some(questions) = choices {
        let limit = limit.map(NonZero::get);
        return print(&choices::evaluate(from, (questions, limit), how)?);
    }
    let Some(data) = data else { return Ok(()) };
    print(&language::evaluate(from, (data, *held_out), how)?)
}

fn tokenizer(command: TokenizerCommand) -> Result<(), Failure> {
    match command {
        TokenizerCommand::Train { data, vocabulary, out } => {
            // Better to know before the training.
            if out.exists() {
                return Err(Failure::Exists(out.display().to_string()));
            }
            let trained = language::train(&data, vocabulary)?;
            make(&out, trained.bytes())?;
            print(&language::show(&out, "")?)
        }
        TokenizerCommand::Show { path, text } => print(&language::show(&path, &text)?),
    }
}

fn export((from, base): (&Path, Option<&Path>), folder: &Path) -> Result<(), Failure> {
    let exported = dnode_trainer::export((&parameters(from)?, base), folder)?;
    let Exported { class, adapters, parameters: count } = exported;
    let is = if adapters { "has adapters for" } else { "is" };
    print(&format!("{} {is} a {class} of {count} parameters\n", folder.display()))
}

fn configure(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Init { file } => {
            make(file, reference_text().as_bytes())?;
            print(&format!("{} has every key, commented out\n", file.display()))
        }
        ConfigCommand::Check(flags) => {
            let mut faults = flags.faults();
            match faults.pop() {
                None => print("the configuration is sound\n"),
                Some(last) => {
                    for fault in &faults {
                        say(&error_text(fault));
                    }
                    Err(Failure::Config(last))
                }
            }
        }
        ConfigCommand::Show(flags) => {
            let settings = flags.settings()?;
            settings.resolve()?;
            print(&origin_text(&settings))
        }
    }
}

fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dnode", &mut text);
    print(&String::from_utf8_lossy(&text))
}

fn manual(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else {
        let mut text = Vec::new();
        let made = clap_mangen::Man::new(Cli::command()).render(&mut text);
        made.map_err(|reason| Failure::Write { what: "the manual page".to_owned(), reason })?;
        return print(&String::from_utf8_lossy(&text));
    };
    let failed = |reason| Failure::Write { what: folder.display().to_string(), reason };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)
}

fn show(address: Option<String>, folder: &Path) -> Result<(), Failure> {
    let stop = crate::signals::listen().map_err(Failure::Thread)?;
    let address = address.map_or_else(|| top::find(folder), Ok)?;
    Ok(top::run(&address, &stop)?)
}

fn judge(command: &AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Verify { path } => print(&audit::verify(path)?),
        AuditCommand::Show { path } => {
            let (text, broken) = audit::show(path)?;
            print(&text)?;
            broken.map_or(Ok(()), |broken| Err(broken.into()))
        }
    }
}

fn id(folder: &Path) -> Result<(), Failure> {
    // A running peer holds the lock; reading its name needs none.
    let identity = match Identity::load(folder)? {
        Some(identity) => identity,
        None => Identity::load_or_create(&DataDir::open(folder)?)?,
    };
    print(&format!("{}\n", identity.peer()))
}

fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        // `dnode config | head` is no fault.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => {
            other.map_err(|reason| Failure::Write { what: "standard output".to_owned(), reason })
        }
    }
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "error: {}", without_tickets(text));
}

fn fail(text: &str, status: u8) -> u8 {
    say(text);
    status
}
