//! Programs with a training loop of their own as real processes: they exchange, come late, leave, are
//! killed and resume, and train on alone when their node fails.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Parser as _;
use dnode::cli::{Cli, Command as Said};
use dnode::{
    Evaluation, Membership, Options, ParameterLayout, Parameters, StepReport, Swarm,
    TrainerIdentity,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{LOOPBACK, Peer, checkpoints, wait};
use crate::{ENDLESS, flags, on_device};

#[path = "../../examples/own_loop.rs"]
#[expect(dead_code, reason = "the program begins where its flags are")]
mod example;

/// The flags of the peer that this process is to be, one a line; the first says which program it is.
const FLAGS: &str = "DNODE_TEST_LOOP_PEER";
/// Runs the program with its arguments in the variable.
const SHELL: &str = "flags=$(printf '%s\\n' \"$@\" | grep -v exit-with-stdin); \
    export DNODE_TEST_LOOP_PEER=\"$flags\"; exec \"$0\" --exact own_loop::a_peer --nocapture";
/// Parameters of the watched loop.
const LEN: usize = 1000;
/// Time of its steps.
const STEP: Duration = Duration::from_millis(1);
/// Time of those of a slow one, which `slow` in its folder says that it is.
const SLOW_STEP: Duration = Duration::from_millis(40);
/// Steps that a loop takes after its node has failed.
const STEPS_ALONE: u32 = 100;

/// Not a test where nothing says that this process is a peer.
#[test]
fn a_peer() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let words = ["dnode"].into_iter().chain(flags.lines()).map(str::to_owned);
    let ended = if Path::new("watched").exists() {
        watched(words)
    } else if Path::new("breaking").exists() {
        breaking(words)
    } else if Path::new("on-device").exists() {
        options(words).and_then(on_device::run)
    } else {
        example::run(words)
    };
    if let Err(error) = ended {
        panic!("Error: {error:?}");
    }
}

/// What flags of `dnode join` say.
fn options(words: impl Iterator<Item = String>) -> Result<Options, Box<dyn std::error::Error>> {
    let Said::Join(join) = Cli::parse_from(words).command else {
        return Err("only flags of join".into());
    };
    let config = join.flags.settings()?.resolve()?;
    let ticket = join.ticket(&config)?;
    Ok(Options { resume: join.resume, ticket, ..Options::new(config) })
}

/// Moves its weights towards what `goal` says, and does what files in its folder ask for.
fn watched(words: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let identity = Some(TrainerIdentity::new("watched-loop", "1"));
    let options = Options { identity, ..options(words)? };
    let goal: f32 = std::fs::read_to_string("watched")?.parse()?;
    let mut layout = ParameterLayout::new();
    let extent = if Path::new("other-model").exists() { LEN / 2 } else { LEN };
    layout.push("first.weight", &[2, extent / 2])?;
    layout.push("second.weight", &[LEN - extent / 2 * 2 + 1])?;
    let weights = vec![0.0; layout.parameters()];
    let mut swarm = Swarm::join(options, layout, weights)?;
    write("joined", &swarm.parameters()[0].to_string())?;
    let asked = |what: &str| std::fs::remove_file(what).is_ok();
    let pause = if Path::new("slow").exists() { SLOW_STEP } else { STEP };
    let (mut steps, mut until_commit) = (0_u64, 0);
    loop {
        if asked("leave") {
            let outcome = swarm.leave()?;
            write("left", outcome.reason)?;
            return Ok(());
        }
        if asked("drop") {
            drop(swarm);
            return write("dropped", "");
        }
        if asked("checkpoint") {
            write("written", &swarm.checkpoint()?.display().to_string())?;
        }
        if asked("evaluate") {
            swarm.evaluate(Evaluation { loss: 0.125, accuracy: 0.5, count: 7 });
            write("evaluated", "")?;
        }
        if asked("wait") {
            write("waited", &swarm.wait_for_peers(1, None)?.to_string())?;
        }
        std::thread::sleep(pause);
        let before = swarm.parameters()[0];
        swarm.parameters_mut().iter_mut().for_each(|w| *w += 0.05 * (goal - *w));
        let own = swarm.parameters()[0];
        let loss = (before - goal).abs();
        let next = swarm.step(StepReport { loss, samples: 1, ..StepReport::default() })?;
        steps += 1;
        if next.until_commit > until_commit {
            // The steps of a new commit.
            write("steps-of-commit", &next.until_commit.to_string())?;
        }
        until_commit = next.until_commit;
        if own.to_bits() != swarm.parameters()[0].to_bits() || next.membership != Membership::Joined
        {
            let now = swarm.parameters()[0];
            write("state", &format!("{:?} {steps} {now} {}", next.membership, next.until_commit))?;
        }
    }
}

