//! Tests of the configuration as a whole.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dnode_protocol::frame::Codec;
use dnode_protocol::{ParameterLayout, RunSpec, Tolerance};
use dnode_trainer::DataIdentity;

use super::*;

/// The error that the file `text` makes, with the file's name taken out.
fn file_error(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, text).unwrap();
    let mut settings = Settings::new();
    let error = settings.file(&path).and_then(|()| settings.resolve()).unwrap_err();
    error.to_string().replace(path.to_str().unwrap(), "run.toml")
}

fn set(settings: &[&str]) -> Result<Config, ConfigError> {
    let mut all = Settings::new();
    for setting in settings {
        all.set(setting)?;
    }
    all.resolve()
}

fn layout() -> ParameterLayout {
    let mut layout = ParameterLayout::new();
    layout.push("w", &[2, 3]).unwrap();
    layout
}

fn spec(config: &Config, layout: &ParameterLayout) -> RunSpec {
    run_spec(config, layout, &DataIdentity::default())
}

#[test]
fn made_configurations_are_read_or_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let other = ["gossip.rule=delta-set", "data.kind=text", "model.kind=gpt", "data.path=a.txt"];
    let texts = [set(&[]), set(&other)].map(|config| file_text(&config.unwrap()));
    dnode_mutate::check_made_inputs(&texts, 500, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        let mut settings = Settings::new();
        let mut faults = settings.file_faults(&path);
        faults.extend(settings.conflicts());
        let text = String::from_utf8_lossy(bytes);
        faults.extend(text.lines().filter_map(|line| settings.set(line).err()));
        for fault in faults {
            assert!(!fault.to_string().contains('\n'), "{fault}");
        }
    });
}

#[test]
fn every_default_is_legal_and_dependencies_come_first() {
    for (index, key) in KEYS.iter().enumerate() {
        let before = |name: &str| KEYS[..index].iter().find(|other| other.name == name);
        let texts: Vec<&str> = match key.default {
            Preset::Unset => vec![],
            Preset::Fixed(text) => vec![text],
            Preset::By(other, defaults) => {
                let other = before(other).unwrap();
                let Kind::Choice(words) = other.kind else {
                    panic!("{} depends on no word", key.name)
                };
                assert_eq!(words.len(), defaults.len(), "{}", key.name);
                defaults.iter().map(|(_, text)| *text).collect()
            }
        };
        if let Some((other, word, _)) = key.but {
            let Kind::Choice(words) = before(other).unwrap().kind else { panic!("{}", key.name) };
            assert!(words.contains(&word), "{}", key.name);
        }
        let but = key.but.map(|(_, _, text)| text);
        for text in texts.into_iter().chain(but) {
            assert!(key.kind.check(&key.kind.read(text)).is_some(), "{} = {text}", key.name);
        }
        if let Some(other) = key.above_zero.filter(|other| *other != key.name) {
            assert!(matches!(before(other).unwrap().kind, Kind::Integer(0, _)), "{}", key.name);
        }
        if let Some((other, values)) = key.only {
            let Kind::Choice(words) = before(other).unwrap().kind else { panic!("{}", key.name) };
            assert!(values.iter().all(|value| words.contains(value)), "{}", key.name);
        }
    }
}

#[test]
fn every_word_of_a_choice_is_one_of_the_type_it_is_read_into() {
    for key in KEYS {
        let Kind::Choice(words) = key.kind else { continue };
        for word in words {
            // Words that do not go together are an error; one that the type lacks would panic.
            let _ = set(&[&format!("{}={word}", key.name)]);
        }
    }
}

#[test]
fn optimizer_defaults_are_those_of_the_trainer() {
    use dnode_trainer::{OptimizerConfig, OptimizerKind};
    for (settings, kind) in [
        (&["optimizer.kind=adamw"][..], OptimizerKind::Adamw),
        (&["optimizer.kind=muon"], OptimizerKind::Muon),
        (&["optimizer.kind=sgd"], OptimizerKind::Sgd),
    ] {
        let ours = serde_json::to_value(set(settings).unwrap().optimizer).unwrap();
        let theirs = serde_json::to_value(OptimizerConfig::default_of(kind)).unwrap();
        for (key, value) in ours.as_object().unwrap() {
            // The trainer computes in f32.
            let same = match value.as_f64() {
                Some(value) => theirs[key].as_f64().map(|their| their as f32) == Some(value as f32),
                None => theirs[key] == *value,
            };
            assert!(same, "{kind:?} {key}: {value} here, {} there", theirs[key]);
        }
    }
}

