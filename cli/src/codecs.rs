//! Specs of the command line, whose errors point at the offending word, and the codecs that they mean.

use crate::failure::{Failure, Result, fail};
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{HeadId, Role};
use octaplex::{Backend, CacheConfig, CodecSpec, Error, LayerConfig};

/// Default codecs of `compare --all` and `bench`.
pub(crate) const ALL_CODECS: &str = "f16; \
    trellis:bits=2; trellis:bits=3; trellis:bits=4; trellis:bits=5; graded:bits=2; graded:bits=3; graded:bits=4; \
    turboquant:bits=2; turboquant:bits=3; turboquant:bits=4; turboquant:bits=6; turboquant:bits=8; \
    turboquant-qjl:bits=4; qjl; octopus; octopus:split=even; octopus-qjl; polarquant:bits=3; polarquant:bits=4; \
    hqmq:s=24,r=3; hqmq:secondary=optimised; hqmq:r=6,med=3; tq3_0; tq3_0:variant=3bit; \
    int:bits=3; int:bits=4; int:asymmetric=true; int:bits=4,group=32; int:bits=4,rotate=true; int8; \
    q8_0; q5_0; q4_0; q4_0:rotate=keys; q4_0:rotate=values; iq4_nl; fp8; fp8:scale=token";

/// Ten rows of that table for keys: codecs of other engines, and those that this library recommends.
const KEY_CODECS: &str = "f16; q8_0; fp8; q4_0; int:bits=4; turboquant:bits=4; trellis:bits=3; \
    graded:bits=2; graded:bits=3; graded:bits=4";

/// The same for keys of a width without grades.
const KEY_CODECS_WITHOUT_GRADES: &str = "f16; q8_0; fp8; q4_0; int:bits=4; turboquant:bits=4; turboquant:bits=3; \
    trellis:bits=2; trellis:bits=3; trellis:bits=4";

/// The same for values, which have no grades.
const VALUE_CODECS: &str = KEY_CODECS_WITHOUT_GRADES;

/// Returns whether a row of the whole table is among the ten of this role.
pub(crate) fn is_recommended(role: Role, spec: &str, dim: usize) -> bool {
    let list = match role {
        Role::Values => VALUE_CODECS,
        Role::Keys if has_grades(dim) => KEY_CODECS,
        Role::Keys => KEY_CODECS_WITHOUT_GRADES,
    };
    list.split(';').any(|listed| listed.trim() == spec)
}

/// Returns whether `graded` supports keys of this width.
pub(crate) fn has_grades(dim: usize) -> bool {
    CodecSpec::Graded(Default::default()).block_bytes(dim) > 0
}

/// Returns the codecs that this library recommends for keys and values of this width, about 3.2 bits a value.
pub(crate) fn recommended(dim: usize) -> [&'static str; 2] {
    [if has_grades(dim) { "graded:bits=3" } else { "trellis:bits=3" }, "trellis:bits=3"]
}

/// Returns whether this is the codec that the library takes by default for keys or values of this width.
pub(crate) fn is_default(spec: CodecSpec, role: Role, dim: usize) -> bool {
    let default = LayerConfig::new(1, dim, 1000);
    spec == if role == Role::Keys { default.keys } else { default.values }
}

/// Returns whether a row of the whole table is for this role: an engine's rotation of keys is not for values, and grades
/// are not.
pub(crate) fn is_for(role: Role, spec: &str) -> bool {
    match role {
        Role::Keys => !spec.ends_with("rotate=values"),
        Role::Values => !spec.ends_with("rotate=keys") && !spec.starts_with("graded"),
    }
}

/// Codecs whose canonical text has other keys than `bits=`, as people write them.
const IN_BITS: [&str; 8] = [
    "trellis:bits=1",
    "trellis:bits=2",
    "trellis:bits=3",
    "trellis:bits=4",
    "trellis:bits=5",
    "graded:bits=2",
    "graded:bits=3",
    "graded:bits=4",
];

