//! Specs as text: every key and value that a codec documents, and everything that it must refuse.
//!
//! The documented values of [`Key::values`] are read as a promise (`2..=8`, `0..2^64`, `false, true`), so a new codec is
//! tested here without a line.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::codecs::{AnyCodec, HeadId, Key};
use octaplex::{Backend, CodecSpec, Error};
use proptest::prelude::*;

/// Values that a key takes, by its own words: all, or samples of a long range.
fn values(key: &Key) -> Vec<String> {
    match key.values {
        "0..2^64" => [0, 1, 7, 1 << 32, u64::MAX].map(|x| x.to_string()).into(),
        range if range.contains("..=") => {
            let (low, high) = range.split_once("..=").unwrap();
            let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
            (low..=high).map(|x| x.to_string()).collect()
        }
        list => list.split(", ").map(str::to_owned).collect(),
    }
}

fn parse(text: &str) -> Result<CodecSpec, Error> {
    text.parse()
}

/// Pairs of keys that say the same thing in two ways.
const CONFLICTS: &[(&str, &str, &str)] = &[
    ("trellis", "bits", "m"),
    ("graded", "bits", "fine"),
    ("graded", "bits", "coarse"),
    ("turboquant", "bits", "levels"),
    ("octopus", "bits", "bdir"),
    ("octopus", "bits", "bnrm"),
    ("octopus", "split", "bdir"),
    ("octopus", "split", "bnrm"),
    ("octopus-qjl", "bits", "bdir"),
    ("octopus-qjl", "bits", "bnrm"),
    ("octopus-qjl", "split", "bdir"),
    ("octopus-qjl", "split", "bnrm"),
];

fn conflict(codec: &str, a: &str, b: &str) -> bool {
    CONFLICTS.iter().any(|&(name, x, y)| name == codec && ((a, b) == (x, y) || (a, b) == (y, x)))
}

fn check_round_trips(spec: CodecSpec) {
    let short = spec.to_string();
    assert_eq!(parse(&short), Ok(spec), "the short form {short}");
    let full = spec.full().to_string();
    assert_eq!(parse(&full), Ok(spec), "the full form {full}");
    assert!(full.len() >= short.len());
    // Shortest: no key can be left out.
    if let Some((name, keys)) = short.split_once(':') {
        let keys: Vec<&str> = keys.split(',').collect();
        for left_out in 0..keys.len() {
            let rest: Vec<&str> =
                keys.iter().enumerate().filter(|(i, _)| *i != left_out).map(|(_, key)| *key).collect();
            let shorter =
                if rest.is_empty() { name.to_owned() } else { format!("{name}:{}", rest.join(",")) };
            assert_ne!(parse(&shorter), Ok(spec), "{short} could be {shorter}");
        }
    }
}

#[test]
fn every_documented_value_parses_and_prints() {
    for codec in CodecSpec::all() {
        let default = parse(codec.name).unwrap();
        check_round_trips(default);
        assert_eq!(default.to_string(), codec.name);
        assert!(!codec.summary.is_empty());
        for key in codec.keys {
            let values = values(key);
            assert!(values.len() > 1, "{}: {key} leaves no choice", codec.name);
            let specs: Vec<CodecSpec> = values
                .iter()
                .map(|value| {
                    let text = format!("{}:{}={value}", codec.name, key.name);
                    let spec = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                    check_round_trips(spec);
                    spec
                })
                .collect();
            for (i, spec) in specs.iter().enumerate() {
                assert!(!specs[..i].contains(spec), "{}: two values of {key} mean the same", codec.name);
            }
        }
    }
}

#[test]
fn values_that_are_not_documented_are_refused_with_those_that_are() {
    for codec in CodecSpec::all() {
        for key in codec.keys {
            let allowed = values(key);
            let mut candidates: Vec<String> = (0..=300).map(|x| x.to_string()).collect();
            candidates.extend(
                [
                    "", " ", "x", "-1", "+3", "3.0", "0x3", "1e1", "true ", "True", "yes", "wht,", "=3",
                    "3=", "٣", "mse\0",
                ]
                .map(str::to_owned),
            );
            candidates.push(u64::MAX.to_string() + "0");
            candidates.push("18446744073709551616".to_owned());
            for candidate in candidates {
                let numeric = !candidate.is_empty() && candidate.bytes().all(|b| b.is_ascii_digit());
                let fits = numeric && key.values == "0..2^64" && candidate.parse::<u64>().is_ok();
                if allowed.contains(&candidate) || fits || candidate.contains(',') {
                    continue;
                }
                let text = format!("{}:{}={candidate}", codec.name, key.name);
                let error = parse(&text).expect_err(&text);
                let at = codec.name.len() + 1 + key.name.len() + 1;
                assert_eq!(error, Error::Value { at, key: key.name, allowed: key.values }, "{text}");
                let message = error.to_string();
                assert!(message.contains(key.name) && message.contains(key.values), "{text}: {message}");
            }
        }
    }
}