/// Parameters that cannot be read any more once there is a file `break`.
struct Breaking(Vec<f32>);

impl Parameters for Breaking {
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        assert!(!Path::new("break").exists(), "these parameters cannot be read");
        self.0.read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.0.displace(range, delta, weight);
    }
}

/// Trains on when its parameters cannot be read, and says how it went.
fn breaking(words: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let identity = Some(TrainerIdentity::new("watched-loop", "1"));
    let options = Options { identity, ..options(words)? };
    let mut layout = ParameterLayout::new();
    layout.push("first.weight", &[2, LEN / 2])?;
    layout.push("second.weight", &[1])?;
    let weights = vec![0.0; layout.parameters()];
    let mut swarm = Swarm::join(options, layout, Breaking(weights))?;
    let report = StepReport { loss: 1.0, samples: 1, ..StepReport::default() };
    let mut exchanged = false;
    while swarm.step(report)?.membership == Membership::Joined {
        std::thread::sleep(STEP);
        if !exchanged && swarm.parameters().0[0] != 0.0 {
            exchanged = true;
            write("exchanged", "")?;
        }
    }
    // The loop has its parameters, and nobody else moves them.
    let mut own = swarm.parameters().0[0];
    for _ in 0..STEPS_ALONE {
        own += 0.25;
        swarm.parameters_mut().0[0] += 0.25;
        let next = swarm.step(report)?;
        assert_eq!(next.membership, Membership::Alone);
        assert_eq!(own.to_bits(), swarm.parameters().0[0].to_bits());
    }
    let refused = [swarm.checkpoint().err(), swarm.leave().err()];
    let mut swarm = swarm.failing_with_its_node();
    assert!(swarm.wait_for_peers(1, None).is_err(), "nobody is connected any more");
    let raised = swarm.step(report).err();
    let said = refused.into_iter().chain([raised]);
    let said: Vec<_> = said.flatten().map(|error| error.to_string()).collect();
    assert!(said.len() == 3 && said.iter().all(|it| *it == said[0]), "{said:?}");
    write("ended", &said[0])
}

/// Writes a file in one piece.
pub(crate) fn write(name: &str, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let part = format!("{name}.part");
    std::fs::write(&part, text)?;
    Ok(std::fs::rename(part, name)?)
}

fn start(root: &TempDir, name: &str, flags: &[&str]) -> Peer {
    let mut shell = Command::new("bash");
    shell.args(["-c", SHELL]).arg(std::env::current_exe().unwrap());
    Peer::run(root, name, shell, &[&["--listen", LOOPBACK], flags].concat())
}

/// The same in a folder that has this file with this text, which says which loop it is.
pub(crate) fn start_in(
    root: &TempDir,
    name: &str,
    (file, text): (&str, &str),
    flags: &[&str],
) -> Peer {
    let folder = root.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(file), text).unwrap();
    start(root, name, flags)
}

/// Starts a watched loop that trains its weights to `goal`.
fn start_watched(root: &TempDir, name: &str, goal: f32, flags: &[&str]) -> Peer {
    start_in(root, name, ("watched", &goal.to_string()), flags)
}

/// Asks the loop of peer `name` for something, and waits for the file that answers.
fn ask(root: &TempDir, name: &str, what: &str, answer: &str) -> String {
    let folder = root.path().join(name);
    let _ = std::fs::remove_file(folder.join(answer));
    std::fs::write(folder.join(what), "").unwrap();
    wait(what, || std::fs::read_to_string(folder.join(answer)).ok())
}

