//! Specs of the command line, whose errors point at the offending word, and the codecs that they mean.

use crate::failure::{Failure, Result, fail};
use octaplex::codebook::WIDTHS;
use octaplex::codecs::{HeadId, Role};
use octaplex::{Backend, CacheConfig, CodecSpec, Error};

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

/// Returns whether a row of the whole table is for this role: an engine's rotation of keys is not for values, and grades
/// are not.
pub(crate) fn is_for(role: Role, spec: &str) -> bool {
    match role {
        Role::Keys => !spec.ends_with("rotate=values"),
        Role::Values => !spec.ends_with("rotate=keys") && !spec.starts_with("graded"),
    }
}

/// Returns the spec for people: `bits=` in the place of a trellis' `m=`, which its canonical text has.
pub(crate) fn shown_spec(spec: CodecSpec) -> String {
    let text = spec.to_string();
    let Some(keys) = text.strip_prefix("trellis:m=") else { return text };
    let (m, rest) = keys.split_at(keys.find(',').unwrap_or(keys.len()));
    let bits = [("1", 1), ("2", 2), ("4", 3), ("8", 4), ("16", 5)];
    match bits.into_iter().find(|(of, _)| *of == m) {
        Some((_, bits)) => format!("trellis:bits={bits}{rest}"),
        None => text,
    }
}

/// A codec of some width.
pub(crate) type Codec = Box<dyn octaplex::codecs::Codec>;

/// Returns all names that a spec may begin with.
fn names() -> impl Iterator<Item = &'static str> {
    let aliases = CodecSpec::aliases().iter().map(|(alias, ..)| *alias);
    CodecSpec::all().iter().map(|codec| codec.name).chain(aliases)
}

/// Returns the name that is most like a misspelt one.
pub(crate) fn nearest<'a>(misspelt: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Text that is longer than any name is not compared: the time grows with its square.
    let misspelt = misspelt.get(..misspelt.len().min(64))?.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&misspelt, name);
    names.filter(|name| likeness(name) > 0.8).max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
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
            Error::UnknownCodec { .. } => nearest(name, names()),
            Error::UnknownKey { allowed, .. } => nearest(name, allowed.iter().map(|key| key.name)),
            _ => None,
        };
        let meant = meant.map_or(String::new(), |name| format!("did you mean {name}? "));
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
            "--budget {bits}: too few bits a value for the codecs at width {}: give at least {least}",
            config.each.key_dim
        ),
        None => fail!("--budget {bits}: {error}"),
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
            assert!(is_recommended(Role::Keys, keys, dim) && is_recommended(Role::Values, values, dim));
        }
    }

    #[test]
    fn people_read_bits_and_bytes_keep_their_canonical_names() {
        for (given, shown, canonical) in [
            ("trellis:bits=2", "trellis:bits=2", "trellis:m=2"),
            ("trellis:bits=4,seed=7", "trellis:bits=4,seed=7", "trellis:m=8,seed=7"),
            ("trellis:m=16", "trellis:bits=5", "trellis:m=16"),
            ("trellis:m=6", "trellis:m=6", "trellis:m=6"),
            ("trellis:bits=3", "trellis", "trellis"),
            ("int:bits=3", "int:bits=3", "int:bits=3"),
        ] {
            let spec = parse_spec(given).unwrap();
            assert_eq!((&*shown_spec(spec), &*spec.to_string()), (shown, canonical));
            assert_eq!(parse_spec(&shown_spec(spec)).unwrap(), spec);
        }
    }
}
