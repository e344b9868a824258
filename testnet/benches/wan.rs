//! How exact the link emulator is: delay, rate and loss of real packets against what was asked for.
//!
//! Prints tables; `docs/measurements.md` has them with the machine. Needs root, TUN and `ip`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dnode_netem::{Emulator, Plan, WanError, address};

/// Round trips for each delay.
const TRIPS: usize = 400;
/// How long each rate is measured.
const SPAN: Duration = Duration::from_secs(3);
/// Body of a datagram that fills a packet of 1,500 bytes.
const BODY: usize = 1472;
/// Header bytes of a datagram that the rate counts.
const HEADERS: usize = 28;
/// Datagrams for the measurement of loss, in batches that no socket buffer overflows.
const DATAGRAMS: u64 = 20_000;
/// Datagrams of one batch.
const BATCH: u64 = 50;
/// No packet for so long means that none will come.
const QUIET: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let scenario = Plan { nodes: 2, seed: 1, ..Plan::default() };
    let name = format!("bench-{}", std::process::id());
    let emulator = match Emulator::start(&name, &scenario, |notice| eprintln!("{notice:?}")) {
        Ok(emulator) => emulator,
        Err(error @ WanError::Missing(_)) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("punctual: {}", emulator.late().unwrap_or("real-time priority, exact timers"));
    delays(&emulator);
    losses(&emulator);
    rates(&emulator);
    ExitCode::SUCCESS
}

fn set(emulator: &Emulator, line: &str) {
    emulator.apply(line.parse().unwrap()).unwrap();
}

/// A datagram socket of machine `index` on a port of its own.
fn socket(emulator: &Emulator, index: usize) -> UdpSocket {
    let bind = move || UdpSocket::bind(SocketAddrV4::new(address(index), 0)).unwrap();
    emulator.namespaces().inside(index, bind).join().unwrap().unwrap()
}

/// Round trips of small datagrams, one after the other.
fn delays(emulator: &Emulator) {
    println!(
        "\n| one-way delay asked for, ms | round trip p50, ms | p90 | p99 |\n|---|---|---|---|"
    );
    let (ours, theirs) = (socket(emulator, 0), socket(emulator, 1));
    ours.connect(theirs.local_addr().unwrap()).unwrap();
    theirs.connect(ours.local_addr().unwrap()).unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        // A last empty datagram ends it.
        while theirs.recv(&mut byte).unwrap() > 0 {
            theirs.send(&byte).unwrap();
        }
    });
    for delay in [0.0, 0.5, 1.0, 5.0, 25.0, 100.0] {
        set(emulator, &format!("link * * delay_ms={delay}"));
        let trips = if delay > 50.0 { TRIPS / 4 } else { TRIPS };
        let mut times: Vec<f64> = (0..trips).map(|_| round_trip(&ours)).collect();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!("| {delay} | {:.2} | {:.2} | {:.2} |", at(50), at(90), at(99));
    }
    ours.send(&[]).unwrap();
    echo.join().unwrap();
    set(emulator, "link * * delay_ms=0");
}

/// Milliseconds until a datagram comes back.
fn round_trip(socket: &UdpSocket) -> f64 {
    let began = Instant::now();
    socket.send(&[1]).unwrap();
    socket.recv(&mut [0]).unwrap();
    began.elapsed().as_secs_f64() * 1e3
}

/// Losses of a line, as the receiver counts them.
fn losses(emulator: &Emulator) {
    println!(
        "\n| loss asked for | datagrams | received | lost | expected |\n|---|---|---|---|---|"
    );
    for loss in [0.001, 0.01, 0.05] {
        let (from, to) = (socket(emulator, 0), socket(emulator, 1));
        set(emulator, &format!("link 0 1 loss={loss}"));
        let before = emulator.stats().unwrap().line(0, 1).link;
        to.set_nonblocking(true).unwrap();
        let target = to.local_addr().unwrap();
        let mut received = 0;
        for batch in 1..=DATAGRAMS / BATCH {
            for _ in 0..BATCH {
                from.send_to(&[0; 100], target).unwrap();
            }
            let done = |emulator: &Emulator| {
                let line = emulator.stats().unwrap().line(0, 1).link;
                line.packets + line.lost - before.packets - before.lost == batch * BATCH
            };
            while !done(emulator) {}
            while to.recv(&mut [0; 200]).is_ok() {
                received += 1;
            }
        }
        // The answer to this comes after the last packet was written.
        emulator.stats().unwrap();
        while to.recv(&mut [0; 200]).is_ok() {
            received += 1;
        }
        let expected = (DATAGRAMS as f64 * loss).round();
        println!("| {loss} | {DATAGRAMS} | {received} | {} | {expected} |", DATAGRAMS - received);
    }
    set(emulator, "link 0 1 loss=0");
}

/// What arrives when more is sent than a line carries.
fn rates(emulator: &Emulator) {
    println!("\n| rate asked for, Mbit/s | UDP, IP bits received | TCP, bits of data received |");
    println!("|---|---|---|");
    for rate in [10.0, 50.0, 100.0, 200.0] {
        set(emulator, &format!("link * * delay_ms=10 rate_mbit={rate}"));
        println!("| {rate} | {:.1} | {:.1} |", udp(emulator, rate) / 1e6, tcp(emulator) / 1e6);
    }
    set(emulator, "link * * delay_ms=0 rate_mbit=0");
    println!("| no limit, no delay | – | {:.1} |", tcp(emulator) / 1e6);
}

/// Bits of IP packets per second that a receiver gets when a quarter more than `mbit` is sent.
fn udp(emulator: &Emulator, mbit: f64) -> f64 {
    let (from, to) = (socket(emulator, 0), socket(emulator, 1));
    to.set_read_timeout(Some(QUIET)).unwrap();
    from.connect(to.local_addr().unwrap()).unwrap();
    let per_second = mbit * 1.25e6 / ((BODY + HEADERS) as f64 * 8.0);
    let sender = std::thread::spawn(move || {
        let (began, mut sent) = (Instant::now(), 0.0);
        while began.elapsed() < SPAN {
            while sent < began.elapsed().as_secs_f64() * per_second {
                from.send(&[0; BODY]).unwrap();
                sent += 1.0;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    let mut buffer = [0; BODY];
    to.recv(&mut buffer).unwrap();
    let (began, mut last, mut packets) = (Instant::now(), Instant::now(), 0u32);
    while to.recv(&mut buffer).is_ok() {
        packets += 1;
        last = Instant::now();
    }
    sender.join().unwrap();
    let seconds = last.duration_since(began).as_secs_f64();
    f64::from(packets) * (BODY + HEADERS) as f64 * 8.0 / seconds
}

/// Bits of data per second that a receiver gets of one stream, slow start included.
fn tcp(emulator: &Emulator) -> f64 {
    let bind = || TcpListener::bind(SocketAddrV4::new(address(1), 0)).unwrap();
    let listener = emulator.namespaces().inside(1, bind).join().unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let sender = emulator.namespaces().inside(0, move || {
        let mut stream = TcpStream::connect(target).unwrap();
        let (began, data) = (Instant::now(), [0; 1 << 16]);
        while began.elapsed() < SPAN {
            stream.write_all(&data).unwrap();
        }
    });
    let (mut stream, _) = listener.accept().unwrap();
    let (began, mut buffer, mut bytes) = (Instant::now(), vec![0; 1 << 18], 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        bytes += read;
    }
    sender.join().unwrap().unwrap();
    bytes as f64 * 8.0 / began.elapsed().as_secs_f64()
}
