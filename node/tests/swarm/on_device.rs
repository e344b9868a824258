//! Loops whose weights lie on a device, which the processor emulates here: exchanges mix them there.

use std::ops::Range;
use std::sync::Arc;

use dnode::{
    Device, DeviceError, DeviceVector, Displacer, Membership, Options, ParameterLayout, Parameters,
    Resident, StepReport, Swarm, TrainerIdentity,
};

use crate::own_loop;

/// Parameters: several fragments, none a whole number of blocks.
const LEN: usize = 3000;

/// Steps after which a loop alone is within 0.0001 of its goal.
const ARRIVED: u64 = 200;

/// Weights on a device.
struct Weights {
    device: Arc<dyn Device>,
    vector: DeviceVector,
    displacer: Displacer,
    /// Whether exchanges have moved them since this was last asked.
    moved: bool,
}

impl Weights {
    fn new() -> Result<Self, DeviceError> {
        let device = dnode_cuda::emulated::open()?;
        let vector = DeviceVector::new(&device, LEN)?;
        Ok(Self { device, vector, displacer: Displacer::default(), moved: false })
    }

    fn first(&self) -> Result<f32, DeviceError> {
        let mut first = [0.0];
        self.device.download(self.vector.span(0..1), &mut first)?;
        Ok(first[0])
    }

    /// A step towards `goal`.
    fn train(&mut self, goal: f32) -> Result<(), DeviceError> {
        let whole = 0..LEN;
        self.device.scale(self.vector.span_mut(whole.clone()), 0.95)?;
        let (device, x) = (&self.device, self.vector.span_mut(whole));
        self.displacer.displace(device, (&[1.0; LEN], 0.05 * goal), x)
    }
}

impl Parameters for Weights {
    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.device.download(self.vector.span(range), out).unwrap();
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let x = self.vector.span_mut(range);
        self.displacer.displace(&self.device, (delta, weight), x).unwrap();
        self.moved = true;
    }

    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        let device = Arc::clone(&self.device);
        Ok(Some(Resident { device, weights: self.vector.span_mut(0..LEN) }))
    }

    fn on_moved(&mut self) {
        self.moved = true;
    }
}

/// The loop: trains towards the number in the file `on-device`, and at the end writes how far exchanges have
/// moved it away from there.
pub(crate) fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let goal: f32 = std::fs::read_to_string("on-device")?.parse()?;
    let options = Options { identity: Some(TrainerIdentity::new("on-device", "1")), ..options };
    let mut layout = ParameterLayout::new();
    layout.push("weight", &[LEN])?;
    let mut swarm = Swarm::join(options, layout, Weights::new()?)?;
    let mut away = 0.0_f32;
    for step in 0.. {
        swarm.parameters_mut().train(goal)?;
        let own = swarm.parameters().first()?;
        let next = swarm.step(StepReport { samples: 1, ..StepReport::default() })?;
        let moved = std::mem::take(&mut swarm.parameters_mut().moved);
        let now = swarm.parameters().first()?;
        assert!(moved || own.to_bits() == now.to_bits(), "who moves weights says so");
        if step >= ARRIVED && moved {
            away = away.max((now - goal).abs());
        }
        if next.membership != Membership::Joined {
            break;
        }
    }
    own_loop::write("away", &away.to_string())
}

#[test]
fn both_ends_of_exchanges_on_a_device_move() {
    let root = tempfile::tempdir().unwrap();
    let flags = ["--steps", "10000", "--require-peers", "1", "--set", "gossip.guard=false"];
    let mut first = own_loop::start_in(&root, "0", ("on-device", "0"), &flags);
    let address = first.address();
    let flags = [&flags[..], &["--bootstrap", &address]].concat();
    let mut second = own_loop::start_in(&root, "1", ("on-device", "1"), &flags);
    for peer in [&mut first, &mut second] {
        let last = peer.finish();
        assert_eq!(last["reason"], "steps done", "{last}");
        assert!(own_loop::exchanges(&last) > 10, "{last}");
        let log = peer.log();
        assert!(log.contains("weights are mixed on the device"), "{log}");
        assert!(!log.contains("mix refused"), "{log}");
    }
    for name in ["0", "1"] {
        let text = std::fs::read_to_string(root.path().join(name).join("away")).unwrap();
        let away: f32 = text.parse().unwrap();
        assert!((0.01..2.0).contains(&away), "{name}: {away}");
    }
}
