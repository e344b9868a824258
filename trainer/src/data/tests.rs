//! Tests of whole data sets: batches, epochs, shards, evaluation.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::batch::Input;

fn digits(shards: u32, shard: u32, seed: u64) -> Dataset {
    Dataset::open(&DataConfig { shards, shard: Some(shard), ..DataConfig::default() }, seed, 0)
        .unwrap()
}

fn batch(data: &Dataset, step: u64, micro: u64, samples: usize) -> Batch {
    let mut batch = Batch::new(data.shape());
    data.fill(step, micro, samples, &mut batch);
    batch
}

/// The images of a batch, as bits, with their labels.
fn images(batch: &Batch) -> Vec<(Vec<u32>, u32)> {
    let Input::Images(values) = &batch.input else { panic!("not images") };
    let size = values.len() / batch.samples;
    let bits = values.chunks(size).map(|image| image.iter().map(|v| v.to_bits()).collect());
    bits.zip(batch.targets.iter().copied()).collect()
}

fn counts(batches: impl Iterator<Item = Batch>) -> BTreeMap<(Vec<u32>, u32), u32> {
    let mut counts = BTreeMap::new();
    for image in batches.flat_map(|batch| images(&batch)) {
        *counts.entry(image).or_default() += 1;
    }
    counts
}

#[test]
fn a_batch_depends_on_seed_shard_and_step_alone() {
    let (a, b) = (digits(4, 1, 7), digits(4, 1, 7));
    let reference = batch(&a, 12, 0, 32);
    batch(&b, 3, 0, 5);
    assert_eq!(batch(&b, 12, 0, 32), reference);
    assert_ne!(batch(&a, 13, 0, 32), reference);
    assert_ne!(batch(&digits(4, 2, 7), 12, 0, 32), reference);
    assert_ne!(batch(&digits(4, 1, 8), 12, 0, 32), reference);
}

#[test]
fn peers_of_one_shard_draw_in_orders_of_their_own_unless_told_otherwise() {
    let open = |stream, own| {
        let config = DataConfig { shards: 4, shard: Some(1), stream, ..DataConfig::default() };
        let mut data = Dataset::open(&config, 7, 0).unwrap();
        data.set_stream(own);
        data
    };
    let auto = |own| batch(&open(Stream::Auto, own), 12, 0, 32);
    assert_eq!(auto(3), auto(3));
    assert_ne!(auto(3), auto(4));
    let fixed = |own| batch(&open(Stream::Fixed(4), own), 12, 0, 32);
    assert_eq!(fixed(1), fixed(2));
    assert_eq!(fixed(1), auto(4));
    let share = open(Stream::Auto, 9).share().unwrap();
    assert_eq!((share.shards, share.shard, share.stream), (4, 1, 9));
    assert!(share.samples.abs_diff(1438 / 4) <= 1);
}

#[test]
fn the_expected_overlap_is_what_counting_finds() {
    let drawn = |data: &Dataset, samples: usize| -> BTreeSet<usize> {
        data.positions(0, samples).map(|position| data.members.at(position)).collect()
    };
    let open = |shard, stream| {
        let mut data = digits(2, shard, 3);
        data.set_stream(stream);
        data
    };
    let len = open(0, 0).train_len();
    for (one, other) in [((0, 1), (0, 2)), ((0, 1), (0, 1)), ((0, 1), (1, 1))] {
        for (a, b) in [(100, 300), (300, 100), (len, 50), (3 * len, 400), (77, 2 * len), (0, 9)] {
            let (ours, theirs) = (open(one.0, one.1), open(other.0, other.1));
            let (mine, others) = (drawn(&ours, a), drawn(&theirs, b));
            let common = mine.intersection(&others).count() as f64;
            let found = common / (mine.len() as f64).max(1.0);
            let of =
                |(shard, stream), samples: usize| Drawn { shard, stream, samples: samples as u64 };
            let want = expected_overlap(len as u64, of(one, a), of(other, b));
            // Five standard deviations of a proportion; what is certain has none.
            let slack = 5.0 * (want * (1.0 - want) / (a as f64).max(1.0)).sqrt();
            let certain = one == other || one.0 != other.0;
            let slack = if certain { 1e-12 } else { slack + 1e-12 };
            assert!((found - want).abs() <= slack, "{one:?} {other:?} {a} {b}: {found} {want}");
        }
    }
}

