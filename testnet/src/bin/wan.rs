//! `wan`: emulates a wide-area network between namespaces of this machine.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use dnode_netem::{Command, Emulator, Notice, Plan, WanError, address, namespace};
use dnode_testnet::scenario::{Reader, Scenario};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Exit code when the network cannot be made as asked; clap uses the same for a wrong command line.
const CANNOT: u8 = 2;
/// Exit code of `exec` when the command cannot be run, as in a shell.
const NO_COMMAND: u8 = 127;
/// Control lines that may wait.
const LINES_MAX: usize = 16;
/// Time between SIGTERM and SIGKILL for a command.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Emulates a wide-area network between namespaces of this machine.
#[derive(Debug, Parser)]
#[command(name = "wan", version)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Make the network and carry its packets; reads control lines until they end.
    Run(RunArgs),
    /// Run a command inside a machine of a running network.
    Exec(ExecArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Number of machines [default: that of the scenario, else 2].
    #[arg(short, long, value_name = "N")]
    nodes: Option<usize>,
    /// Lines between machines, for example "0 * delay_ms=25 rate_mbit=100 loss=0.01"; repeatable.
    #[arg(long = "link", value_name = "FROM TO KEY=VALUE…")]
    links: Vec<String>,
    /// Any control line before the first packet, for example "nat 0 cone"; repeatable.
    #[arg(long = "line", value_name = "LINE", value_parser = control)]
    lines: Vec<Command>,
    /// Scenario file; --link and --line come after its setup.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Decides every loss and jitter [default: 0].
    #[arg(long)]
    seed: Option<u64>,
    /// Name of the network; its namespaces are NAME.0, NAME.1, …
    #[arg(long, default_value = "wan")]
    name: String,
    /// Run this outside the machines, with WAN_NAME set, and end with it.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct ExecArgs {
    /// Name of the network [default: the variable WAN_NAME, else wan].
    #[arg(long)]
    name: Option<String>,
    /// Number of the machine.
    machine: usize,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Name of the variable that tells a command its network.
const NAME_VARIABLE: &str = "WAN_NAME";

fn control(line: &str) -> Result<Command, String> {
    line.parse().map_err(|error: dnode_netem::command::CommandError| error.to_string())
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Subcommands::Run(arguments) => run(&arguments),
        Subcommands::Exec(arguments) => exec(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            complain(&message);
            ExitCode::from(CANNOT)
        }
    }
}

fn exec(arguments: &ExecArgs) -> Result<ExitCode, String> {
    let name = arguments.name.clone().or_else(|| std::env::var(NAME_VARIABLE).ok());
    let name = name.unwrap_or_else(|| "wan".to_owned());
    namespace::enter(&name, arguments.machine).map_err(|error| error.to_string())?;
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Err("no command".to_owned());
    };
    let error = Program::new(program).args(rest).exec();
    complain(&format!("{program}: {error}"));
    Ok(ExitCode::from(NO_COMMAND))
}

fn run(arguments: &RunArgs) -> Result<ExitCode, String> {
    let plan = plan(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        // Signals are heard before anything is made, so that nothing is left behind.
        let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
            return Err("cannot listen for signals".to_owned());
        };
        let (sender, mut notices) = mpsc::channel(LINES_MAX);
        let emulator = Emulator::start(&arguments.name, &plan, move |notice| {
            // Stats that nobody reads in time are not worth waiting for.
            let _ = sender.try_send(notice);
        });
        let emulator = emulator.map_err(|error: WanError| error.to_string())?;
        announce(&emulator);
        let mut work = Work::begin(&arguments.name, &arguments.command)?;
        loop {
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                notice = notices.recv() => match notice {
                    Some(Notice::Stats(stats)) => say(&stats.to_string()),
                    Some(Notice::Failed(error)) => return Err(format!("the network failed: {error}")),
                    None => return Err(WanError::Ended.to_string()),
                },
                next = work.next() => match next {
                    Next::Line(line) => obey(&emulator, &line),
                    Next::End(code) => return Ok(code),
                },
            }
        }
        Ok(work.stop().await)
    })
}

