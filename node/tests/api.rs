//! The library as an embedder sees it: `dnode` alone names every type that its own items speak of.
//!
//! This file depends on no other crate of the workspace, so that it stops compiling where one is needed.

use std::any::type_name;
use std::ops::Range;

use dnode::config::{
    Agreement, Backend, Balance, Codec, Collective, ConfigError, DataConfig, DataKind, Direct,
    Gossip, Key, Kind, LogFormat, ModelConfig, ModelKind, Nat, Network, Node, Optimizer,
    OptimizerKind, Origin, PartnerSchedule, Policy, Precision, Preset, Reals, Relay, Rule, Run,
    RunField, RunSpec, Schedule, Settings, SharedSettings, Skew, Stream, Tolerance, Weighting,
};
use dnode::{
    Carrier, CheckpointError, Config, Console, DataIdentity, DataShare, Description,
    DescriptionError, Device, DeviceError, DeviceVector, DirectConfig, DriveError, Evaluation,
    Found, GossipError, GradientStep, IdentityError, Interrupt, JoinError, LastEvaluation,
    LayoutError, Membership, Multiaddr, NetworkError, NextStep, Options, Outcome, ParameterLayout,
    Parameters, PeerId, PeersFileError, Requests, Resident, RunDifference, Score, Span, SpanMut,
    StateTensor, StateValues, StepId, StepReport, Swarm, SwarmError, TensorSpec, Time, TrainError,
    Trainer, TrainerIdentity, TrainerState, view, watch,
};

/// The type's last name, without its parameters.
fn name<T: ?Sized>() -> &'static str {
    let whole = type_name::<T>().trim_start_matches("dyn ");
    let plain = whole.split('<').next().unwrap_or(whole);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// Every type in the signature of a public item of `dnode`.
fn names() -> Vec<&'static str> {
    vec![
        // What `join` takes and gives.
        name::<Options>(),
        name::<Config>(),
        name::<dyn Trainer>(),
        name::<watch::Receiver<bool>>(),
        name::<Outcome>(),
        name::<PeerId>(),
        name::<Evaluation>(),
        name::<LastEvaluation>(),
        name::<TrainerIdentity>(),
        name::<Console>(),
        name::<Time>(),
        // The handle of a loop.
        name::<Swarm<Vec<f32>>>(),
        name::<dyn Parameters>(),
        name::<NextStep>(),
        name::<Membership>(),
        name::<SwarmError>(),
        name::<view::Snapshot>(),
        name::<Requests>(),
        // Its errors, and what they carry.
        name::<JoinError>(),
        name::<DriveError>(),
        name::<NetworkError>(),
        name::<CheckpointError>(),
        name::<IdentityError>(),
        name::<PeersFileError>(),
        name::<GossipError>(),
        name::<RunDifference>(),
        name::<TrainError>(),
        name::<LayoutError>(),
        name::<DescriptionError>(),
        name::<DeviceError>(),
        // The methods of `Trainer`, and of what they hand out.
        name::<ParameterLayout>(),
        name::<TensorSpec>(),
        name::<StepId>(),
        name::<StepReport>(),
        name::<Range<usize>>(),
        name::<Resident<'_>>(),
        name::<dyn Device>(),
        name::<DeviceVector>(),
        name::<Span<'_>>(),
        name::<SpanMut<'_>>(),
        name::<Score>(),
        name::<TrainerState<'_>>(),
        name::<StateTensor<'_>>(),
        name::<StateValues<'_>>(),
        name::<dyn GradientStep>(),
        name::<Interrupt>(),
        name::<Description>(),
        name::<DataIdentity>(),
        name::<DataShare>(),
        // Measuring a link, and asking members.
        name::<Multiaddr>(),
        name::<DirectConfig>(),
        name::<Carrier>(),
        name::<Found>(),
    ]
}

/// Every type in the signature of a public item of [`dnode::config`], the fields of [`Config`] first.
fn names_of_config() -> Vec<&'static str> {
    vec![
        name::<Run>(),
        name::<DataConfig>(),
        name::<DataKind>(),
        name::<Skew>(),
        name::<Stream>(),
        name::<ModelConfig>(),
        name::<ModelKind>(),
        name::<Optimizer>(),
        name::<OptimizerKind>(),
        name::<Schedule>(),
        name::<Gossip>(),
        name::<Rule>(),
        name::<PartnerSchedule>(),
        name::<Codec>(),
        name::<Weighting>(),
        name::<Balance>(),
        name::<Policy>(),
        name::<Network>(),
        name::<Direct>(),
        name::<Collective>(),
        name::<Nat>(),
        name::<Relay>(),
        name::<Node>(),
        name::<Backend>(),
        name::<dnode::config::Device>(),
        name::<Precision>(),
        name::<LogFormat>(),
        name::<Settings>(),
        name::<Origin>(),
        name::<ConfigError>(),
        name::<Key>(),
        name::<Kind>(),
        name::<Reals>(),
        name::<Preset>(),
        name::<Agreement>(),
        name::<Tolerance>(),
        name::<RunSpec>(),
        name::<RunField>(),
        name::<SharedSettings>(),
    ]
}

#[test]
fn every_type_of_a_signature_is_named_by_this_crate() {
    let all = [names(), names_of_config()].concat();
    assert!(all.iter().all(|name| !name.is_empty()), "{all:?}");
}

/// The public names that a re-export of `dnode` gives to items of the workspace's other crates.
fn reexported() -> String {
    [include_str!("../src/lib.rs"), include_str!("../src/config.rs")].concat()
}

#[test]
fn a_trainer_needs_nothing_that_is_not_reexported() {
    // Every capitalised word of the seam's signatures that is a type of the trainer crate.
    let seam = include_str!("../../trainer/src/seam.rs");
    let signatures = seam.lines().map(str::trim_start).filter(|line| {
        line.starts_with("fn ") || line.starts_with("pub ") || line.starts_with(") ->")
    });
    let words = signatures.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let types = words.filter(|word| word.starts_with(char::is_uppercase));
    let standard = [
        "Some", "None", "Ok", "Err", "Option", "Path", "Result", "Self", "Range", "String", "Vec",
        "Send", "Fn",
    ];
    let reexported = reexported();
    for name in types.filter(|name| !standard.contains(name) && name.len() > 1) {
        assert!(
            reexported.split(|c: char| !c.is_alphanumeric()).any(|word| word == name),
            "`dnode` does not re-export {name}, which a signature of `Trainer` names"
        );
    }
}
