//! Profiles of models: their text, and the codecs that they choose.
#![cfg(feature = "alloc")]

use octaplex::codecs::Role;
use octaplex::profile::{Calibration, Case};
use octaplex::{Backend, CacheConfig, CodecSpec, Error, ErrorKind, KvCache, LayerConfig, Profile};
use proptest::prelude::*;

fn specs(texts: &[(&str, f64)]) -> Vec<(CodecSpec, f64)> {
    texts.iter().map(|(text, factor)| (text.parse().unwrap(), *factor)).collect()
}

const KEYS: &[(&str, f64)] = &[
    ("trellis:m=1", 11.5),
    ("graded:bits=2", 1.0),
    ("trellis:m=2", 1.5), // larger than nothing better: never chosen
    ("graded", 0.24),
    ("graded:bits=4", 0.06),
];
const VALUES: &[(&str, f64)] =
    &[("trellis:m=1", 4.0), ("trellis:m=2", 1.0), ("trellis", 0.26), ("trellis:m=8", 0.07)];

fn profile(layers: &[[f64; 2]]) -> Profile {
    let shape = LayerConfig::new(2, 64, 0);
    Profile::new("a model", &shape, &specs(KEYS), &specs(VALUES), layers).unwrap()
}

/// Layers that differ as a model's do: by two hundred.
fn uneven(layers: usize) -> Profile {
    let layer = |i: usize| [0.0001 * (1 + i * i * 37 % 200) as f64, 0.0001 * (1 + i * 53 % 90) as f64];
    profile(&(0..layers).map(layer).collect::<Vec<_>>())
}

fn config(layers: usize) -> CacheConfig {
    CacheConfig::new(layers, 2, 64, 4096)
}

fn bits(layers: &[LayerConfig]) -> f64 {
    layers.iter().map(LayerConfig::page_bits).sum::<f64>() / layers.len() as f64
}

const TEXT: &str = "\
octaplex-profile 1
model a model
layers 2
kv_heads 2
key_dim 64
value_dim 64
# codecs and their factors: the divergence beside that of the codec with factor 1
keys trellis:m=1 11.5
keys graded:fine=4,coarse=1 1
keys trellis:m=2 1.5
keys graded 0.24
keys graded:fine=16,coarse=4 0.06
values trellis:m=1 4
values trellis:m=2 1
values trellis 0.26
values trellis:m=8 0.07
# layers, the sensitivities of their keys and of their values, in nats
layer 0 0.000123456 12.5
layer 1 0 0.00000001
digest ";

fn text() -> String {
    profile(&[[0.000_123_456, 12.5], [0.0, 1e-8]]).to_string()
}

#[test]
fn a_person_can_read_it() {
    let text = text();
    let digest = text.strip_prefix(TEXT).unwrap_or_else(|| panic!("{text}"));
    assert!(digest.len() == 9 && digest.ends_with('\n'), "{digest}");
    let read: Profile = text.parse().unwrap();
    assert_eq!(
        (read.model(), read.layers(), read.kv_heads(), read.key_dim(), read.value_dim()),
        ("a model", 2, 2, 64, 64)
    );
    assert_eq!(read.sensitivities().collect::<Vec<_>>(), [[0.000_123_456, 12.5], [0.0, 1e-8]]);
    assert_eq!(read.to_string(), text);
    // Another system's ends of lines, comments and spaces change nothing.
    let other =
        format!("# mine\r\n\r\n{}", text.replace('\n', " \r\n").replace("layer 1 0 ", "layer  1   0  "));
    assert_eq!(other.parse(), Ok(read));
}

