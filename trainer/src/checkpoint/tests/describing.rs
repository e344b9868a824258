//! What checkpoints say of themselves, what is refused of it, and numbers that are not finite.

use super::*;

/// The metadata of a file of parameters, as any program reads them.
fn told(parameters: &Path) -> BTreeMap<String, String> {
    let bytes = fs::read(parameters).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    header.metadata().clone().unwrap().into_iter().collect()
}

#[test]
fn parameters_say_what_they_are_in_the_same_bytes_every_time() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let replica = replica(Some(OuterStep::default()), 8);
    let saved = save_at(one.path(), &replica, 8).unwrap().parameters;
    let again = save_at(other.path(), &replica, 8).unwrap().parameters;
    assert!(fs::read(&saved).unwrap() == fs::read(again).unwrap());
    let told = told(&saved);
    let id = manifest::run_name(run("128").id());
    let expected = [
        ("data", "numbers"),
        ("dnode.clock", "2"),
        ("dnode.format", "1"),
        ("dnode.run", &id),
        ("dnode.samples", "256"),
        ("dnode.step", "8"),
        ("dnode.version", env!("CARGO_PKG_VERSION")),
        ("format", "pt"),
        ("model", r#"{"kind":"plain","inputs":40}"#),
        ("vocabulary", "a\n\"\u{e9}"),
    ];
    let told: Vec<_> = told.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(told, expected);
}

#[test]
fn a_checkpoint_of_another_vocabulary_is_refused_in_one_line_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let mut own = description();
    own.note("data", "other numbers").unwrap();
    own.set("unheard", "of").unwrap();
    assert!(load_as(folder.path(), &own).unwrap().is_some(), "what is only told may differ");
    own.set("vocabulary", "abc").unwrap();
    let error = load_as(folder.path(), &own).unwrap_err();
    assert!(matches!(error, CheckpointError::OtherModel { .. }));
    let message = error.to_string();
    assert!(message.contains("vocabulary is abc here and a\\n\"é there"), "{message}");
    assert!(message.contains("000000000004") && !message.contains('\n'), "{message}");
    own.set("vocabulary", "a\n\"\u{e9}").unwrap();
    own.set("model", r#"{"kind":"plain","inputs":41}"#).unwrap();
    let message = load_as(folder.path(), &own).unwrap_err().to_string();
    assert!(message.contains("model.inputs is 41 here and 40 there"), "{message}");
}

/// What a trainer tells whose tokens a tokenizer makes.
fn with_tokenizer(file: &[u8]) -> Description {
    let mut description = description();
    description.set_tokenizer(file.into());
    let digest = blake3::hash(file).to_hex();
    description.set("vocabulary", format!(r#"{{"blake3":"{digest}"}}"#)).unwrap();
    description
}

#[test]
fn a_tokenizer_is_stored_beside_the_parameters_and_checked_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (with_tokenizer(b"{\"one\":1}"), with_tokenizer(b"{\"two\":2}"));
    let saved = save_described(folder.path(), &replica(None, 4), 4, &own);
    let file = saved.directory.join(TOKENIZER_FILE);
    assert_eq!(fs::read(&file).unwrap(), b"{\"one\":1}");
    assert_eq!(load_as(folder.path(), &own).unwrap().unwrap().step, 4);
    let message = load_as(folder.path(), &other).unwrap_err().to_string();
    assert!(message.contains("vocabulary.blake3 is "), "{message}");
    let refused = |want: &str| {
        let message = load_as(folder.path(), &own).unwrap_err().to_string();
        assert!(message.contains(want) && !message.contains('\n'), "{message}");
    };
    fs::write(&file, b"{\"one\":2}").unwrap();
    refused("tokenizer.json: expected BLAKE3 ");
    fs::write(&file, b"{\"one\":11}").unwrap();
    refused("tokenizer.json: expected 9 bytes, found 10");
    fs::remove_file(&file).unwrap();
    refused("tokenizer.json: No such file");
    let manifest = saved.directory.join("manifest.json");
    let good = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, good.replace("\"bytes\": 9,", "\"bytes\": 99999999999,")).unwrap();
    refused("tokenizer.json: expected 1 to 67108864 bytes");
    fs::write(&manifest, good.replace(TOKENIZER_FILE, "other")).unwrap();
    refused("lists no tokenizer.json");
    // A damaged one is passed over for the one before.
    fs::remove_dir_all(&saved.directory).unwrap();
    save_described(folder.path(), &replica(None, 4), 4, &own);
    let newer = save_described(folder.path(), &replica(None, 8), 8, &own).directory;
    fs::write(newer.join(TOKENIZER_FILE), b"{\"one\":2}").unwrap();
    let loaded = load_as(folder.path(), &own).unwrap().unwrap();
    assert_eq!((loaded.step, loaded.skipped.len()), (4, 1));
}