/// Returns the spec for people, who read `bits=`.
pub(crate) fn shown_spec(spec: CodecSpec) -> String {
    let text = spec.to_string();
    for shown in IN_BITS {
        let canonical = shown.parse().map(|spec: CodecSpec| spec.to_string()).unwrap_or_default();
        match text.strip_prefix(&canonical) {
            Some("") => return shown.into(),
            // Further keys, such as a seed.
            Some(rest) if rest.starts_with(',') => return format!("{shown}{rest}"),
            _ => {}
        }
    }
    text
}

/// A codec of some width.
pub(crate) type Codec = Box<dyn octaplex::codecs::Codec>;

/// Returns all names that a spec may begin with.
fn names() -> impl Iterator<Item = &'static str> {
    let aliases = CodecSpec::aliases().iter().map(|(alias, ..)| *alias);
    CodecSpec::all().iter().map(|codec| codec.name).chain(aliases)
}

/// Returns `did you mean NAME? ` with the name that is most like a misspelt one, or nothing if none is.
pub(crate) fn did_you_mean<'a>(misspelt: &str, names: impl Iterator<Item = &'a str>) -> String {
    // A comparison takes the product of both lengths, and an argument may have a megabyte.
    if misspelt.len() > 64 {
        return String::new();
    }
    let likeness = names.map(|name| (strsim::jaro_winkler(&misspelt.to_lowercase(), name), name));
    let nearest = likeness.max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest
        .filter(|(likeness, _)| *likeness > 0.8)
        .map_or(String::new(), |(_, name)| format!("did you mean {name}? "))
}

/// Parses a spec; the error names the word that is wrong and what is allowed there.
pub(crate) fn parse_spec(text: &str) -> Result<CodecSpec> {
    text.parse().map_err(|error| {
        let word = match error {
            Error::UnknownCodec { at, .. }
            | Error::UnknownKey { at, .. }
            | Error::Value { at, .. }
            | Error::Conflict { at, .. } => text.get(at..).unwrap_or(""),
            _ => "",
        };
        let word = word.split([',', ':']).next().unwrap_or(word);
        let name = word.split('=').next().unwrap_or(word);
        let meant = match error {
            Error::UnknownCodec { .. } => did_you_mean(name, names()),
            Error::UnknownKey { allowed, .. } => did_you_mean(name, allowed.iter().map(|key| key.name)),
            _ => String::new(),
        };
        match word {
            "" => Failure(format!("spec \"{text}\": {error}")),
            _ => Failure(format!("spec \"{text}\", at \"{word}\": {meant}{error}")),
        }
    })
}

/// Parses `SPEC;SPEC;…`. Returns each spec with its text.
pub(crate) fn parse_specs(text: &str) -> Result<Vec<(String, CodecSpec)>> {
    let given = text.split(';').map(str::trim).filter(|spec| !spec.is_empty());
    let parse = |spec: &str| parse_spec(spec).or_else(|failure| in_list(spec, failure));
    let specs = given.map(|spec| Ok((spec.to_owned(), parse(spec)?))).collect::<Result<Vec<_>>>()?;
    if specs.is_empty() {
        fail!("--codecs \"{text}\": no spec in it; give \"SPEC;SPEC\", for example \"trellis; int:bits=4\"");
    }
    Ok(specs)
}

/// Explains what is wrong with a spec of a list: if a codec follows a comma, the comma should be a semicolon.
pub(crate) fn in_list<T>(text: &str, failure: Failure) -> Result<T> {
    let is_name = |part: &str| {
        let name = part.split([':', '/']).next().unwrap_or(part).trim();
        names().any(|known| known == name)
    };
    if text.split(',').skip(1).any(is_name) {
        fail!(
            "\"{text}\": separate specs by ; (a comma separates the keys of one): {}",
            text.replace(',', ";")
        );
    }
    Err(failure)
}

