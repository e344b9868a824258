//! Which checkpoints are written, and which stay.

use super::*;

#[test]
fn two_checkpoints_are_kept_and_a_step_can_be_saved_again() {
    let folder = tempfile::tempdir().unwrap();
    assert!(load(folder.path()).unwrap().is_none());
    assert!(load(&folder.path().join("nowhere")).unwrap().is_none());
    for step in [4, 8, 12] {
        save_at(folder.path(), &replica(None, step), step).unwrap();
    }
    assert_eq!(names(folder.path()), ["000000000008", "000000000012"]);
    save_at(folder.path(), &replica(None, 13), 12).unwrap();
    assert_eq!(names(folder.path()), ["000000000008", "000000000012"]);
    let mut loaded = load(folder.path()).unwrap().unwrap();
    let state = state_of(&mut loaded, Mixer::Exchange, None);
    assert_eq!(state, replica(None, 13).save());
    // Training anew from an earlier step does not delete what is further on.
    save_at(folder.path(), &replica(None, 2), 2).unwrap();
    assert_eq!(names(folder.path()), ["000000000002", "000000000008", "000000000012"]);
}

#[test]
fn as_many_checkpoints_are_kept_as_one_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let replica = replica(None, 1);
    for step in 1..=6 {
        save_some(folder.path(), 4, &replica, step).unwrap();
    }
    let last_four = ["000000000003", "000000000004", "000000000005", "000000000006"];
    assert_eq!(names(folder.path()), last_four);
    save_some(folder.path(), 0, &replica, 7).unwrap();
    assert_eq!(names(folder.path()), ["000000000006", "000000000007"], "one to fall back to");
}

#[test]
fn a_run_that_has_gone_wrong_leaves_a_checkpoint_to_go_on_from() {
    let folder = tempfile::tempdir().unwrap();
    for step in [4, 8] {
        save_at(folder.path(), &replica(None, step), step).unwrap();
    }
    let config =
        ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments: fragments(), clip: None };
    let wrong = plain(vec![f32::NAN; layout().parameters()]);
    let wrong = Replica::with(Box::new(wrong), config);
    for step in [12, 16, 20] {
        save_at(folder.path(), &wrong, step).unwrap();
    }
    assert_eq!(names(folder.path()), ["000000000008", "000000000016", "000000000020"]);
    let mut loaded = load(folder.path()).unwrap().unwrap();
    assert_eq!(loaded.step, 20);
    for _ in 0..2 {
        let reason = loaded.unsound().unwrap().expect("it is NaN");
        let (run, description) = (run("128"), description());
        let form = (&layout(), fragments());
        let next = load_next(folder.path(), &run, form, &description, loaded.pass_over(reason));
        loaded = next.unwrap().unwrap();
    }
    assert_eq!((loaded.step, loaded.unsound().unwrap()), (8, None));
    // Once the run goes on, there is no need for it.
    for step in [24, 28] {
        save_at(folder.path(), &replica(None, step), step).unwrap();
    }
    assert_eq!(names(folder.path()), ["000000000024", "000000000028"]);
}

#[test]
fn a_state_that_could_not_be_loaded_again_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let config =
        ReplicaConfig { mixer: Mixer::Exchange, outer: None, fragments: fragments(), clip: None };
    let mut wide = plain(vec![0.0; layout().parameters()]);
    wide.moments[1] = vec![0.0; 5 << 20];
    let error = save_at(folder.path(), &Replica::with(Box::new(wide), config), 8).unwrap_err();
    assert!(matches!(error, CheckpointError::TooLong { .. }), "{error}");
    assert!(error.to_string().contains("the trainer's state has "), "{error}");
    assert_eq!(names(folder.path()), ["000000000004"]);
}