#[test]
fn keys_twice_or_in_conflict_are_refused() {
    for codec in CodecSpec::all() {
        for a in codec.keys {
            for b in codec.keys {
                let (x, y) = (&values(a)[1], &values(b)[1]);
                let text = format!("{}:{}={x},{}={y}", codec.name, a.name, b.name);
                let at = codec.name.len() + 1 + a.name.len() + 1 + x.len() + 1;
                if a.name == b.name || conflict(codec.name, a.name, b.name) {
                    let error = parse(&text).expect_err(&text);
                    assert_eq!(error, Error::Conflict { at, key: b.name, with: a.name }, "{text}");
                    assert!(error.to_string().contains(b.name), "{error}");
                } else {
                    check_round_trips(parse(&text).unwrap_or_else(|error| panic!("{text}: {error}")));
                }
            }
        }
    }
    assert_eq!(
        parse("turboquant:levels=5,seed=1,bits=4"),
        Err(Error::Conflict { at: 27, key: "bits", with: "levels" }),
        "not only neighbours"
    );
}

#[test]
fn unknown_keys_are_refused_with_those_that_are_known() {
    for codec in CodecSpec::all() {
        for wrong in ["bit", "bitss", "Bits", " bits", "seed ", "", "gian", "levels-", "ключ", "=", "4"] {
            let text = format!("{}:{wrong}=3", codec.name);
            let at = codec.name.len() + 1;
            let error = parse(&text).expect_err(&text);
            assert_eq!(error, Error::UnknownKey { at, codec: codec.name, allowed: codec.keys }, "{text}");
            let message = error.to_string();
            assert!(message.contains(codec.name), "{message}");
            for key in codec.keys {
                assert!(message.contains(key.name) && message.contains(key.values), "{message} lacks {key}");
            }
        }
        for text in ["{}:", "{}:,", "{}:seed=1,", "{}::", "{}:,seed=1"] {
            let text = text.replace("{}", codec.name);
            assert!(matches!(parse(&text), Err(Error::UnknownKey { .. })), "{text}: {:?}", parse(&text));
        }
    }
    assert_eq!(
        parse("turboquant:bits=3,sead=7"),
        Err(Error::UnknownKey { at: 18, codec: "turboquant", allowed: keys_of("turboquant") }),
        "the position is that of the wrong key"
    );
    assert!(
        matches!(parse("turboquant:bits"), Err(Error::Value { key: "bits", .. })),
        "a key without a value"
    );
}

fn keys_of(name: &str) -> &'static [Key] {
    CodecSpec::all().iter().find(|codec| codec.name == name).unwrap().keys
}

#[test]
fn unknown_codecs_are_refused_with_those_that_exist() {
    for wrong in [
        "",
        " ",
        ":",
        "turbo",
        "turboquant ",
        " turboquant",
        "TurboQuant",
        "turboquant;bits=3",
        "int4",
        "f-16",
    ] {
        let error = parse(wrong).expect_err(wrong);
        assert_eq!(error, Error::UnknownCodec { at: 0, allowed: CodecSpec::all() }, "{wrong:?}");
        for codec in CodecSpec::all() {
            assert!(error.to_string().contains(codec.name), "{error} lacks {}", codec.name);
        }
    }
}

/// Aliases are their codec's specs under another name: printed as such, and with its other keys.
#[test]
fn aliases_stand_for_what_they_say() {
    for (alias, codec, keys) in CodecSpec::aliases() {
        assert!(CodecSpec::all().iter().all(|codec| codec.name != *alias), "{alias} is a codec");
        assert_eq!(parse(alias), parse(&format!("{codec}:{keys}")));
        assert_eq!(parse(&format!("{alias}:seed=7")), parse(&format!("{codec}:{keys},seed=7")));
    }
    assert_eq!(parse("int8").unwrap().to_string(), "int:bits=8");
    assert_eq!(parse("int8:bits=4"), Err(Error::Conflict { at: 5, key: "bits", with: "bits" }));
    assert_eq!(parse("int8:group=32,x=1").unwrap_err(), {
        Error::UnknownKey { at: 14, codec: "int", allowed: keys_of("int") }
    });
    assert!(matches!(parse("int8:"), Err(Error::UnknownKey { at: 5, .. })));
}