#[test]
fn every_sample_of_a_shard_comes_once_per_epoch_in_a_new_order() {
    let data = digits(4, 3, 1);
    let len = data.train_len();
    let epoch = |number: u64| {
        counts((0..len as u64).map(|at| batch(&data, number * len as u64 + at, 0, 1)))
    };
    let (first, second) = (epoch(0), epoch(1));
    assert_eq!(first.values().sum::<u32>(), len as u32);
    assert_eq!(first, second);
    assert_ne!(batch(&data, 0, 0, len), batch(&data, 1, 0, len));
    // A batch size that does not divide the epoch: after `len` batches of 7, seven of each.
    let sevenfold = counts((0..len as u64).map(|step| batch(&data, step, 0, 7)));
    assert!(sevenfold.iter().all(|(image, &count)| count == 7 * first[image]));
}

#[test]
fn micro_batches_together_are_the_batch_of_the_step() {
    let (whole, split) = (digits(1, 0, 3), digits(1, 0, 3).with_micro_batches(4));
    for step in [0, 5, 1000] {
        let parts: Vec<_> =
            (0..4).flat_map(|micro| images(&batch(&split, step, micro, 8))).collect();
        assert_eq!(parts, images(&batch(&whole, step, 0, 32)));
    }
}

#[test]
fn shards_have_nothing_in_common_and_together_are_the_training_set() {
    for skew in [Skew::Iid, Skew::Dirichlet(0.1)] {
        let open = |shards, shard| {
            let config = DataConfig { shards, shard: Some(shard), skew, ..DataConfig::default() };
            Dataset::open(&config, 9, 0).unwrap()
        };
        let shards: Vec<Dataset> = (0..5).map(|shard| open(5, shard)).collect();
        let all = open(1, 0);
        assert_eq!(shards.iter().map(Dataset::train_len).sum::<usize>(), all.train_len());
        for (i, shard) in shards.iter().enumerate() {
            assert_eq!(shard.overlap(&all), shard.train_len());
            for (j, other) in shards.iter().enumerate() {
                assert_eq!(shard.overlap(other), if i == j { shard.train_len() } else { 0 });
            }
        }
        let whole = |data: &Dataset| batch(data, 0, 0, data.train_len());
        assert_eq!(counts(shards.iter().map(whole)), counts([whole(&all)].into_iter()));
    }
}

#[test]
fn evaluation_visits_the_held_out_samples_once_whatever_the_seed() {
    let (a, b) = (digits(4, 0, 1), digits(2, 1, 99));
    let mut batch = Batch::new(a.shape());
    let (mut offset, mut seen) = (0, Vec::new());
    while a.evaluation(offset, 100, &mut batch) {
        offset += batch.samples;
        seen.extend(images(&batch));
    }
    assert_eq!((offset, a.evaluation_len()), (seen.len(), seen.len()));
    assert!(b.evaluation(0, 10_000, &mut batch));
    assert_eq!(batch.samples, seen.len());
    let train = counts([self::batch(&digits(1, 0, 1), 0, 0, 1438)].into_iter());
    assert!(seen.iter().all(|image| !train.contains_key(image)), "held out and trained on");
}

#[test]
fn pixels_are_standardised() {
    let data = digits(1, 0, 1);
    let batch = batch(&data, 0, 0, data.train_len());
    let Input::Images(values) = &batch.input else { panic!("not images") };
    let count = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let variance = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / count;
    assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "{mean} {variance}");
}

fn text(shards: u32, shard: u32) -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    let content: String = (0..5000_u32).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect();
    std::fs::write(&path, content).unwrap();
    let config = DataConfig {
        kind: DataKind::Text,
        path: Some(path),
        shards,
        shard: Some(shard),
        ..DataConfig::default()
    };
    Dataset::open(&config, 4, 16).unwrap()
}

#[test]
fn text_shards_share_no_window_and_batches_are_windows() {
    let (a, b, all) = (text(2, 0), text(2, 1), text(1, 0));
    assert_eq!((a.overlap(&b), a.overlap(&all)), (0, a.train_len()));
    assert_eq!(a.train_len() + b.train_len(), 4500 - 16);
    let batch = batch(&a, 3, 0, 6);
    let Input::Tokens(inputs) = &batch.input else { panic!("not tokens") };
    for (input, target) in inputs.chunks(16).zip(batch.targets.chunks(16)) {
        assert_eq!(input[1..], target[..15]);
    }
    let mut held_out = Batch::new(a.shape());
    assert!(a.evaluation(a.evaluation_len() - 1, 5, &mut held_out));
    assert_eq!((held_out.samples, a.evaluation_len()), (1, 499 / 16));
    assert!(!a.evaluation(a.evaluation_len(), 5, &mut held_out));
}

