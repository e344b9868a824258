//! One peer of a benchmark: a process that joins a run with a trainer of its own.

use dnode::Options;
use dnode::config::Settings;
use dnode::console::Console;

use crate::trainer::{Kind, Synthetic};

/// First argument of the process of a peer.
pub(crate) const COMMAND: &str = "peer";

/// Joins the run that the arguments describe: kind of trainer, rank, number of peers, parameters,
/// and settings of the form `section.key=value`.
pub(crate) fn run(arguments: &[String]) {
    let [kind, rank, peers, parameters, sets @ ..] = arguments else {
        panic!("a peer has a kind, a rank, peers and parameters");
    };
    let mut settings = Settings::new();
    for set in sets {
        settings.set(set).unwrap();
    }
    let mut options = Options::new(settings.resolve().unwrap());
    options.console = Console::new(Box::new(std::io::sink()), false);
    let kind = Kind::named(kind);
    let place = (rank.parse().unwrap(), peers.parse().unwrap());
    let trainer = Synthetic::new(kind, place, parameters.parse().unwrap()).listening();
    if let Err(error) = dnode::join_blocking(options, Box::new(trainer)) {
        eprintln!("peer {rank}: {error}");
        std::process::exit(1);
    }
}
