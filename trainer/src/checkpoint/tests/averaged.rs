//! Parameters averaged over the last part of a run, beside the last ones.

use super::*;

fn save_averaged(folder: &Path, replica: &Replica, average: &TailAverage) -> Saved {
    let held = replica.hold();
    let replica = (Source::Held(&held), Some(average));
    save_told((folder, CHECKPOINTS_KEPT_MIN), replica, 8, None).unwrap()
}

#[test]
fn the_mean_is_saved_with_its_moments_and_goes_on_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let early = replica(None, 2);
    let mut average = TailAverage::begin(&early);
    let late = replica(None, 8);
    average.add(&late);
    let saved = save_averaged(folder.path(), &late, &average);
    let loaded = load(folder.path()).unwrap().unwrap();
    assert_eq!(loaded.tail_average().unwrap(), Some(average.clone()));

    // It is a file of parameters like the other one.
    let file = open_parameters(&saved.tail_average.unwrap()).unwrap();
    file.check(&layout()).unwrap();
    assert_eq!(file.metadata()["dnode.tail_average"], "2");
    assert_eq!(file.metadata()["dnode.step"], "8");
    let mut bias = vec![0.0; 25];
    file.floats("layer.bias", 0, &mut bias).unwrap();
    assert_eq!(bias, average.mean()[1000..]);

    // Before the last part of the run there is none.
    let saved = save_at(folder.path(), &late, 9).unwrap();
    assert_eq!(saved.tail_average, None);
    assert_eq!(load(folder.path()).unwrap().unwrap().tail_average().unwrap(), None);
}

#[test]
fn a_checkpoint_with_a_damaged_mean_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(None, 4);
    save_at(folder.path(), &replica, 4).unwrap();
    let saved = save_averaged(folder.path(), &replica, &TailAverage::begin(&replica));
    let path = saved.tail_average.unwrap();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let loaded = load(folder.path()).unwrap().unwrap();
    assert_eq!((loaded.step, loaded.skipped.len()), (4, 1));
    let reason = &loaded.skipped[0].reason;
    assert!(reason.starts_with("tail-average.safetensors: expected BLAKE3"), "{reason}");
    assert!(open_parameters(&path).unwrap_err().contains("expected BLAKE3"));
}

#[test]
fn a_mean_that_is_not_finite_is_not_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(None, 4);
    let average = TailAverage::kept(vec![f32::NAN; layout().parameters()], 3);
    save_averaged(folder.path(), &replica, &average);
    assert_eq!(load(folder.path()).unwrap().unwrap().tail_average().unwrap(), None);
}

#[test]
fn weights_are_measured_elsewhere_and_put_back_to_the_last_bit() {
    for outer in [None, Some(OuterStep { learning_rate: 0.7, momentum: 0.8 })] {
        let mut replica = replica(outer, 6);
        let before = replica.save();
        let mean: Vec<f32> = replica.parameters().iter().map(|value| value * 0.3 + 1e-3).collect();
        replica.evaluate_at(&mean).unwrap();
        assert_eq!(replica.save(), before);
    }
}