#[test]
fn configuration_that_does_not_fit_the_data_is_refused() {
    let message =
        |config: DataConfig, context| Dataset::open(&config, 1, context).unwrap_err().to_string();
    let kind = |kind| DataConfig { kind, ..DataConfig::default() };
    assert_eq!(
        message(kind(DataKind::Mnist), 0),
        "data.path = (not given): expected the folder with the MNIST files"
    );
    let skewed =
        DataConfig { path: Some("x".into()), skew: Skew::Dirichlet(0.5), ..kind(DataKind::Text) };
    assert!(message(skewed, 8).starts_with("data.skew = 0.5: expected \"iid\""));
    let shards = DataConfig { shards: 1439, ..DataConfig::default() };
    assert!(message(shards, 0).starts_with("data.shards = 1439: expected 1 to 1438"));
    assert!(serde_json::from_str::<DataConfig>("{\"sharde\": 2}").is_err());
    let parsed: DataConfig = serde_json::from_str("{\"kind\":\"text\",\"skew\":0.3}").unwrap();
    assert_eq!((parsed.kind, parsed.skew), (DataKind::Text, Skew::Dirichlet(0.3)));
}

#[test]
fn digests_tell_data_sets_apart_and_not_shards() {
    assert_eq!(digits(1, 0, 1).digest(), digits(4, 2, 9).digest());
    assert_ne!(digits(1, 0, 1).digest(), text(1, 0).digest());
}

#[expect(clippy::unwrap_in_result, reason = "a failure in a test's preparation fails the test")]
fn text_of(content: &str, vocabulary: Option<&str>) -> Result<Dataset, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, content.repeat(40)).unwrap();
    let vocabulary = vocabulary.map(|characters| {
        let path = folder.path().join("characters.txt");
        std::fs::write(&path, characters).unwrap();
        if characters == "bytes" { "bytes".into() } else { path }
    });
    let config =
        DataConfig { kind: DataKind::Text, path: Some(path), vocabulary, ..DataConfig::default() };
    Dataset::open(&config, 1, 4)
}

#[test]
fn texts_of_other_characters_are_told_apart_and_a_common_vocabulary_joins_them() {
    let map = |data: &Dataset| data.identity().maps[0].clone();
    let own = |content| text_of(content, None).unwrap();
    let (small, large) = (own("abcdefghij"), own("ABCDEFGHIJ"));
    // The tokens are the same numbers, and mean something else.
    assert_eq!(small.digest(), large.digest());
    let (name, words) = map(&small);
    assert!(name == "data.vocabulary" && words.starts_with("10 characters 'a'…'j' ("), "{words}");
    assert_ne!(map(&small), map(&large));
    // The same ends and number, but another character between them.
    assert_ne!(map(&small), map(&own("abcdefgh\u{68}\u{e9}j")));
    assert_eq!(map(&small), map(&own("jjihgfedcba")));
    for common in ["abcdefghijABCDEFGHIJ", "bytes"] {
        let both = ["abcdefghij", "ABCDEFGHIJ"].map(|it| text_of(it, Some(common)).unwrap());
        assert_eq!(map(&both[0]), map(&both[1]));
        assert_ne!(both[0].digest(), both[1].digest());
    }
    let lacks = text_of("abcdefghij", Some("abc")).unwrap_err().to_string();
    assert!(
        lacks.contains("data.vocabulary=bytes") && lacks.ends_with("found 'd' at byte 3"),
        "{lacks}"
    );
    let empty = text_of("abcdefghij", Some("")).unwrap_err().to_string();
    assert!(empty.ends_with("found no character"), "{empty}");
}

#[test]
fn pixels_and_labels_are_told_in_words() {
    let identity = digits(4, 1, 7).identity();
    assert_eq!(identity, digits(1, 0, 9).identity());
    let maps: Vec<&str> = identity.maps.iter().map(|(_, map)| map.as_str()).collect();
    assert_eq!(maps[0], "10 labels, 0 to 9");
    assert!(maps[1].starts_with("8x8 grey pixels, mean 4."), "{maps:?}");
}

