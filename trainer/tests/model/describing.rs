//! What trainers tell of themselves is what they compute: the metadata of checkpoints.

use dnode_trainer::{DataConfig, DataKind, Dataset, LocalTrainer, ModelKind, Trainer};
use serde_json::{Value, json};

use crate::synthetic::config;

fn told(kind: ModelKind, data: &DataConfig) -> impl Fn(&str) -> Value + use<> {
    let config = config(kind);
    let data = Dataset::open(data, 1, config.model.context).unwrap();
    let trainer = LocalTrainer::new(config, Box::new(data)).unwrap();
    let description = trainer.describe().unwrap();
    move |name| {
        description.get(name).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }
}

#[test]
fn images_tell_their_model_their_normalisation_and_what_is_held_out() {
    let mlp = told(ModelKind::Mlp, &DataConfig::default());
    let hidden = config(ModelKind::Mlp).model.hidden;
    let expected = json!({
        "kind": "mlp", "inputs": 64, "hidden": hidden, "classes": 10, "activation": "relu",
        "loss": "cross-entropy",
    });
    assert_eq!(mlp("model"), expected);
    let input = mlp("input");
    let number = |name: &str| input[name].as_f64().unwrap();
    // Mean and deviation of the 1,438 training digits lie close to those of all 1,797.
    assert!((number("mean") - 4.884).abs() < 0.05, "{input}");
    assert!((number("deviation") - 6.017).abs() < 0.05, "{input}");
    assert_eq!((&input["kind"], &input["height"]), (&json!("image"), &json!(8)));
    assert_eq!(mlp("labels").as_array().unwrap().len(), 10);
    let data = mlp("data");
    assert_eq!((&data["train"], &data["held_out"]), (&json!(1438), &json!(359)));
    let indices = data["held_out_indices"].as_array().unwrap();
    assert_eq!(indices.len(), 359);
    assert!(indices.is_sorted_by_key(|index| index.as_u64()) && indices[358].as_u64() < Some(1797));
    assert_eq!(mlp("vocabulary"), Value::Null);
    let cnn = told(ModelKind::Cnn, &DataConfig::default());
    assert_eq!(cnn("model")["channels"], json!([16, 32]));
    assert_eq!(cnn("input"), input);
}

#[test]
fn text_tells_its_vocabulary_where_that_is_characters() {
    let folder = tempfile::tempdir().unwrap();
    let open = |text: &str| {
        let path = folder.path().join("text");
        std::fs::write(&path, text).unwrap();
        let data = DataConfig { kind: DataKind::Text, path: Some(path), ..DataConfig::default() };
        told(ModelKind::Gpt, &data)
    };
    let few = open(&"h\u{e4}\"\n".repeat(100));
    let vocabulary = few("vocabulary");
    assert_eq!(vocabulary["characters"], json!("\n\"h\u{e4}"), "in the order of code points");
    assert_eq!((&vocabulary["kind"], &vocabulary["size"]), (&json!("characters"), &json!(4)));
    let hash = blake3::hash("\n\"h\u{e4}".as_bytes()).to_hex();
    assert_eq!(vocabulary["blake3"], json!(hash.as_str()));
    let model = few("model");
    assert_eq!((&model["vocabulary"], &model["norm_epsilon"]), (&json!(4), &json!(1e-5)));
    let data = few("data");
    assert_eq!((&data["train"], &data["held_out"]), (&json!(360), &json!(40)));
    let many: String = ('\u{4e00}'..'\u{4f10}').collect();
    assert_eq!(open(&many)("vocabulary"), json!({ "kind": "bytes", "size": 256 }));
}
