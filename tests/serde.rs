//! Configurations as JSON and back.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::cache::Center;
use octaplex::{CacheConfig, CodecSpec, LayerConfig, Profile};

#[test]
fn a_spec_is_its_text() {
    for codec in CodecSpec::all() {
        for (text, _) in codec.samples {
            let spec: CodecSpec = text.parse().unwrap();
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(json, format!("\"{spec}\""));
            assert_eq!(serde_json::from_str::<CodecSpec>(&json).unwrap(), spec);
        }
    }
    let error = serde_json::from_str::<CodecSpec>("\"turboquant:bits=99\"").unwrap_err().to_string();
    assert!(error.contains("invalid value for bits"), "{error}");
    assert!(serde_json::from_str::<CodecSpec>("3").unwrap_err().to_string().contains("the spec of a codec"));
}

#[test]
fn a_profile_is_its_text() {
    let text = include_str!("../profiles/smollm2-135m.octaprofile");
    let profile: Profile = text.parse().unwrap();
    let json = serde_json::to_value(&profile).unwrap();
    assert_eq!(json, text);
    assert_eq!(serde_json::from_value::<Profile>(json).unwrap(), profile);
    let changed = serde_json::Value::from(text.replace("layers 30", "layers 29"));
    let error = serde_json::from_value::<Profile>(changed).unwrap_err().to_string();
    assert!(error.contains("\"layers\""), "{error}");
}

#[test]
fn configurations_come_back() {
    let each = LayerConfig::new(2, 64, 1000).keys("graded".parse().unwrap()).query_heads(8);
    let each = each.center(Center::Prefix).sliding_window(512);
    let config = CacheConfig::new(4, 2, 64, 1000).each(each).for_bits(3.0).unwrap().boundary_layers(1);
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<CacheConfig>(&json).unwrap(), config);
    let named = serde_json::to_value(each).unwrap();
    assert_eq!(
        (&named["keys"], &named["query_heads"], &named["center"]),
        (&"graded".into(), &8.into(), &"Prefix".into())
    );
    // Optional fields may be absent.
    let mut less = named.clone();
    less.as_object_mut().unwrap().remove("sliding_window");
    assert_eq!(serde_json::from_value::<LayerConfig>(less).unwrap().sliding_window, None);
    let mut bad = named;
    bad["capacity"] = (-1).into();
    assert!(serde_json::from_value::<LayerConfig>(bad).is_err());
}