#[test]
fn short_forms_as_documented() {
    for (given, short) in [
        ("turboquant:bits=4", "turboquant"),
        ("turboquant:seed=7,bits=3", "turboquant:bits=3,seed=7"),
        ("turboquant:levels=6,gain=mse,rounds=1,rotation=wht,seed=0", "turboquant:levels=6"),
        ("turboquant:bits=03", "turboquant:bits=3"),
        ("int:group=token,asymmetric=true", "int:asymmetric=true"),
        ("int:rotate=true,group=32,bits=2", "int:bits=2,group=32,rotate=true"),
        ("hqmq:packing=index,s=100", "hqmq:s=100"),
        ("hqmq:packing=index,s=48", "hqmq:s=48,packing=index"),
        ("additive:seed=0,r=4,k=016", "additive"),
        ("f16", "f16"),
    ] {
        assert_eq!(parse(given).unwrap().to_string(), short, "{given}");
    }
    assert_eq!(
        parse("turboquant").unwrap().full().to_string(),
        "turboquant:bits=4,gain=mse,rounds=1,rotation=wht,seed=0"
    );
    assert_eq!(
        parse("int").unwrap().full().to_string(),
        "int:bits=4,group=token,asymmetric=false,med=0,rotate=false,seed=0"
    );
}

#[test]
fn every_error_is_one_line_that_says_something() {
    let errors = [
        Error::NonFinite { index: 3 },
        Error::Overflow,
        Error::Weight { index: 5 },
        Error::Length { what: "scores", expected: 7, actual: 9 },
        Error::Width { actual: 100 },
        Error::Corrupt { block: 4 },
        Error::Conflict { at: 1, key: "bits", with: "levels" },
        Error::Unsupported { why: "because" },
    ];
    let words = ["3", "65520", "5", "expected 7, got 9", "100", "4", "levels", "because"];
    for (error, word) in errors.into_iter().zip(words) {
        let message = error.to_string();
        assert!(message.contains(word) && !message.contains('\n'), "{message}");
    }
    let widths = Error::Width { actual: 100 }.to_string();
    for width in octaplex::codebook::WIDTHS {
        assert!(widths.contains(&width.to_string()), "{widths} lacks {width}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any keys with any documented values, in any order.
    #[test]
    fn documented_specs_round_trip(
        codec in proptest::sample::select(CodecSpec::all()),
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        let mut chosen: Vec<(&str, String)> = Vec::new();
        for (key, value) in picks {
            if codec.keys.is_empty() {
                break;
            }
            let key = key.get(codec.keys);
            if !chosen.iter().any(|(name, _)| *name == key.name || conflict(codec.name, name, key.name)) {
                chosen.push((key.name, value.get(&values(key)).clone()));
            }
        }
        let keys: Vec<String> = chosen.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = if keys.is_empty() { codec.name.to_owned() } else { format!("{}:{}", codec.name, keys.join(",")) };
        check_round_trips(parse(&text).unwrap());
        // Order does not matter.
        let reversed: Vec<String> = keys.iter().rev().cloned().collect();
        if !keys.is_empty() {
            prop_assert_eq!(parse(&format!("{}:{}", codec.name, reversed.join(","))), parse(&text));
        }
    }

    /// Any text at all is parsed or refused; errors point into it.
    #[test]
    fn any_text_is_a_spec_or_an_error(text in "(turboquant|int|f32)?[:,=a-z0-9 é]{0,20}") {
        match parse(&text) {
            Ok(spec) => check_round_trips(spec),
            Err(
                Error::UnknownCodec { at, .. }
                | Error::UnknownKey { at, .. }
                | Error::Value { at, .. }
                | Error::Conflict { at, .. },
            ) => prop_assert!(text.is_char_boundary(at), "{:?}: at {}", text, at),
            Err(error) => prop_assert!(false, "{:?}: {}", text, error),
        }
    }
}

#[test]
fn bits_of_the_trellis_are_another_name_of_m() {
    for (bits, m) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16)] {
        let spec = parse(&format!("trellis:bits={bits},states=4")).unwrap();
        assert_eq!(Ok(spec), parse(&format!("trellis:m={m},states=4")));
        assert_eq!(spec, CodecSpec::Trellis(octaplex::codecs::TrellisSpec::new(m, 4)));
        assert_eq!(
            parse(&format!("trellis:bits={bits}")),
            Ok(octaplex::codecs::TrellisSpec::bits(bits).into())
        );
        assert!(!spec.full().to_string().contains("bits"));
    }
    assert_eq!(parse("trellis:bits=3").unwrap().to_string(), "trellis");
    assert!(matches!(parse("trellis:bits=3,m=4"), Err(Error::Conflict { .. })));
    assert!(matches!(parse("trellis:bits=6"), Err(Error::Value { key: "bits", .. })));
}

/// No codec takes a width that is too large for kernels, or that its blocks do not divide.
#[test]
fn widths_are_refused_by_every_codec() {
    for (codec, dim) in CodecSpec::all().iter().flat_map(|codec| [0, 66, 580].map(|dim| (codec, dim))) {
        let spec: CodecSpec = codec.name.parse().unwrap();
        let refused = AnyCodec::build(spec, dim, Backend::detect(), HeadId::default()).map(drop);
        assert_eq!(refused, Err(Error::Width { actual: dim }), "{}", codec.name);
    }
}