#[test]
fn a_shard_that_nobody_has_set_can_change_and_draws_the_same_batches() {
    for skew in [Skew::Iid, Skew::Dirichlet(0.3)] {
        let open = |shard| {
            let config = DataConfig { shards: 4, shard, skew, ..DataConfig::default() };
            Dataset::open(&config, 7, 0).unwrap()
        };
        let mut moving = open(None);
        for shard in [0, 3, 1] {
            assert!(moving.set_shard(shard));
            let fixed = open(Some(shard));
            assert_eq!(moving.share(), fixed.share());
            assert_eq!(batch(&moving, 5, 0, 16), batch(&fixed, 5, 0, 16));
        }
        assert!(!moving.set_shard(4));
        assert!(!open(Some(1)).set_shard(2) && open(Some(1)).set_shard(1));
    }
    let (mut moving, fixed) = (text(2, 0), text(2, 1));
    assert!(moving.set_shard(1));
    assert_eq!(batch(&moving, 5, 0, 16), batch(&fixed, 5, 0, 16));
}

#[test]
fn labels_of_a_skewed_shard_are_far_from_those_of_the_held_out_samples() {
    let distance = |skew, shard| {
        let config = DataConfig { shards: 4, shard, skew, ..DataConfig::default() };
        let share = Dataset::open(&config, 7, 0).unwrap().share().unwrap();
        share.label_distance.unwrap()
    };
    for shard in 0..4 {
        assert!(distance(Skew::Iid, Some(shard)) < 0.15);
        assert!(distance(Skew::Dirichlet(0.1), Some(shard)) > 0.3);
    }
    assert_eq!(text(2, 0).share().unwrap().label_distance, None);
}

#[test]
fn shares_of_labels_are_compared_whatever_their_number() {
    let all = |labels: &[u8], others: &[u8]| total_variation(labels.iter(), others.iter());
    assert!(all(&[0, 0, 1, 1], &[1, 0]) < 1e-12);
    assert!((all(&[0, 0, 0, 0], &[0, 1]) - 0.5).abs() < 1e-12);
    assert!((all(&[3], &[4, 5]) - 1.0).abs() < 1e-12);
    assert!(all(&[], &[1]) < 1e-12);
}

#[test]
fn a_tokenizer_makes_the_tokens_of_any_text_and_names_them_by_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let words = "some words of a text that has words of some length. ".repeat(40);
    let train = |kinds: usize| {
        let path = folder.path().join(kinds.to_string());
        let trained = crate::train_tokenizer(std::slice::from_ref(&words), kinds).unwrap();
        std::fs::write(&path, trained.bytes()).unwrap();
        path
    };
    let (one, other) = (train(270), train(280));
    let path = folder.path().join("text.txt");
    std::fs::write(&path, &words).unwrap();
    let open = |kind, tokenizer: &Path| {
        let path = (kind == DataKind::Text).then(|| path.clone());
        let tokenizer = Some(tokenizer.to_owned());
        Dataset::open(&DataConfig { kind, path, tokenizer, ..DataConfig::default() }, 1, 8)
    };
    let data = open(DataKind::Text, &one).unwrap();
    assert_eq!(data.shape(), SampleShape::Text { context: 8, vocabulary: 270 });
    let (name, told) = data.identity().maps[0].clone();
    let digest = blake3::hash(&std::fs::read(&one).unwrap()).to_hex();
    let want = format!("byte-level BPE of 270 tokens ({})", &digest[..16]);
    assert_eq!((name, told), ("data.vocabulary", want));
    let finer = open(DataKind::Text, &other).unwrap();
    assert_ne!(finer.identity().maps, data.identity().maps);
    assert!(finer.train_len() < data.train_len(), "more kinds, fewer tokens");
    assert_ne!(finer.digest(), data.digest());
    assert!(open(DataKind::Shakespeare, &one).unwrap().train_len() > 100_000);
    let mut description = Description::default();
    data.describe(&mut description).unwrap();
    assert_eq!(description.tokenizer().unwrap(), std::fs::read(&one).unwrap());
    let told = description.get("vocabulary").unwrap();
    assert!(told.contains(&format!("\"blake3\":\"{digest}\"")), "{told}");

    let message = |tokenizer: &Path| open(DataKind::Text, tokenizer).unwrap_err().to_string();
    std::fs::write(&path, "some words").unwrap();
    let short = message(&one);
    assert!(short.contains("at least 90 tokens, ten times (model.context + 1)"), "{short}");
    let none = message(Path::new("/no/tokenizer.json"));
    assert!(none.starts_with("read the tokenizer /no/tokenizer.json: "), "{none}");
    assert!(message(&path).starts_with("the tokenizer "), "{}", message(&path));
}