/// Waits until the first weight of peer `name`, as it is after an exchange, is between the bounds.
fn weight_between(root: &TempDir, name: &str, low: f32, high: f32) {
    let file = root.path().join(name).join("state");
    wait("weights are exchanged", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let weight: f32 = text.split(' ').nth(2)?.parse().ok()?;
        (low < weight && weight < high).then_some(())
    });
}

pub(crate) fn exchanges(last: &Value) -> u64 {
    ["completed", "answered"].iter().filter_map(|key| last["exchanges"][key].as_u64()).sum()
}

#[test]
fn two_loops_meet_train_together_and_end_with_the_run() {
    let root = tempfile::tempdir().unwrap();
    let run = ["--steps", "20000", "--require-peers", "1", "--set", "gossip.local_steps=50"];
    let mut first = start(&root, "0", &[&run[..], &["--shard", "0/2"]].concat());
    let address = first.address();
    let join = ["--shard", "1/2", "--bootstrap", &address];
    let mut second = start(&root, "1", &[&run[..], &join].concat());
    for peer in [&mut first, &mut second] {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done", "{last}");
        assert!(exchanges(&last) > 0, "{last}");
        let log = peer.log();
        let weights = log.split("weights [").nth(1).unwrap().split(']').next().unwrap();
        for (got, want) in weights.split(", ").zip([1.0, -2.0, 0.5, 3.0]) {
            assert!((got.parse::<f32>().unwrap() - want).abs() < 0.05, "{weights}");
        }
        let start = peer.wait_line("start", |line| line["kind"] == "start");
        assert_eq!(start["config"]["model"]["name"], "own-loop", "{start}");
    }
}

#[test]
fn loops_with_different_goals_meet_in_the_middle_and_go_on_as_others_leave_and_die() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&ENDLESS[4..], &["--set", "gossip.local_steps=10"]]);
    // What steps alone lead to is far apart, and on purpose.
    let run = flags(&[&run, &["--set", "gossip.guard=false"]]);
    let mut first = start_watched(&root, "0", 1.0, &run);
    let address = first.address();
    let join = flags(&[&run, &["--bootstrap", &address]]);
    let mut second = start_watched(&root, "1", 3.0, &join);
    second.wait_event("peer-up");
    // Steps alone lead to 1 and to 3.
    weight_between(&root, "0", 1.2, 2.8);
    weight_between(&root, "1", 1.2, 2.8);
    assert!(ask(&root, "0", "wait", "waited").parse::<usize>().unwrap() >= 1);
    first.wait_step(2000);
    // A joiner has pulled the swarm's weights when its loop begins. They lie between the goals of the
    // others, and neither the zeros it brings nor its own goal does.
    let third_joins = flags(&[&join, &["--require-peers", "1"]]);
    let mut third = start_watched(&root, "2", -1.0, &third_joins);
    third.wait_event("catch-up-done");
    let joined = root.path().join("2/joined");
    let pulled: f32 =
        wait("the loop begins", || std::fs::read_to_string(&joined).ok()?.parse().ok());
    assert!(0.8 < pulled && pulled < 3.2, "{pulled}");
    weight_between(&root, "2", -0.9, 3.2);
    second.kill();
    assert_eq!(ask(&root, "0", "leave", "left"), "interrupted");
    assert!(first.wait_exit().success(), "{}", first.log());
    third.wait_event("peer-down");
    let step = third.metrics().iter().rev().find_map(|line| line["step"].as_u64()).unwrap();
    third.wait_step(step + 500);
    ask(&root, "2", "drop", "dropped");
    assert_eq!(third.finish()["reason"], "interrupted");
    assert!(!checkpoints(&third.data()).is_empty(), "a dropped handle has left in good order");
}