#[test]
fn faults_of_a_file_name_line_key_and_remedy() {
    for (text, want) in [
        (
            "[run]\nseed = 2\n\n[gossip]\nrule = \"pairwise\"\n\nlocal_step = 5\n",
            "unknown key `gossip.local_step` in run.toml line 7: did you mean `gossip.local_steps`?",
        ),
        ("[gosip]\n", "unknown section `gosip` in run.toml line 1: did you mean `gossip`?"),
        (
            "[gossip]\nsteps = 3\n",
            "unknown key `gossip.steps` in run.toml line 2: did you mean `run.steps`?",
        ),
        ("seed = 3\n", "unknown key `seed` in run.toml line 1: did you mean `run.seed`?"),
        (
            "[run]\nbatch = 0\n",
            "run.batch = 0 in run.toml line 2 is not legal: must be an integer, 1 to 65536 samples",
        ),
        (
            "[run]\nsteps = \"many\"\n",
            "run.steps = \"many\" in run.toml line 2 is not legal: must be an integer, 1 to 1000000000000 steps",
        ),
        (
            "[run]\nseed = 99999999999999999999\n",
            "run.seed = 99999999999999999999 in run.toml line 2 is not legal: must be an integer, 0 to 9223372036854775807",
        ),
        (
            "[optimizer]\nmomentum = 1\n",
            "optimizer.momentum = 1 in run.toml line 2 is not legal: must be a number, at least 0, less than 1",
        ),
        (
            "[gossip]\nrule = \"gosip\"\n",
            "gossip.rule = \"gosip\" in run.toml line 2 is not legal: must be \"gossip-outer\", \"pairwise\", \"delta-set\", \"all-reduce\" or \"none\"",
        ),
        (
            "[gossip]\ncodecs = [\"int4\", \"int3\"]\n",
            "gossip.codecs = [\"int4\", \"int3\"] in run.toml line 2 is not legal: must be a list of at least one of \"f32\", \"bf16\", \"f16\", \"int8\", \"int4\", \"int2\", \"sign\" and \"top-k\", each at most once",
        ),
        (
            "[node]\nname = \"a\\u001b[2J\"\n",
            "node.name = \"a\\u001B[2J\" in run.toml line 2 is not legal: must be a text in quotes, at most 32 bytes, of characters that can be seen on one line",
        ),
        (
            "[gossip]\ngate_timeout = 10\n",
            "gossip.gate_timeout = 10 in run.toml line 2 is not legal: must be \"auto\" or a duration in quotes such as \"500ms\", 1ms to 1h",
        ),
    ] {
        assert_eq!(file_error(text), want);
    }
}

