//! What others need for the same averaging: gloo and hivemind, where a Python that has them is named.

use std::process::{Command, Stdio};

/// Names the Python.
const PYTHON: &str = "DNODE_BENCH_PYTHON";
/// Scripts that print the seconds of each averaging, one a line.
/// With the most averagings of each: some take seconds.
const SCRIPTS: [(&str, &str, usize); 2] =
    [("gloo", include_str!("gloo.py"), usize::MAX), ("hivemind", include_str!("hivemind.py"), 8)];

/// Seconds of `turns` averagings of `parameters` f32 among `peers` processes, by name.
pub(crate) fn averagings(
    peers: usize,
    parameters: usize,
    turns: usize,
) -> Vec<(&'static str, Vec<f64>)> {
    let Ok(python) = std::env::var(PYTHON) else {
        println!("{parameters:>10}  gloo, hivemind: not measured, {PYTHON} names no Python");
        return Vec::new();
    };
    let folder = tempfile::tempdir().unwrap();
    let mut found = Vec::new();
    for (name, script, most) in SCRIPTS {
        let path = folder.path().join(format!("measure_{name}.py"));
        std::fs::write(&path, script).unwrap();
        let mut command = Command::new(&python);
        command
            .arg(&path)
            .args([peers, parameters, turns.min(most)].map(|number| number.to_string()));
        let output = command.env("OMP_NUM_THREADS", "1").stderr(Stdio::inherit()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if times.is_empty() {
            println!("{parameters:>10}  {name}: not measured, its script printed nothing");
        } else {
            found.push((name, times));
        }
    }
    found
}