#[test]
fn a_loop_saves_when_it_likes_reports_what_it_measures_and_resumes() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&ENDLESS[4..], &["--set", "gossip.local_steps=10"]]);
    let mut first = start_watched(&root, "0", 1.0, &run);
    first.wait_step(300);
    ask(&root, "0", "evaluate", "evaluated");
    let told = first.wait_line("evaluation", |line| line["kind"] == "evaluate");
    assert_eq!((&told["loss"], &told["count"]), (&0.125.into(), &7.into()), "{told}");
    let written = ask(&root, "0", "checkpoint", "written");
    assert!(first.data().join("..").join(&written).is_file(), "{written}");
    first.kill();
    let mut again = start_watched(&root, "0", 1.0, &flags(&[&run, &["--resume"]]));
    let resumed = again.wait_line("start", |it| it["kind"] == "start" && it["incarnation"] == 2);
    assert!(resumed["step"].as_u64().unwrap() >= 300, "{resumed}");
    assert_eq!(ask(&root, "0", "leave", "left"), "interrupted");
    assert!(again.wait_exit().success(), "{}", again.log());
}

#[test]
fn another_model_is_refused_by_the_name_of_its_tensor() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&ENDLESS[4..]]);
    let mut first = start_watched(&root, "0", 1.0, &run);
    let address = first.address();
    let join = flags(&[&run, &["--bootstrap", &address]]);
    std::fs::create_dir_all(root.path().join("1")).unwrap();
    std::fs::write(root.path().join("1/other-model"), "").unwrap();
    let mut other = start_watched(&root, "1", 1.0, &join);
    assert!(!other.wait_exit().success());
    let want = concat!(
        r#"Error: join the run: model.tensors.00 is "first.weight [2, 250]; second.weight [501]" here"#,
        r#" and "first.weight [2, 500]; second.weight [1]" there; give every peer the same model"#,
    );
    wait("the refusal is told", || other.log().contains(want).then_some(()));
}

#[test]
fn a_loop_whose_node_dies_of_a_panic_trains_on_alone() {
    let root = tempfile::tempdir().unwrap();
    let run = flags(&[&ENDLESS[4..], &["--set", "gossip.guard=false"]]);
    let mut first = start_watched(&root, "0", 1.0, &run);
    let address = first.address();
    let join = flags(&[&run, &["--bootstrap", &address]]);
    let mut second = start_in(&root, "1", ("breaking", ""), &join);
    let there = |name: &str| std::fs::read_to_string(root.path().join("1").join(name)).ok();
    wait("both have exchanged", || there("exchanged"));
    std::fs::write(root.path().join("1/break"), "").unwrap();
    let said = wait("the loop ends", || there("ended"));
    assert!(second.wait_exit().success(), "{}", second.log());
    let log = second.log();
    assert!(log.contains("these parameters cannot be read"), "{log}");
    assert_eq!(log.matches("training goes on alone").count(), 1, "{log}");
    assert!(log.contains(&format!("{said}; training goes on alone")), "{said}: {log}");
    // The other one notices, and goes on with the swarm.
    first.wait_event("peer-down");
    assert_eq!(ask(&root, "0", "leave", "left"), "interrupted");
    assert!(first.wait_exit().success(), "{}", first.log());
}

#[test]
fn a_slow_loop_is_told_fewer_steps_for_a_commit() {
    let root = tempfile::tempdir().unwrap();
    let run = ["--set", "gossip.balance=steps", "--set", "gossip.local_steps=20"];
    let mut fast = start_watched(&root, "0", 1.0, &run);
    let address = fast.address();
    std::fs::create_dir_all(root.path().join("1")).unwrap();
    std::fs::write(root.path().join("1/slow"), "").unwrap();
    let _slow = start_watched(&root, "1", 1.0, &flags(&[&run, &["--bootstrap", &address]]));
    let told = |name: &str| -> Option<u64> {
        std::fs::read_to_string(root.path().join(name).join("steps-of-commit")).ok()?.parse().ok()
    };
    wait("the slow loop is told fewer steps", || {
        let (few, many) = (told("1")?, told("0")?);
        (2 * few <= many).then_some(())
    });
}