fn refused(text: &str) -> (usize, String) {
    let error = text.parse::<Profile>().unwrap_err();
    let Error::Profile { line, .. } = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().starts_with(&format!("profile, line {line}: ")), "{error}");
    (line, error.to_string())
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let text = text();
    for (from, to, line, why) in [
        ("octaplex-profile 1", "octaplex-profile 2", 1, "another version"),
        ("octaplex-profile 1", "octoplex", 1, "no profile"),
        ("layers 2", "layers 0", 3, "\"layers\""),
        ("layers 2", "layers 65537", 3, "\"layers\""),
        ("layers 2", "layers 1", 19, "more layers"),
        ("layers 2", "layers 3", 20, "\"layer\""),
        ("kv_heads 2", "kv_heads -2", 4, "\"kv_heads\""),
        ("key_dim 64", "key_dim 63", 9, "width"),
        ("key_dim 64", "key_dim 32", 9, "width"),
        ("graded 0.24", "graded inf", 11, "a number"),
        ("graded 0.24", "graded NaN", 11, "a number"),
        ("graded 0.24", "graded 1e-3", 11, "a number"),
        ("graded 0.24", "graded 10000", 11, "a number"),
        ("graded 0.24", "graded 0.2400000000", 11, "a number"),
        ("graded 0.24", "graded", 11, "its factor"),
        ("graded 0.24", "granded 0.24", 11, "no such codec"),
        ("graded 0.24", "graded:bits=9 0.24", 11, "no such codec"),
        ("graded 0.24", "hqmq:med=3 0.24", 11, "outliers"),
        ("graded 0.24", "graded 0.25", 20, "changed"),
        ("layer 0 ", "layer 1 ", 18, "\"layer\""),
        ("layer 1 0 ", "layer 1 ", 19, "\"layer\""),
        ("layer 1 0 ", "layer 1 0 0 ", 19, "\"layer\""),
        ("layer 1 0 ", "layer 1 1 ", 20, "changed"),
        ("a model", "another", 20, "changed"),
        ("a model", "a\tmodel", 20, "control characters"),
    ] {
        assert!(text.contains(from), "{from}");
        let (at, said) = refused(&text.replacen(from, to, 1));
        assert!(at == line && said.contains(why), "{from} -> {to}: {said}");
    }
    let (_, said) = refused(&format!("{text}layer 2 0 0\n"));
    assert!(said.contains("follows"), "{said}");
    // Eight digits, and nothing else that parses as their number.
    for digest in ["digest 0", "digest +"] {
        let (line, said) = refused(&text.replacen("digest ", digest, 1));
        assert!(line == 20 && said.contains("digest"), "{digest}: {said}");
    }
}

#[test]
fn a_truncated_file_is_noticed() {
    let text = text();
    for end in 0..text.len() - 1 {
        if text.is_char_boundary(end) {
            refused(&text[..end]);
        }
    }
    let half = text.split_inclusive('\n').take(12).collect::<String>();
    assert!(refused(&half).1.contains("truncated"));
}

#[test]
fn numbers_that_no_profile_has() {
    let shape = LayerConfig::new(2, 64, 0);
    let (keys, values) = (specs(KEYS), specs(VALUES));
    let new = |layers: &[[f64; 2]]| Profile::new("", &shape, &keys, &values, layers).map(drop);
    assert_eq!(new(&[[0.0, 1.0]]), Ok(()));
    for wrong in [f64::NAN, f64::INFINITY, -1e-9, 10_000.0, 9_999.999_999_999_9] {
        assert!(matches!(new(&[[1.0, wrong]]), Err(Error::Profile { line: 0, .. })), "{wrong}");
    }
    assert!(new(&[]).is_err());
    let of = |shape: &LayerConfig, keys: &[_]| Profile::new("", shape, keys, &values, &[[1.0; 2]]).map(drop);
    assert!(of(&shape, &[]).is_err());
    assert!(of(&LayerConfig::new(2, 96, 0), &keys).is_err(), "96 has no grades");
    assert!(of(&LayerConfig::new(0, 64, 0), &keys).is_err());
}

/// The least expected divergence within the bits, by looking at all rates: a dynamic programme over bytes.
fn best(profile: &Profile, config: &CacheConfig, bits: f64) -> f64 {
    let f16 = CacheConfig::new(config.layers, 2, 64, 4096);
    let bytes = |keys: &str, values: &str| {
        let each = f16.each.keys(keys.parse().unwrap()).values(values.parse().unwrap());
        (each.page_bits() * 2.0 * 64.0 * 128.0 / 8.0).round() as usize
    };
    let least = bytes("trellis:m=1", "trellis:m=1");
    let total = (bits * 2.0 * 64.0 * 128.0 * config.layers as f64 / 8.0) as usize - least * config.layers;
    let mut best = vec![0.0; total + 1];
    for [of_keys, of_values] in profile.sensitivities() {
        for (sensitivity, curve, is_keys) in [(of_keys, KEYS, true), (of_values, VALUES, false)] {
            let choices: Vec<_> = curve
                .iter()
                .map(|(spec, factor)| {
                    let whole = if is_keys { bytes(spec, "trellis:m=1") } else { bytes("trellis:m=1", spec) };
                    (whole - least, sensitivity * factor)
                })
                .collect();
            let at = |left: usize| {
                let fits = choices.iter().filter(|(bytes, _)| *bytes <= left);
                fits.map(|(bytes, error)| best[left - bytes] + error).fold(f64::INFINITY, f64::min)
            };
            best = (0..=total).map(at).collect();
        }
    }
    best[total]
}

