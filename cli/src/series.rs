//! The colour and mark of each codec, the same in all plots, and which of its points a curve joins.

/// Codecs that share a colour and a mark, in the order of the legends. A codec is in the first group that has its name.
pub(crate) const GROUPS: [&[&str]; 10] = [
    &["trellis", "graded"],
    &["turboquant"],
    &["octopus"],
    &["polarquant"],
    &["hqmq", "additive"],
    &["qjl", "turboquant-qjl", "octopus-qjl"],
    &["int", "int8"],
    &["q8_0", "q5_0", "q4_0", "iq4_nl"],
    &["tq3_0"],
    &["fp8", "f16", "bf16", "f32"],
];

/// Keys that choose a rate. Points that differ only in them are joined.
const RATES: [&str; 11] = ["bits", "levels", "m", "fine", "coarse", "states", "s", "r", "k", "bdir", "bnrm"];

/// Returns the codec of a spec, or of the keys of a pair.
fn name(spec: &str) -> &str {
    spec.split([':', '/']).next().unwrap_or_default()
}

/// Returns the number of a spec's group; other codecs have the last one.
pub(crate) fn group(spec: &str) -> usize {
    let found = GROUPS.iter().position(|names| names.contains(&name(spec)));
    found.unwrap_or(GROUPS.len() - 1)
}

/// Returns the curve of a spec: its codec and keys without the rate. ggml's integers of 4, 5 and 8 bits share a curve.
pub(crate) fn curve(spec: &str) -> String {
    let part = |spec: &str| {
        let (name, keys) = spec.split_once(':').unwrap_or((spec, ""));
        let name = if ["q8_0", "q5_0", "q4_0"].contains(&name) { "q" } else { name };
        let keys = keys.split(',').filter(|key| !RATES.contains(&key.split('=').next().unwrap_or_default()));
        format!("{name}:{}", keys.collect::<Vec<_>>().join(","))
    };
    spec.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Returns the groups of these specs, each with the names of its codecs among them.
pub(crate) fn legend<'a>(specs: impl Iterator<Item = &'a str> + Clone) -> Vec<(usize, String)> {
    let mut legend = Vec::new();
    for (number, names) in GROUPS.iter().enumerate() {
        let has = |wanted: &str| specs.clone().any(|spec| name(spec) == wanted);
        let mut shown: Vec<&str> = names.iter().copied().filter(|name| has(name)).collect();
        if number + 1 == GROUPS.len() {
            let others = specs.clone().filter(|spec| !GROUPS.iter().any(|names| names.contains(&name(spec))));
            others.map(name).for_each(|name| {
                if !shown.contains(&name) {
                    shown.push(name);
                }
            });
        }
        if !shown.is_empty() {
            legend.push((number, shown.join(", ")));
        }
    }
    legend
}

#[cfg(test)]
mod tests {
    use super::*;
    use octaplex::CodecSpec;

    #[test]
    fn groups_name_codecs_and_none_twice() {
        let aliases = CodecSpec::aliases().iter().map(|(name, ..)| *name);
        let known: Vec<_> = CodecSpec::all().iter().map(|codec| codec.name).chain(aliases).collect();
        let mut named = GROUPS.concat();
        assert!(named.iter().all(|name| known.contains(name)), "{named:?}");
        named.sort_unstable();
        assert!(named.windows(2).all(|pair| pair[0] != pair[1]), "{named:?}");
        assert_eq!(group("a codec without a group"), GROUPS.len() - 1);
    }

    #[test]
    fn curves_join_rates_and_nothing_else() {
        for (a, b) in [
            ("trellis", "trellis:m=8"),
            ("turboquant:bits=2", "turboquant:levels=6"),
            ("int:group=32,bits=3", "int:group=32"),
            ("q8_0", "q4_0"),
            ("q4_0:rotate=keys/q4_0:rotate=values", "q8_0:rotate=keys/q8_0:rotate=values"),
            ("hqmq:s=24,r=3", "hqmq"),
            ("graded", "graded:fine=16,coarse=4"),
        ] {
            assert_eq!(curve(a), curve(b));
        }
        for (a, b) in [
            ("int", "int:group=32"),
            ("int", "int8"),
            ("octopus", "octopus:split=even"),
            ("turboquant", "turboquant:gain=norm"),
            ("q4_0", "q4_0:rotate=keys"),
            ("q4_0", "iq4_nl"),
            ("hqmq", "hqmq:r=6,med=3/hqmq"),
        ] {
            assert_ne!(curve(a), curve(b));
        }
    }

    #[test]
    fn legends_name_what_is_there() {
        let legend =
            legend(["q4_0:rotate=keys", "trellis:m=2", "q8_0", "foreign", "trellis/int"].into_iter());
        let expected = [(0, "trellis"), (7, "q8_0, q4_0"), (9, "foreign")];
        assert_eq!(legend, expected.map(|(group, names)| (group, names.to_owned())));
    }
}
