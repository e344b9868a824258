//! What the transports get out of a link: loopback, and links of the emulator.
//!
//! `cargo bench -p dnode-testnet --bench transport -- [loopback|goodput|loss|fairness|control] …`;
//! all of them when none is named; names of movers (`dnode-quic`, `cubic`, …) leave out the others
//! where one flow is measured, `1000` or `100` the other lines of `goodput`. Prints tables; `docs/measurements.md` has them with the machine.
//! All but `loopback` need root, TUN and `ip`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

mod end;
mod quic;
mod raw;
mod tcp;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dnode_netem::{Emulator, Plan, WanError};

use crate::end::{Flow, Place, cpu_seconds};
use crate::quic::Stack;

/// Bytes of an exchange whose time is measured.
const BYTES: u64 = 256 << 20;
/// Repetitions of a measurement; the table has the median and the extremes.
const RUNS: usize = 3;
/// How long a transfer may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a lossy flow is measured, after [`WARM_UP`].
const SPAN: Duration = Duration::from_secs(15);
/// Slow start, left out where a steady rate is asked for.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long two flows share a line before, and while, their shares are measured.
const SHARED: Duration = Duration::from_secs(15);
/// Control messages for a percentile.
const TRIPS: usize = 200;

/// Who moves the bytes.
#[derive(Clone, Copy)]
enum Mover {
    Quic(Stack),
    Quinn,
    Tcp(&'static str),
}

impl Mover {
    const fn name(self) -> &'static str {
        match self {
            Self::Quic(Stack::Ours) => "dnode-quic",
            Self::Quic(Stack::Stock) => "libp2p-quic",
            Self::Quinn => "quinn-tuned",
            Self::Tcp(name) => name,
        }
    }

    fn start(self, place: Place<'_>) -> Flow {
        match self {
            Self::Quic(stack) => quic::start(place, stack, None, true),
            Self::Quinn => raw::start(place),
            Self::Tcp(name) => tcp::start(place, name),
        }
    }
}

const OURS: Mover = Mover::Quic(Stack::Ours);
const STOCK: Mover = Mover::Quic(Stack::Stock);
const CUBIC: Mover = Mover::Tcp("cubic");
const BBR: Mover = Mover::Tcp("bbr");

/// What the command line asks for.
fn wanted(name: &str, among: &[&str]) -> bool {
    let named: Vec<String> =
        std::env::args().skip(1).filter(|one| among.contains(&one.as_str())).collect();
    named.is_empty() || named.iter().any(|one| one == name)
}

/// Those of `all` that are wanted.
fn movers<const N: usize>(all: [Mover; N]) -> Vec<Mover> {
    let names = all.map(Mover::name);
    all.into_iter().filter(|mover| wanted(mover.name(), &names)).collect()
}