#[test]
fn it_is_as_good_as_an_exhaustive_search() {
    let (profile, config) = (uneven(24), config(24));
    let mut before = f64::INFINITY;
    for bits_asked in [1.3, 1.7, 2.2, 2.7, 3.2, 3.9] {
        let layers = profile.solve(&config, bits_asked).unwrap();
        assert!(
            bits(&layers) <= bits_asked && bits(&layers) > bits_asked - 0.03,
            "{bits_asked}: {}",
            bits(&layers)
        );
        let found = profile.divergence(&layers).unwrap();
        let best = best(&profile, &config, bits_asked);
        assert!(found < 1.02 * best && found > 0.999 * best, "{bits_asked}: {found}, {best}");
        assert!(found < before);
        before = found;
    }
}

#[test]
fn it_beats_one_rate_for_all() {
    let (profile, config) = (uneven(24), config(24));
    let same = config.for_bits(2.2).unwrap();
    let same = profile.divergence(&same.layers().collect::<Vec<_>>()).unwrap();
    let own = profile.divergence(&profile.solve(&config, 2.2).unwrap()).unwrap();
    assert!(own < 0.8 * same, "{own}, {same}");
    let sensitivities: Vec<_> = profile.sensitivities().collect();
    let layers = profile.solve(&config, 2.2).unwrap();
    for (a, b) in (0..24).flat_map(|a| (0..24).map(move |b| (a, b))) {
        // A layer with a larger sensitivity gets at least as many bits. The factor 3 allows for a last step that did not
        // fit.
        let bits = |layer: usize| layers[layer].values.bits_per_value(64);
        assert!(bits(a) <= bits(b) || sensitivities[a][1] * 3.0 > sensitivities[b][1], "{a}, {b}");
    }
}

#[test]
fn a_calibration_says_what_to_measure_and_sets_the_sum_right() {
    let calibration = Calibration::new(3, &LayerConfig::new(2, 64, 0)).unwrap();
    let cases: Vec<_> = calibration.cases().collect();
    let of = |role| cases.iter().filter(move |case| case.role == role);
    assert_eq!((of(Role::Keys).count(), of(Role::Values).count()), (9 + 3, 8 + 3));
    let alone: Vec<_> =
        cases.iter().filter_map(|case| Some((case.role, case.codec.to_string(), case.layer?))).collect();
    let reference = |role, codec: &str| (0..3).map(move |layer| (role, codec.to_string(), layer)).collect();
    let expected: [Vec<_>; 2] =
        [reference(Role::Keys, "graded:fine=4,coarse=1"), reference(Role::Values, "trellis:m=2")];
    assert_eq!(alone, expected.concat());

    // A codec's divergence halves with each bit. Layers alone lose 0.01, 0.02 and 0.03, and together half their sum.
    let measured = |case: &Case| match case.layer {
        Some(layer) => 0.01 * (layer + 1) as f64,
        None => 0.03 * 2f64.powf(2.0 - case.codec.bits_per_value(64)),
    };
    let reference =
        measured(cases.iter().find(|case| case.codec.to_string() == "graded:fine=4,coarse=1").unwrap());
    let found = calibration.profile("tiny", &cases.iter().map(measured).collect::<Vec<_>>()).unwrap();
    let sensitivities: Vec<_> = found.sensitivities().collect();
    for (layer, [keys, _]) in sensitivities.iter().enumerate() {
        assert!((keys - reference * (layer + 1) as f64 / 6.0).abs() < 2e-9, "{sensitivities:?}");
    }
    let all = |codec: &str| {
        let layer = LayerConfig::new(2, 64, 0)
            .keys(codec.parse().unwrap())
            .values(CodecSpec::F16(Default::default()));
        found.divergence(&[layer; 3]).unwrap()
    };
    let case = cases.iter().find(|case| case.codec.to_string() == "graded").unwrap();
    assert!((all("graded") - measured(case)).abs() < 1e-7, "{}", all("graded"));

    // Nothing lost is no division by zero.
    let nothing = calibration.profile("", &vec![0.0; cases.len()]).unwrap();
    assert!(nothing.sensitivities().all(|layer| layer == [0.0; 2]));
    assert!(nothing.solve(&config(3), 2.2).is_ok());
}