/// Builds the codec of a spec, which the user wrote as `text`.
pub(crate) fn build(text: &str, spec: CodecSpec, dim: usize, backend: Backend) -> Result<Codec> {
    let built = |dim, backend| spec.build_dyn(dim, backend, HeadId::default());
    built(dim, backend).map_err(|error| match error {
        // Not all codecs support all widths. The supported ones are found by trying.
        Error::Width { .. } => {
            let widths = WIDTHS.iter().filter(|width| built(**width, Backend::SCALAR).is_ok());
            let widths: Vec<_> = widths.map(usize::to_string).collect();
            Failure(format!("{text} at width {dim}: its widths are {}", widths.join(", ")))
        }
        error => Failure(format!("{text} at width {dim}: {error}")),
    })
}

/// Bits a value.
pub(crate) fn parse_budget(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|bits| (0.5..=32.0).contains(bits)).ok_or("bits a value: 0.5 to 32".into())
}

/// Chooses codecs that take at most `bits` bits a value. The error names the least bits for the width.
pub(crate) fn for_bits(config: CacheConfig, bits: f64) -> Result<CacheConfig> {
    config.for_bits(bits).or_else(|error| too_few(config, bits, &error, |bits| config.for_bits(bits).is_ok()))
}

/// Fails with the least bits that suffice, to a tenth, or with the error itself if more bits do not help.
pub(crate) fn too_few<T>(
    config: CacheConfig,
    bits: f64,
    error: &Error,
    suffice: impl Fn(f64) -> bool,
) -> Result<T> {
    let tenths = (5..=320).map(|tenths| f64::from(tenths) / 10.0);
    match tenths.filter(|more| *more > bits).find(|more| suffice(*more)) {
        Some(least) => fail!(
            "{bits} bits a value are too few for the codecs at width {}: give at least {least}",
            config.each.key_dim
        ),
        None => fail!("{bits} bits a value: {error}"),
    }
}

/// Returns whether a codec stores floats. They are never centred or balanced, and need no further bytes.
pub(crate) fn is_float(spec: CodecSpec) -> bool {
    matches!(spec, CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_))
}

/// Returns the seed of a spec; 0 if nothing is random.
pub(crate) fn seed(spec: CodecSpec) -> u64 {
    let full = spec.full().to_string();
    let seed = full.split([':', ',']).find_map(|part| part.strip_prefix("seed="));
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn ten_rows_are_recommended_and_all_are_in_the_whole_table() {
        let all: Vec<&str> = ALL_CODECS.split(';').map(str::trim).collect();
        for (role, dim) in [(Role::Keys, 128), (Role::Keys, 96), (Role::Values, 128), (Role::Values, 96)] {
            let shown: Vec<_> = all.iter().filter(|spec| is_recommended(role, spec, dim)).collect();
            assert_eq!(shown.len(), 10, "{shown:?}");
            assert!(shown.iter().all(|spec| is_for(role, spec)), "{shown:?}");
            for spec in shown {
                build(spec, parse_spec(spec).unwrap(), dim, Backend::SCALAR).unwrap();
            }
        }
        for dim in [96, 128] {
            let [keys, values] = recommended(dim);
            for (role, text) in [(Role::Keys, keys), (Role::Values, values)] {
                assert!(is_recommended(role, text, dim) && is_default(parse_spec(text).unwrap(), role, dim));
            }
        }
    }

    #[test]
    fn people_read_bits_and_bytes_keep_their_canonical_names() {
        for (given, shown, canonical) in [
            ("trellis:bits=2", "trellis:bits=2", "trellis:m=2"),
            ("trellis:bits=4,seed=7", "trellis:bits=4,seed=7", "trellis:m=8,seed=7"),
            ("trellis:m=16", "trellis:bits=5", "trellis:m=16"),
            ("trellis:m=6", "trellis:m=6", "trellis:m=6"),
            ("trellis:bits=3", "trellis:bits=3", "trellis"),
            ("graded", "graded:bits=3", "graded"),
            ("graded:bits=2,seed=7", "graded:bits=2,seed=7", "graded:fine=4,coarse=1,seed=7"),
            ("int:bits=3", "int:bits=3", "int:bits=3"),
        ] {
            let spec = parse_spec(given).unwrap();
            assert_eq!((&*shown_spec(spec), &*spec.to_string()), (shown, canonical));
            assert_eq!(parse_spec(&shown_spec(spec)).unwrap(), spec);
        }
    }
}