fn main() -> ExitCode {
    let wanted = |name| wanted(name, &["loopback", "goodput", "loss", "fairness", "control"]);
    if wanted("loopback") {
        loopback();
    }
    for name in ["goodput", "loss", "fairness", "control"].into_iter().filter(|name| wanted(name)) {
        let scenario = Plan { nodes: 2, seed: 1, ..Plan::default() };
        let network = format!("bench-{name}-{}", std::process::id());
        match Emulator::start(&network, &scenario, |notice| eprintln!("{notice:?}")) {
            Ok(emulator) => {
                if let Some(reason) = emulator.late() {
                    println!("delays may be longer than asked for: {reason}");
                }
                match name {
                    "goodput" => goodput(&emulator),
                    "loss" => loss(&emulator),
                    "fairness" => fairness(&emulator),
                    _ => control(&emulator),
                }
            }
            Err(error @ WanError::Missing(_)) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn set(emulator: &Emulator, line: &str) {
    emulator.apply(line.parse().unwrap()).unwrap();
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// One flow on this host, movers in turns.
fn loopback() {
    println!(
        "\n| loopback, {} MiB | MB/s, median of {RUNS} | least–most | CPU s per GB, both ends |",
        BYTES >> 20
    );
    println!("|---|---|---|---|");
    let movers = movers([OURS, STOCK, Mover::Quinn, CUBIC]);
    let mut rates = vec![Vec::new(); movers.len()];
    let mut costs = rates.clone();
    for _ in 0..RUNS {
        for (index, mover) in movers.iter().enumerate() {
            let flow = mover.start(Place::Loopback);
            let began = flow.time(1, PATIENCE).map(|_| (Instant::now(), cpu_seconds()));
            let before = flow.meter.received();
            flow.time(before + BYTES, PATIENCE);
            let (when, cpu) = began.unwrap();
            let bytes = (flow.meter.received() - before) as f64;
            rates[index].push(bytes / 1e6 / when.elapsed().as_secs_f64());
            costs[index].push((cpu_seconds() - cpu) / (bytes / 1e9));
        }
    }
    for ((mover, rates), costs) in movers.into_iter().zip(rates).zip(costs) {
        let ((rate, least, most), (cost, ..)) = (spread(rates), spread(costs));
        println!("| {} | {rate:.0} | {least:.0}–{most:.0} | {cost:.2} |", mover.name());
    }
}

/// Time for [`BYTES`] on a new connection, slow start included, and for as many after them, on lines
/// without loss.
fn goodput(emulator: &Emulator) {
    println!(
        "\n| line, Mbit/s | round trip, ms | | share of the line, first {} MiB, median of {RUNS} | least–most | the next as many | least–most | packets dropped |",
        BYTES >> 20
    );
    println!("|---|---|---|---|---|---|---|---|");
    let lines = [(1000, 0), (1000, 25), (1000, 50), (100, 0), (100, 25), (100, 50)];
    let asked = |rate: u32| wanted(&rate.to_string(), &["1000", "100"]);
    for (rate, delay) in lines.into_iter().filter(|(rate, _)| asked(*rate)) {
        // Half of what is on the way, and no less than a few bursts.
        let queue = (rate * delay * 2 / 8 / 2).max(256);
        set(emulator, &format!("link * * delay_ms={delay} rate_mbit={rate} queue_kb={queue}"));
        for mover in movers([OURS, STOCK, CUBIC, BBR]) {
            let (mut first, mut next) = (Vec::new(), Vec::new());
            let dropped = Place::Emulated(emulator).dropped();
            let share = |bytes: u64, seconds: f64| {
                bytes as f64 * 8.0 / seconds / (f64::from(rate) * 1e6) * 100.0
            };
            for _ in 0..RUNS {
                let flow = mover.start(Place::Emulated(emulator));
                let seconds = flow.time(BYTES, PATIENCE).unwrap_or(f64::INFINITY);
                first.push(share(BYTES, seconds));
                let before = flow.meter.received();
                let seconds = flow.time(before + BYTES, PATIENCE).unwrap_or(f64::INFINITY);
                next.push(share(flow.meter.received() - before, seconds));
            }
            let dropped = Place::Emulated(emulator).dropped() - dropped;
            let (first, next) = (spread(first), spread(next));
            println!(
                "| {rate} | {} | {} | {:.1} % | {:.1}–{:.1} | {:.1} % | {:.1}–{:.1} | {dropped} |",
                2 * delay,
                mover.name(),
                first.0,
                first.1,
                first.2,
                next.0,
                next.1,
                next.2
            );
        }
    }
}

/// Steady rates on a line that loses packets at random.
fn loss(emulator: &Emulator) {
    println!(
        "\n| 200 Mbit/s, 50 ms, lost | | MB/s, median of {RUNS} | least–most | packets taken for lost / dropped by the line |"
    );
    println!("|---|---|---|---|---|");
    for percent in [0.0, 0.1, 1.0, 3.0] {
        let share = percent / 100.0;
        set(emulator, &format!("link * * delay_ms=25 rate_mbit=200 queue_kb=1024 loss={share}"));
        for mover in movers([OURS, STOCK, CUBIC, BBR]) {
            let (mut rates, mut lost) = (Vec::new(), 0);
            let dropped = Place::Emulated(emulator).dropped();
            for _ in 0..RUNS {
                let flow = mover.start(Place::Emulated(emulator));
                rates.push(steady(&[&flow], WARM_UP, SPAN)[0]);
                let meter = flow.meter.clone();
                drop(flow);
                lost += meter.lost.load(Ordering::Relaxed);
            }
            let dropped = Place::Emulated(emulator).dropped() - dropped;
            let (rate, least, most) = spread(rates);
            let ratio = if lost == 0 || dropped == 0 {
                "–".to_owned()
            } else {
                format!("{:.2}", lost as f64 / dropped as f64)
            };
            println!(
                "| {percent} % | {} | {rate:.1} | {least:.1}–{most:.1} | {ratio} |",
                mover.name()
            );
        }
    }
}

/// MB/s of each flow in `span`, after `warm_up`.
fn steady(flows: &[&Flow], warm_up: Duration, span: Duration) -> Vec<f64> {
    for flow in flows {
        flow.time(1, PATIENCE).unwrap();
    }
    sleep(warm_up);
    let before: Vec<u64> = flows.iter().map(|flow| flow.meter.received()).collect();
    let began = Instant::now();
    sleep(span);
    let seconds = began.elapsed().as_secs_f64();
    let rate =
        |(flow, before): (&&Flow, u64)| (flow.meter.received() - before) as f64 / 1e6 / seconds;
    flows.iter().zip(before).map(rate).collect()
}

/// Two flows on one line.
fn fairness(emulator: &Emulator) {
    println!(
        "\n| line | queue, part of rate × round trip | first | second | MB/s of the first | of the second |"
    );
    println!("|---|---|---|---|---|---|");
    let pairs = [(OURS, CUBIC), (OURS, BBR), (OURS, OURS), (CUBIC, CUBIC), (CUBIC, BBR)];
    for (rate, delay) in [(40, 20), (100, 10)] {
        for part in [0.1, 0.5, 1.0, 2.0] {
            let queue = (f64::from(rate * delay * 2) * 1e3 / 8.0 * part / 1024.0).ceil();
            set(
                emulator,
                &format!("link * * delay_ms={delay} rate_mbit={rate} queue_kb={queue} loss=0"),
            );
            for (first, second) in pairs {
                let flows = [first, second].map(|mover| mover.start(Place::Emulated(emulator)));
                let rates = steady(&flows.iter().collect::<Vec<_>>(), SHARED, SHARED);
                println!(
                    "| {rate} Mbit/s, {} ms | {part} | {} | {} | {:.2} | {:.2} |",
                    2 * delay,
                    first.name(),
                    second.name(),
                    rates[0],
                    rates[1]
                );
            }
        }
    }
}

/// Control messages on the libp2p connection, alone and beside a bulk connection that fills the line.
fn control(emulator: &Emulator) {
    println!("\n| line | bulk, MB/s | control p50, ms | p99 | worst |\n|---|---|---|---|---|");
    for (rate, delay) in [(20, 10), (100, 10), (100, 50)] {
        set(emulator, &format!("link * * delay_ms={delay} rate_mbit={rate} queue_kb=256 loss=0"));
        for loaded in [false, true] {
            let (trips, times) = sync_channel(0);
            let flow = quic::start(Place::Emulated(emulator), Stack::Ours, Some(trips), loaded);
            if loaded {
                flow.time(1, PATIENCE).unwrap();
                sleep(WARM_UP);
                while times.try_recv().is_ok() {}
            }
            let (before, began) = (flow.meter.received(), Instant::now());
            let mut all: Vec<f64> = times.iter().take(TRIPS).collect();
            let bulk =
                (flow.meter.received() - before) as f64 / 1e6 / began.elapsed().as_secs_f64();
            drop(times);
            all.sort_by(f64::total_cmp);
            let at = |percent: usize| all[(all.len() - 1) * percent / 100];
            println!(
                "| {rate} Mbit/s, {} ms | {bulk:.1} | {:.1} | {:.1} | {:.1} |",
                2 * delay,
                at(50),
                at(99),
                at(100)
            );
        }
    }
}
