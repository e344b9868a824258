//! The processor: its cores, and the instructions that the kernels can use.

use dnode_trainer::{Memory, free_memory};

use super::finding::Finding;

const CHECK: &str = "cpu";
const MEMORY: &str = "memory";

/// Reports the cores, and the instructions that make the kernels fast.
pub(super) fn processor(threads: usize) -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    judge(cores, threads, &features())
}

/// Each instruction set that the kernels have code for, and whether the processor has it. The kernels
/// can do without the last one.
#[cfg(target_arch = "x86_64")]
fn features() -> Vec<(&'static str, bool)> {
    vec![
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
    ]
}

/// No instruction sets: every processor of this architecture has those that the kernels use.
#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

fn judge(cores: usize, threads: usize, features: &[(&str, bool)]) -> Finding {
    let names = |wanted: bool| {
        let named = features.iter().filter(|(_, has)| *has == wanted);
        named.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    let has = names(true);
    let has = if has.is_empty() { std::env::consts::ARCH.to_owned() } else { has };
    let found = format!("{cores} cores for {threads} threads; {has}");
    let needed = features.len().saturating_sub(1);
    if features[..needed].iter().any(|(_, has)| !has) {
        let advice = format!(
            "the kernels are several times slower without {}: choose a processor or a virtual machine type that has it",
            names(false)
        );
        return Finding::warn(CHECK, found, advice);
    }
    if threads > cores {
        let advice = format!("more threads than cores wait for each other: --threads {cores}");
        return Finding::warn(CHECK, found, advice);
    }
    Finding::ok(CHECK, found)
}

/// Reports the memory that the run takes. One that does not fit is refused with what would make it fit.
pub(super) fn memory(needed: Memory) -> Finding {
    let found = match free_memory() {
        Some(free) => format!("{needed}; {:.2} GB are free", free as f64 / 1e9),
        None => needed.to_string(),
    };
    Finding::ok(MEMORY, found)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn missing_instructions_and_too_many_threads_are_told() {
        let all = [("AVX2", true), ("FMA", true), ("AVX-512", false)];
        let finding = judge(8, 8, &all);
        assert_eq!(
            (finding.verdict, &*finding.found),
            (Verdict::Ok, "8 cores for 8 threads; AVX2, FMA")
        );
        assert!(judge(8, 9, &all).advice.contains("--threads 8"));
        let old = [("AVX2", true), ("FMA", false), ("AVX-512", false)];
        assert!(judge(8, 1, &old).advice.contains("without FMA, AVX-512"));
        assert_eq!(judge(2, 1, &[]).verdict, Verdict::Ok);
    }
}