/// What ends a run: control lines that end, or a command that ends.
enum Work {
    Lines(mpsc::Receiver<String>),
    Child(Child),
}

enum Next {
    Line(String),
    End(ExitCode),
}

impl Work {
    fn begin(name: &str, command: &[String]) -> Result<Self, String> {
        let [program, rest @ ..] = command else {
            let (sender, lines) = mpsc::channel(LINES_MAX);
            // It waits for a line that may never come, and ends with the process.
            std::thread::spawn(move || {
                for line in io::stdin().lock().lines().map_while(Result::ok) {
                    if sender.blocking_send(line).is_err() {
                        return;
                    }
                }
            });
            return Ok(Self::Lines(lines));
        };
        let child = tokio::process::Command::new(program)
            .args(rest)
            .env(NAME_VARIABLE, name)
            .kill_on_drop(true)
            .spawn();
        child.map(Self::Child).map_err(|error| format!("{program}: {error}"))
    }

    async fn next(&mut self) -> Next {
        match self {
            Self::Lines(lines) => {
                lines.recv().await.map_or(Next::End(ExitCode::SUCCESS), Next::Line)
            }
            Self::Child(child) => Next::End(child.wait().await.map_or(ExitCode::FAILURE, code)),
        }
    }

    /// Ends the command, if there is one.
    async fn stop(self) -> ExitCode {
        let Self::Child(mut child) = self else { return ExitCode::SUCCESS };
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // A process that has just ended is what is wanted.
            let _ = kill_process(id, Signal::TERM);
        }
        match tokio::time::timeout(STOP_GRACE, child.wait()).await {
            Ok(status) => status.map_or(ExitCode::FAILURE, code),
            // Dropping it kills it.
            Err(_) => ExitCode::FAILURE,
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn plan(arguments: &RunArgs) -> Result<Plan, String> {
    let seed = arguments.seed.unwrap_or(0);
    let mut plan = match &arguments.scenario {
        Some(path) => read(path, arguments.nodes)?.network(seed),
        None => Plan { nodes: arguments.nodes.unwrap_or(2), seed, ..Plan::default() },
    };
    for link in &arguments.links {
        plan.setup.push(control(&format!("link {link}"))?);
    }
    plan.setup.extend(arguments.lines.iter().cloned());
    Ok(plan)
}

/// The scenario of a file, for this many peers if that is given.
fn read(path: &Path, nodes: Option<usize>) -> Result<Scenario, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {name}: {error}"))?;
    let read = Scenario::read(&text, Reader::Network);
    let (mut scenario, unheeded) = read.map_err(|error| format!("{name}: {error}"))?;
    if let Some(nodes) = nodes {
        scenario.peers = u32::try_from(nodes).unwrap_or(u32::MAX);
        scenario.check().map_err(|error| format!("{name} with {nodes} machines: {error}"))?;
    }
    if let Some(line) = unheeded {
        complain(&format!("{name}: {line}"));
    }
    Ok(scenario)
}

fn announce(emulator: &Emulator) {
    if let Some(why) = emulator.late() {
        complain(&format!("{why}: packets may be late on a busy machine"));
    }
    let (name, count) = (emulator.namespaces().name(), emulator.namespaces().count());
    let last = count.saturating_sub(1);
    say(&format!(
        "ready: {count} machines, {} to {}, namespaces {name}.0 to {name}.{last}\n",
        address(0),
        address(last)
    ));
}

/// Carries out one control line; blank ones and those that begin with # are nothing.
fn obey(emulator: &Emulator, line: &str) {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return;
    }
    let result = match line.parse() {
        Ok(Command::Stats) => emulator.stats().map(|stats| say(&stats.to_string())),
        Ok(command) => emulator.apply(command),
        Err(error) => return complain(&error.to_string()),
    };
    if let Err(error) = result {
        complain(&format!("`{line}`: {error}"));
    }
}

fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "wan: {message}");
}

fn say(text: &str) {
    // A closed standard output is no reason to leave namespaces behind.
    let mut stdout = io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
