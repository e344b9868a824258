//! `dnode bench exchange` on this machine.

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dnode");

#[test]
fn an_exchange_is_measured_on_every_path_beside_its_limit() {
    let mut command = Command::new(PROGRAM);
    let output = command.args(["bench", "exchange", "--parameters", "20000"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let memory = cfg!(target_os = "linux").then_some("shared memory");
    for path in ["TCP with TLS", "QUIC"].into_iter().chain(memory) {
        for codec in ["f32", "int8", "int4", "int2"] {
            let of = |line: &&str| {
                line.strip_prefix(path).is_some_and(|rest| rest.trim_start().starts_with(codec))
            };
            let line = text.lines().find(of);
            let numbers = line.map(|line| {
                let words = line[path.len()..].split_whitespace().skip(1);
                words.map(|word| word.parse::<f64>().unwrap()).collect::<Vec<_>>()
            });
            let numbers = numbers.unwrap_or_else(|| panic!("{path} {codec} in {text}"));
            assert_eq!(numbers.len(), 8, "{text}");
            assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{text}");
        }
        let rate = text.lines().find(|line| line.starts_with(&format!("{path}: ")));
        assert!(rate.is_some_and(|line| line.contains(" GB/s, ")), "{path} in {text}");
    }
}

#[test]
fn a_fragment_that_cannot_be_is_a_fault_of_the_command_line() {
    for parameters in ["0", "1048577", "many"] {
        let mut command = Command::new(PROGRAM);
        let output = command.args(["bench", "exchange", "--parameters", parameters]).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{parameters}");
    }
}