#[test]
fn a_calibration_refuses_what_no_profile_has() {
    let new = |layers, heads, dim| Calibration::new(layers, &LayerConfig::new(heads, dim, 0));
    let keys = |dim| new(2, 2, dim).unwrap().cases().next().unwrap().codec.to_string();
    assert_eq!((keys(64), keys(96)), ("trellis:m=1".into(), "trellis:m=1".into()));
    let graded =
        new(2, 2, 96).unwrap().cases().filter(|case| case.codec.to_string().contains("graded")).count();
    assert_eq!(graded, 0, "96 has no grades");
    for (layers, heads, dim) in [(0, 2, 64), (usize::MAX, 2, 64), (2, 0, 64), (2, 2, 63)] {
        assert!(
            matches!(new(layers, heads, dim), Err(Error::Profile { line: 0, .. })),
            "{layers}, {heads}, {dim}"
        );
    }
    let calibration = new(2, 2, 64).unwrap();
    let few = calibration.profile("", &[0.0]);
    assert_eq!(few, Err(Error::Length { what: "divergences", expected: 9 + 8 + 4, actual: 1 }));
    assert!(calibration.profile("", &[f64::NAN; 9 + 8 + 4]).is_err());
}

#[test]
fn too_few_bits_and_too_many() {
    let (profile, config) = (uneven(4), config(4));
    for bits in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1.0] {
        let error = profile.solve(&config, bits).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    let all = profile.solve(&config, 32.0).unwrap();
    assert!(all.iter().all(|layer| layer.keys.to_string() == "graded:fine=16,coarse=4"));
    assert!(bits(&all) < 4.3);
}

#[test]
fn boundary_layers_stay_f16() {
    let config = config(6).boundary_layers(1);
    let layers = uneven(6).solve(&config, 7.0).unwrap();
    let exact: Vec<_> = layers.iter().map(|layer| layer.keys.to_string() == "f16").collect();
    assert_eq!(exact, [true, false, false, false, false, true]);
    assert!(bits(&layers) <= 7.0);
    assert!(uneven(6).divergence(&layers).is_some());
    assert!(uneven(6).solve(&config, 6.0).is_err(), "two layers of six take 5.3 bits");
    assert!(uneven(2).solve(&self::config(2).boundary_layers(9), 16.1).is_ok());
}

#[test]
fn a_profile_of_another_model_is_refused_before_anything_is_allocated() {
    let profile = uneven(3);
    let build = |layers, heads, dim, tokens| {
        KvCache::builder(layers, heads, dim, tokens).profile(&profile).bits(2.2).build()
    };
    assert!(build(3, 2, 64, 1000).is_ok());
    let huge = 1 << 40; // a machine has no memory for a cache of such tokens, and is not asked
    for ((layers, heads, dim), what) in
        [((4, 2, 64), "layers"), ((3, 4, 64), "key/value heads"), ((3, 2, 128), "values in a key")]
    {
        let error = build(layers, heads, dim, huge).unwrap_err();
        assert!(matches!(error, Error::ProfileShape { what: found, .. } if found == what), "{error}");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with("the profile is for another model: it has "), "{error}");
    }
    let wide = KvCache::builder(3, 2, 64, 1000).value_dim(128).profile(&profile).bits(2.2).build();
    assert!(matches!(
        wide,
        Err(Error::ProfileShape { what: "values in a value vector", profile: 64, cache: 128 })
    ));
}

#[test]
fn a_builder_takes_a_profile() {
    let profile = uneven(5);
    let cache = KvCache::builder(5, 2, 64, 1000).profile(&profile).bits(2.2).build().unwrap();
    let found: Vec<_> = cache.layers().iter().map(|layer| *layer.config()).collect();
    let asked = profile.solve(&config(5).each(LayerConfig::new(2, 64, 1000)), 2.2).unwrap();
    assert_eq!(found, asked);
    let neither = KvCache::builder(5, 2, 64, 1000).profile(&profile).build().unwrap_err();
    assert!(neither.to_string().contains("set bits"), "{neither}");
    let both = KvCache::builder(5, 2, 64, 1000).profile(&profile).keys("trellis").build().unwrap_err();
    assert!(both.to_string().contains("not both"), "{both}");
}