#[test]
fn broken_toml_names_the_line() {
    let text = file_error("[run]\nseed = = 3\n");
    assert!(text.starts_with("run.toml line 2 is not valid TOML: "), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn addresses_are_checked_one_by_one() {
    let mut settings = Settings::new();
    let good = "/ip4/127.0.0.1/udp/4001/quic-v1".to_owned();
    let error = settings
        .flags("network.bootstrap", &[good.clone(), "127.0.0.1:4001".to_owned()], "--bootstrap")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("network.bootstrap = \"127.0.0.1:4001\" in --bootstrap is not legal"),
        "{error}"
    );
    let only_udp = ["/ip4/127.0.0.1/udp/4001".to_owned()];
    assert!(settings.flags("network.listen", &only_udp, "--listen").is_err());
    settings.flags("network.bootstrap", std::slice::from_ref(&good), "--bootstrap").unwrap();
    assert_eq!(settings.resolve().unwrap().network.bootstrap, [good]);
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(
        &path,
        "run.seed = 5\n[optimizer]\nkind = \"adamw\"\n[data]\nkind = \"digits\"\nskew = 1\n",
    )
    .unwrap();
    let mut settings = Settings::new();
    settings.file(&path).unwrap();
    settings.set("run.steps = 7").unwrap();
    settings.flag("run.seed", "6", "--seed").unwrap();
    let config = settings.resolve().unwrap();
    assert_eq!((config.run.seed, config.run.steps, config.run.batch), (6, 7, 32));
    assert_eq!(config.optimizer.learning_rate.to_bits(), 0.004_f64.to_bits());
    assert_eq!(config.data.skew, Skew::Dirichlet(1.0));
}

#[test]
fn words_of_a_list_may_be_given_in_any_order_and_form_and_each_once() {
    use Codec::{F32, Int4, TopK};
    for (text, want) in [
        ("int4", vec![Int4]),
        ("top-k,int4", vec![Int4, TopK]),
        ("[\"int4\", \"f32\"]", vec![F32, Int4]),
        ("\"int4\"", vec![Int4]),
    ] {
        assert_eq!(set(&[&format!("gossip.codecs={text}")]).unwrap().gossip.codecs, want);
    }
    for text in ["", "[]", "int4,int4", "[4]", "int4,"] {
        assert!(set(&[&format!("gossip.codecs={text}")]).is_err(), "{text}");
    }
    let [one, other] = ["f32,int4", "int4,f32"]
        .map(|text| spec(&set(&[&format!("gossip.codecs={text}")]).unwrap(), &layout()));
    assert_eq!(one, other);
}

#[test]
fn times_left_to_the_program_are_auto() {
    let config = set(&["gossip.gate_timeout=auto", "node.linger=3s"]).unwrap();
    assert_eq!(config.gossip.gate_timeout, None);
    assert_eq!(config.node.linger, Some(std::time::Duration::from_secs(3)));
    assert_eq!(Config::default().node.linger, None);
}

#[test]
fn values_that_do_not_go_together_are_refused_with_a_remedy() {
    for (settings, want) in [
        (
            &["data.shards=2", "data.shard=2"][..],
            "data.shard = 2 in --set does not go with data.shards = 2: shards count from 0 to 1",
        ),
        (
            &["model.kind=gpt", "data.kind=digits"],
            "model.kind = \"gpt\" in --set does not go with data.kind = \"digits\": gpt and llama train on shakespeare or text, mlp and cnn on digits or mnist",
        ),
        (
            &["model.kind=llama", "model.width=12"],
            "model.heads = 4 by default does not go with model.width = 12: a head of a llama has an even number of channels: positions turn pairs of them",
        ),
        (
            &["model.kind=llama", "model.key_value_heads=3"],
            "model.key_value_heads = 3 in --set does not go with model.heads = 4: the heads of keys and values must divide the heads",
        ),
        (
            &["model.lora_rank=8"],
            "model.lora_rank = 8 in --set does not go with model.init = unset: adapters are trained beside given weights, which no peer hands out: name their folder by --init",
        ),
        (
            &["model.lora_rank=8", "data.kind=digits"],
            "model.lora_rank = 8 in --set does not go with model.kind = \"mlp\": adapters are of a gpt or llama: leave it out",
        ),
        (
            &["model.lora_rank=8", "model.init=x", "node.precision=bf16"],
            "model.lora_rank = 8 in --set does not go with node.precision = \"bf16\": the embedded engine alone trains adapters, in f32 on the CPU: leave one out",
        ),
        (
            &["model.lora_rank=8", "model.init=x", "node.backend=libtorch"],
            "model.lora_rank = 8 in --set does not go with node.backend = \"libtorch\": the embedded engine alone trains adapters, in f32 on the CPU: leave one out",
        ),
        (
            &["data.kind=mnist"],
            "data.path = unset by default does not go with data.kind = \"mnist\": give --data-path with the folder or file",
        ),
        (
            &["data.path=mine.txt"],
            "data.path = \"mine.txt\" in --set does not go with data.kind = \"shakespeare\": this data set is built in and no file is read: add --data text, mnist or another kind, or leave the path out",
        ),
        (
            &["gossip.rule=pairwise", "gossip.outer_momentum=0.5"],
            "gossip.outer_momentum = 0.5 in --set does not go with gossip.rule = \"pairwise\": it takes no outer step: leave it out, or use gossip-outer",
        ),
        (
            &["optimizer.accumulate=3"],
            "optimizer.accumulate = 3 in --set does not go with run.batch = 32: the micro-batches must divide the batch",
        ),
        (
            &["gossip.rule=all-reduce"],
            "gossip.world = 0 by default does not go with gossip.rule = \"all-reduce\": give the number of peers that take part",
        ),
    ] {
        assert_eq!(set(settings).unwrap_err().to_string(), want);
    }
    assert!(set(&["gossip.rule=pairwise"]).is_ok());
}

#[cfg(unix)]
#[test]
fn a_configuration_without_end_is_read_no_further_than_its_bound() {
    let error = Settings::new().file(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("/dev/zero: it has more than 1 MiB"), "{error}");
}

#[test]
fn the_run_line_repeats_exactly_the_shared_settings_and_makes_the_same_run() {
    assert_eq!(
        run_line(&Config::default(), "/ip4/1.2.3.4/tcp/1"),
        "dnode join --bootstrap /ip4/1.2.3.4/tcp/1"
    );
    let settings = [
        "gossip.local_steps=50",
        "model.width=64",
        "optimizer.learning_rate=0.01",
        "gossip.rule=gossip-outer",
        "node.threads=2",
        "data.shards=4",
        "data.shard=3",
    ];
    let config = set(&settings).unwrap();
    assert_eq!(
        run_line(&config, "/ip4/1.2.3.4/tcp/1"),
        "dnode join --bootstrap /ip4/1.2.3.4/tcp/1 --set data.shards=4 --set model.width=64 \
         --set gossip.rule=gossip-outer --set gossip.local_steps=50 \
         --set optimizer.learning_rate=0.01"
    );
    let joiner = set(&[&settings[..4], &settings[5..6]].concat()).unwrap();
    assert_eq!(spec(&joiner, &layout()), spec(&config, &layout()));
}

#[test]
fn a_run_differs_by_the_key_that_was_changed() {
    let ours = spec(&Config::default(), &layout());
    for (setting, want) in [
        ("gossip.rule=gossip-outer", Some("gossip.rule")),
        ("run.seed=2", Some("run.seed")),
        ("model.width=64", Some("model.width")),
        ("model.hidden=[9]", None),
        ("data.kind=digits", Some("data.kind")),
        ("run.batch=8", None),
    ] {
        let theirs = spec(&set(&[setting]).unwrap(), &layout());
        let difference = ours.difference(&theirs).map(|difference| difference.field);
        assert_eq!(difference.as_deref(), want, "{setting}");
    }
    let mut other = ParameterLayout::new();
    other.push("w", &[3, 2]).unwrap();
    let theirs = spec(&Config::default(), &other);
    assert_eq!(ours.difference(&theirs).unwrap().field, "parameters.layout");
}

#[test]
fn data_that_are_read_differently_make_another_run_and_other_data_a_setting() {
    let identity = |map: &str, digest: u8| DataIdentity {
        maps: vec![("data.vocabulary", map.to_owned())],
        digest: Some([digest; 32]),
    };
    let config = Config::default();
    let spec = |map| run_spec(&config, &layout(), &identity(map, 1));
    let difference =
        spec("10 characters 'a'…'j' (1)").difference(&spec("10 characters 'A'…'J' (2)"));
    assert_eq!(
        difference.unwrap().to_string(),
        "data.vocabulary is \"10 characters 'a'…'j' (1)\" here and \"10 characters 'A'…'J' (2)\" there"
    );
    let settings = |settings: &[&str], digest| {
        shared_settings(&set(settings).unwrap(), &identity("x", digest))
    };
    let (ours, theirs) = (settings(&[], 1), settings(&[], 2));
    assert_eq!(ours.compare(theirs.values()).unwrap_err().field, DATA_DIGEST);
    let allows = settings(&["network.allow_differences=data.digest"], 1);
    assert_eq!(allows.compare(theirs.values()).unwrap().len(), 1);
}

#[test]
fn settings_differ_in_words_and_are_refused_beyond_a_factor() {
    let identity = DataIdentity::default();
    let settings = |given: &[&str]| shared_settings(&set(given).unwrap(), &identity);
    let ours = settings(&[]);
    for (given, told, refused) in [
        (&["run.batch=64", "run.steps=7", "node.threads=2"][..], &["run.batch"][..], None),
        (&["optimizer.learning_rate=0.04"], &["optimizer.learning_rate"], None),
        (&["optimizer.learning_rate=0.1", "run.batch=64"], &[], Some("optimizer.learning_rate")),
        (&["optimizer.clip_norm=0"], &[], Some("optimizer.clip_norm")),
        (&["optimizer.kind=sgd"], &[], Some("optimizer.kind")),
        (&["optimizer.schedule=constant"], &["optimizer.schedule"], None),
    ] {
        match ours.compare(settings(given).values()) {
            Ok(differences) => {
                let names: Vec<_> = differences.iter().map(|it| it.field.as_str()).collect();
                assert_eq!((names.as_slice(), None), (told, refused), "{given:?}");
            }
            Err(difference) => assert_eq!(Some(difference.field.as_str()), refused, "{given:?}"),
        }
    }
    // Whatever can be refused can be allowed, and nothing else.
    let beyond = KEYS.iter().filter(
        |key| matches!(key.agreement, Agreement::Should(tolerance) if tolerance != Tolerance::Any),
    );
    let beyond: BTreeSet<&str> = beyond.map(|key| key.name).chain([DATA_DIGEST]).collect();
    assert_eq!(beyond, SETTINGS.iter().copied().collect());
}

#[cfg(unix)]
#[test]
fn a_folder_whose_name_is_no_text_is_shown_by_a_mark_and_changes_no_line() {
    use std::os::unix::ffi::OsStrExt as _;
    let plain = Config::default();
    let mut config = plain.clone();
    config.node.data_dir = std::ffi::OsStr::from_bytes(b"run-\xff").into();
    config.network.secret_file = Some(std::ffi::OsStr::from_bytes(b"\xfe").into());
    assert_eq!(run_line(&config, "/ip4/1.2.3.4"), run_line(&plain, "/ip4/1.2.3.4"));
    let shown = run::values_of(&config);
    assert_eq!(shown["node.data_dir"].as_str(), Some("run-\u{fffd}"));
    assert_eq!(shown["network.secret_file"].as_str(), Some("\u{fffd}"));
}

#[test]
fn a_saved_file_makes_the_same_configuration() {
    let mut config = set(&[
        "gossip.rule=gossip-outer",
        "data.kind=digits",
        "data.skew=0.3",
        "run.seed=9",
        "gossip.gate_timeout=1m 5s",
        "gossip.codecs=f32,int8",
    ])
    .unwrap();
    config.node.data_dir = PathBuf::from("a \"b\"\\c");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.toml");
    std::fs::write(&path, file_text(&config)).unwrap();
    let mut settings = Settings::new();
    settings.file(&path).unwrap();
    assert_eq!(settings.resolve().unwrap(), config);
}

#[test]
fn the_configuration_in_force_names_origins_and_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "[run]\n\nsteps = 7\n").unwrap();
    let mut settings = Settings::new();
    settings.file(&path).unwrap();
    settings.set("run.batch=5").unwrap();
    settings.flag("node.threads", "2", "--threads").unwrap();
    let text = origin_text(&settings);
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap();
    let file = format!("# in {} line 3", path.display());
    assert!(line("steps = 7 ").ends_with(&file), "{text}");
    assert!(line("batch = 5 ").ends_with("# in --set"), "{text}");
    assert!(line("threads = 2 ").ends_with("# in --threads"), "{text}");
    assert!(line("seed = ").ends_with("# by default"), "{text}");
    std::fs::write(&path, text).unwrap();
    let mut again = Settings::new();
    again.file(&path).unwrap();
    assert_eq!(again.resolve().unwrap(), settings.resolve().unwrap());
}

#[test]
fn the_reference_as_a_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reference.toml");
    std::fs::write(&path, reference_text()).unwrap();
    let mut settings = Settings::new();
    settings.file(&path).unwrap();
    assert_eq!(settings.resolve().unwrap(), Config::default());
}

#[test]
fn the_documentation_page_is_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference_markdown(),
        "docs/configuration.md is out of date: run `dnode config --markdown > docs/configuration.md`"
    );
}