/// Writes `bytes` to the file of parameters, and their hash to the manifest.
fn put_parameters(checkpoint: &Path, bytes: &[u8]) {
    let path = checkpoint.join(PARAMETERS);
    let manifest = fs::read_to_string(checkpoint.join("manifest.json")).unwrap();
    let old = fs::read(&path).unwrap();
    let manifest = manifest
        .replace(blake3::hash(&old).to_hex().as_str(), blake3::hash(bytes).to_hex().as_str())
        .replace(&format!("\"bytes\": {}", old.len()), &format!("\"bytes\": {}", bytes.len()));
    fs::write(path, bytes).unwrap();
    fs::write(checkpoint.join("manifest.json"), manifest).unwrap();
}

/// The file of parameters with this JSON in the place of its header's.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let mut header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let mut json = header.to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json, &bytes[8 + length..]].concat()
}

#[test]
fn a_checkpoint_without_metadata_is_read_and_metadata_of_another_one_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let original = replica(None, 4);
    let saved = save_at(folder.path(), &original, 4).unwrap();
    let good = fs::read(&saved.parameters).unwrap();
    let plain = with_header(&good, |header| {
        header.as_object_mut().unwrap().remove("__metadata__").unwrap();
    });
    put_parameters(&saved.directory, &plain);
    let mut loaded = load(folder.path()).unwrap().unwrap();
    assert_eq!(state_of(&mut loaded, Mixer::Exchange, None), original.save());
    let refused = |bytes: &[u8], want: &str| {
        put_parameters(&saved.directory, bytes);
        let message = load(folder.path()).unwrap_err().to_string();
        assert!(message.contains(want) && !message.contains('\n'), "{message}");
    };
    for (name, value, want) in [
        ("dnode.step", "5", "expected dnode.step 4, found 5"),
        ("dnode.format", "2", "expected dnode.format 1, found 2"),
        ("dnode.run", "beef", "found beef"),
    ] {
        let bytes = with_header(&good, |header| header["__metadata__"][name] = value.into());
        refused(&bytes, want);
    }
    let long = "x".repeat(metadata::METADATA_BYTES_MAX);
    refused(
        &with_header(&good, |header| header["__metadata__"]["long"] = long.into()),
        "bytes for this model",
    );
    refused(&with_header(&good, |header| header["__metadata__"]["odd"] = 1.into()), "not a whole");
    refused(
        &with_header(&good, |header| {
            header["layer.bias"]["data_offsets"] = serde_json::json!([4000, 4096]);
        }),
        "not a whole",
    );
    let mut endless = good;
    endless[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&endless, "expected a header of at most");
}

#[test]
fn a_number_that_is_not_finite_is_refused_before_anything_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let saved = save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let mut bytes = fs::read(&saved.parameters).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    put_parameters(&saved.directory, &bytes);
    let mut loaded = load(folder.path()).unwrap().unwrap();
    let mut resumed = replica(None, 2);
    let before = resumed.save();
    let error = loaded.restore(&mut resumed).unwrap_err().to_string();
    assert!(error.contains("parameters: expected finite values"), "{error}");
    assert_eq!(resumed.save(), before);
}

#[test]
fn a_checkpoint_whose_numbers_are_not_finite_is_passed_over_for_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    save_at(folder.path(), &replica(None, 4), 4).unwrap();
    let saved = save_at(folder.path(), &replica(None, 8), 8).unwrap();
    let mut bytes = fs::read(&saved.parameters).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    put_parameters(&saved.directory, &bytes);
    let next = |passed| {
        let described = description();
        let form = (&layout(), fragments());
        load_next(folder.path(), &run("128"), form, &described, passed)
    };
    let mut newest = next(Vec::new()).unwrap().unwrap();
    assert_eq!(newest.step, 8);
    let reason = newest.unsound().unwrap().unwrap();
    assert!(reason.starts_with("parameters: expected finite values"), "{reason}");
    let mut before = next(newest.pass_over(reason)).unwrap().unwrap();
    assert_eq!((before.step, before.skipped.len()), (4, 1));
    assert_eq!(before.unsound().unwrap(), None);
    before.restore(&mut replica(None, 2)).unwrap();
    let error = next(before.pass_over("no good".to_owned())).unwrap_err().to_string();
    assert!(error.contains("no good") && error.contains("finite"), "{error}");
}