/// Tokens go in and come out.
#[test]
fn a_cache_with_a_profile_works() {
    let mut cache = KvCache::builder(5, 2, 64, 1000)
        .profile(&uneven(5))
        .bits(2.7)
        .backend(Backend::detect())
        .build()
        .unwrap();
    let rows: Vec<f32> = (0..2 * 400 * 64).map(|i| ((i * 7919 % 1009) as f32 / 1009.0) - 0.5).collect();
    let mut output = vec![0.0; 4 * 64];
    for layer in 0..5 {
        cache.append(layer, &rows, &rows).unwrap();
        cache.attend(layer, &rows[..4 * 64], &mut output).unwrap();
        assert!(output.iter().all(|x| x.is_finite() && x.abs() < 0.2));
    }
    let mut again = KvCache::builder(5, 2, 64, 1000).profile(&uneven(5)).bits(2.7).build().unwrap();
    again.append(0, &rows, &rows).unwrap();
    assert_eq!(again.layers()[0].stats().bytes, cache.layers()[0].stats().bytes);
}

/// The committed profiles, and the codecs that follow from them on every machine.
#[test]
fn the_examples() {
    for (text, layers, heads, spare) in EXAMPLES {
        let profile: Profile = text.parse().unwrap();
        assert_eq!(profile.to_string(), *text);
        assert_eq!((profile.layers(), profile.kv_heads()), (*layers, *heads));
        let config = CacheConfig::new(*layers, *heads, profile.key_dim(), 4096);
        for asked in [1.5, 2.2, 2.7, 3.2, 4.0, 6.0] {
            let found = profile.solve(&config, asked).unwrap();
            assert!(bits(&found) <= asked && bits(&found) > asked - spare, "{asked}: {}", bits(&found));
        }
        let uniform = config.for_bits(2.2).unwrap().layers().collect::<Vec<_>>();
        let (own, same) = (profile.solve(&config, 2.2).unwrap(), profile.divergence(&uniform).unwrap());
        assert!(profile.divergence(&own).unwrap() < 0.95 * same);
    }
}

/// Texts, layers, key/value heads, and the bits that may be left over: fewer than one layer's step.
const EXAMPLES: &[(&str, usize, usize, f64)] = &[
    (include_str!("../profiles/smollm2-135m.octaprofile"), 30, 3, 0.02),
    (include_str!("../profiles/qwen2.5-coder-0.5b.octaprofile"), 24, 2, 0.02),
    (include_str!("../profiles/qwen2.5-coder-1.5b.octaprofile"), 28, 2, 0.03),
];

proptest! {
    /// Any profile is its text, and any bits give codecs within them or an error.
    #[test]
    fn any_profile(
        layers in prop::collection::vec(prop::array::uniform2(0.0f64..9999.0), 1..40),
        asked in 0.5f64..20.0,
    ) {
        let profile = profile(&layers);
        prop_assert_eq!(&profile.to_string().parse::<Profile>().unwrap(), &profile);
        match profile.solve(&config(layers.len()), asked) {
            Ok(found) => prop_assert!(bits(&found) <= asked + 1e-9),
            Err(_) => prop_assert!(asked < 1.3),
        }
    }

    /// One byte or line that differs is an error, or changes nothing.
    #[test]
    fn any_damage(at in 0usize..600, byte in any::<u8>(), cut in any::<bool>()) {
        let (text, whole) = (text(), text().parse::<Profile>().unwrap());
        let mut bytes = text.into_bytes();
        let at = at % bytes.len();
        if cut { bytes.remove(at); } else { bytes[at] = byte; }
        if let Ok(text) = std::str::from_utf8(&bytes) && let Ok(read) = text.parse::<Profile>() {
            prop_assert_eq!(read, whole);
        }
    }

    /// Any text at all.
    #[test]
    fn any_text(text in "(octaplex-profile 1\n)?(model \\PC*\n)?(layers [0-9]{0,6}\n)?([a-z_]{0,9} [a-z:=0-9.]{0,12} [0-9.]{0,12}\n){0,9}") {
        if let Ok(profile) = text.parse::<Profile>() {
            prop_assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
        }
    }
}
