//! Compares every rate in a table of the documentation with the size of blocks. A test that fails prints the right figure.
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::cache::Center;
use octaplex::codecs::Role;
use octaplex::{CacheConfig, CodecSpec, LayerConfig};

const README: &str = include_str!("../README.md");
const CHOOSING: &str = include_str!("../docs/choosing.md");
const CODECS: &str = include_str!("../docs/codecs.md");
const LLAMA_KL: &str = include_str!("../docs/plots/llama-cpp-kl.csv");
const HEADS: &str = include_str!("../docs/plots/heads.csv");
const ACCURACY: &str = include_str!("../docs/accuracy.md");
const SAMPLE: &str = include_str!("../docs/plots/sample.txt");
const FORMATS: &str = include_str!("../docs/formats.md");

/// Returns the bytes of a page: the difference that one more makes to a cache's required bytes.
fn page_bytes(keys: &str, values: &str, (heads, dim): (usize, usize), center: Center) -> usize {
    let config = |capacity| {
        let config = LayerConfig::new(heads, dim, capacity).keys(spec(keys)).values(spec(values));
        config.center(center).required_bytes()
    };
    config(1064) - config(1000)
}

/// Bits that a key or a value of the bundled sample (384 tokens of width 128) takes in pages of its own: six of them, a
/// balance, and a prefix centre where centres are coded.
fn cached(codec: &str, role: Role) -> f64 {
    if codec == "f16" {
        return 16.0;
    }
    let (keys, values) = if role == Role::Keys { (codec, "f16") } else { ("f16", codec) };
    let page = |center| page_bytes(keys, values, (1, 128), center);
    let centre = page(Center::Page) - page(Center::Off);
    let once = match centre {
        0 => 0,
        256 => 2 * 128,
        _ => 2 * 2 * 128,
    };
    8.0 * (6 * (page(Center::Page) - 2 * 64 * 128) + once) as f64 / (384.0 * 128.0)
}

/// Key/value heads and their width: SmolLM2-135M, Qwen2.5-0.5B, Qwen2.5-1.5B.
const MODELS: [(usize, usize); 3] = [(3, 64), (2, 64), (2, 128)];

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn bits(text: &str, dim: usize) -> f64 {
    spec(text).bits_per_value(dim)
}

/// Outliers come on top: as many as the data have.
fn has_outliers(text: &str) -> bool {
    text.contains("med=")
}

/// Returns whether `stated` is `exact`, rounded to the digits of `stated`.
fn is_rounded(stated: &str, exact: f64) -> bool {
    let digits = stated.split_once('.').map_or(0, |(_, digits)| digits.len());
    let unit = 0.1f64.powi(digits as i32);
    (stated.parse::<f64>().unwrap() - exact).abs() <= 0.5 * unit + 1e-9
}

#[track_caller]
fn check(file: &str, what: &str, stated: &str, exact: f64) {
    assert!(is_rounded(stated, exact), "{file}: {what}: {stated} bits, but it takes {exact}");
}

/// The rows of the first table behind `heading`: trimmed cells.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let rows =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the words between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Every rate of a codec at width 128, by all of its keys that have to do with it.
fn rates(name: &str) -> Vec<f64> {
    let join = |key: &str, values: &mut dyn Iterator<Item = usize>| -> Vec<String> {
        values.map(|value| format!("{key}={value}")).collect()
    };
    let product = |a: &[String], b: &[String]| -> Vec<String> {
        a.iter().flat_map(|a| b.iter().map(move |b| format!("{a},{b}"))).collect()
    };
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| word.to_string()).collect() };
    let keys = match name {
        "trellis" => join("m", &mut (1..=255)),
        "turboquant" => [join("bits", &mut (1..=8)), join("levels", &mut (1..=255))].concat(),
        "turboquant-qjl" => join("bits", &mut (1..=8)),
        "octopus" | "octopus-qjl" => [
            product(&join("bits", &mut (1..=5)), &words(&["split=paper", "split=even"])),
            product(&join("bdir", &mut (1..=7)), &join("bnrm", &mut (0..=6))),
        ]
        .concat(),
        "polarquant" => [
            join("bits", &mut (1..=8)),
            words(&["depth=4"]),
            product(&join("bits", &mut (1..=8)), &words(&["depth=4"])),
        ]
        .concat(),
        "hqmq" => {
            let sizes = product(&join("s", &mut (1..=255)), &join("r", &mut (2..=6)));
            product(&sizes, &words(&["packing=radix", "packing=index"]))
        }
        "additive" => product(&join("k", &mut (16..=1024)), &join("r", &mut (2..=6))),
        "int" => {
            let groups = words(&["group=token", "group=16", "group=32", "group=64"]);
            product(
                &product(&join("bits", &mut (2..=8)), &groups),
                &words(&["asymmetric=false", "asymmetric=true"]),
            )
        }
        "graded" => {
            let [fine, coarse] =
                ["fine", "coarse"].map(|key| join(key, &mut [1, 2, 3, 4, 6, 8, 12, 16].into_iter()));
            product(&fine, &coarse)
        }
        "fp8" => words(&["scale=tensor", "scale=token"]),
        _ => return vec![bits(name, 128)],
    };
    let parsed = keys.iter().filter_map(|keys| format!("{name}:{keys}").parse::<CodecSpec>().ok());
    let mut rates: Vec<f64> =
        parsed.map(|spec| spec.bits_per_value(128)).filter(|bits| *bits > 0.0).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    rates
}

/// The numbers of a text, as written.
fn numbers(text: &str) -> Vec<&str> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|part| part.trim_matches('.'));
    parts.filter(|part| !part.is_empty()).collect()
}

/// `a, b … c, and d`: each is a rate of one of the row's codecs; with `…` the ends are the least and the most, without it
/// none is missing.
#[test]
fn the_table_of_codecs() {
    let rows = table(CODECS, "# Codecs\n");
    assert!(rows.len() >= 14);
    let mut wrong = Vec::new();
    for row in rows {
        let mut exact: Vec<f64> = quoted(row[0]).flat_map(rates).collect();
        exact.sort_by(f64::total_cmp);
        exact.dedup();
        let stated = numbers(row[2]);
        let is_one = |stated: &&str| exact.iter().any(|exact| is_rounded(stated, *exact));
        let is_stated = |exact: &f64| stated.iter().any(|stated| is_rounded(stated, *exact));
        let range = row[2].split([';', ',']).find(|part| part.contains('…')).map(numbers);
        let complete = match range {
            Some(range) => {
                is_rounded(stated[0], exact[0]) && is_rounded(range[range.len() - 1], exact[exact.len() - 1])
            }
            None => exact.iter().all(is_stated),
        };
        if !(complete && stated.iter().all(is_one)) {
            wrong.push(format!("{}: {}: its rates are {exact:?}", row[0], row[2]));
        }
    }
    assert!(wrong.is_empty(), "docs/codecs.md:\n{}", wrong.join("\n"));
}

/// The rows of `docs/plots/sample.txt` below a title: a codec, and its cells without the mark of the Pareto front.
fn measured(title: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let (_, rest) = SAMPLE.split_once(title).unwrap();
    let lines = rest.lines().skip(2).take_while(|line| !line.is_empty());
    let row = |line: &'static str| {
        let (name, cells) = line.split_at(line.find([' ', '*']).unwrap());
        (name, cells.split([' ', '*']).filter(|cell| !cell.is_empty()).collect())
    };
    lines.map(row).collect()
}

#[test]
fn the_measurements_of_the_sample() {
    let mut rows = 0;
    for (title, role) in [("\nKEYS ", Role::Keys), ("\nVALUES ", Role::Values)] {
        for (name, cells) in measured(title) {
            if has_outliers(name) {
                assert!(cells[0].parse::<f64>().unwrap() > bits(name, 128), "docs/plots/sample.txt: {name}");
            } else {
                check("docs/plots/sample.txt", name, cells[0], cached(name, role));
            }
            rows += 1;
        }
    }
    assert!(rows > 60, "{rows} rows");
}

/// The README's first table. Bits in pages and bytes are those of a full cache of Llama-3-8B. llama.cpp measured the KL
/// (`docs/llama-cpp.md`), and `heads.csv` has the times of four query heads that share a key/value head.
#[test]
fn the_readmes_table() {
    let (layers, heads, width, tokens) = (32, 8, 128, 32_768);
    let plain = |codec: &str| {
        let values = 2 * layers * heads * tokens;
        (bits(codec, width), values * spec(codec).block_bytes(width))
    };
    let ours = |config: CacheConfig| {
        (config.page_bits(), config.layers().map(|layer| layer.required_bytes()).sum::<usize>())
    };
    let config = CacheConfig::new(layers, heads, width, tokens);
    let for_bits = |bits| ours(config.for_bits(bits).unwrap());
    let kl = |setting: &str| {
        let row =
            LLAMA_KL.lines().map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row[0] == setting);
        row.map_or("0, 0".to_string(), |row| format!("{}, {}", row[1], row[3]))
    };
    let speed = |cache: &str| {
        let ns = |isa: &str, cache: &str| -> f64 {
            let start = format!("{isa},128,4096,4,1,{cache},");
            let rest = HEADS.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
            rest.split(',').next().unwrap().parse().unwrap()
        };
        ["avx2", "avx512"].map(|isa| format!("{:.1}x", ns(isa, "ggml f16") / ns(isa, cache))).join(", ")
    };
    let expected = [
        ("octaplex", ours(config), "octaplex's default", Some("graded / trellis")),
        ("octaplex, 4.3 bits", for_bits(4.3), "`OCTAPLEX_BITS=4.3`", None),
        ("octaplex, 2.3 bits", for_bits(2.3), "`OCTAPLEX_BITS=2.3`", None),
        ("f16", plain("f16"), "its f16", Some("ggml f16")),
        ("`q8_0`", plain("q8_0"), "its `q8_0`", Some("ggml q8_0")),
        ("`q4_0`", plain("q4_0"), "its `q4_0`", Some("ggml q4_0")),
    ];
    for (name, (bits, bytes), setting, timed) in expected {
        let (bits, gigabytes) = (format!("{bits:.1}"), format!("{:.2}", bytes as f64 / 1e9));
        let cells =
            [name, bits.trim_end_matches(".0"), &gigabytes, &kl(setting), &timed.map_or("-".into(), speed)];
        let row = format!("| {} |", cells.join(" | "));
        assert!(README.lines().any(|line| line == row), "README.md lacks\n{row}");
    }
}

/// The table of codecs to choose from: bits of pages, from the least to the most over the models, and of ggml's blocks.
#[test]
fn the_bits_of_the_advice() {
    let default = LayerConfig::new(1, 128, 1000);
    assert_eq!((default.keys, default.values), (spec("graded"), spec("trellis")));
    let page = |keys: &str, values: &str, (heads, dim): (usize, usize)| {
        LayerConfig::new(heads, dim, 1000).keys(spec(keys)).values(spec(values)).page_bits()
    };
    let mut count = 0;
    for row in table(CHOOSING, "# Choosing a codec\n") {
        let exact: Vec<f64> = match (quoted(row[1]).next(), quoted(row[2]).next()) {
            (Some(keys), Some(values)) => MODELS.map(|shape| page(keys, values, shape)).into(),
            _ if row[2] == "the same" => quoted(row[1]).map(|name| bits(name, 128)).collect(),
            _ => continue, // a row without codecs
        };
        let (least, most) = exact.iter().fold((f64::MAX, 0.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        let stated = numbers(row[3]);
        check("docs/choosing.md", row[0], stated[0], least);
        check("docs/choosing.md", row[0], stated[stated.len() - 1], most);
        count += 1;
    }
    assert_eq!(count, 5);
}

/// `turboquant` is faster than ggml's f16 for any number of query heads, and the default from groups of four on.
#[test]
fn the_shares_of_the_speed_page() {
    // Attention of one query for 1, 4 and 7 heads, by widths and instructions: shares of the time of ggml's f16. For 4 heads
    // there are two lengths.
    let mut default = 0;
    for line in HEADS.lines().skip(1) {
        let [_, _, _, heads, queries, cache, _, share] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let is_default = cache == "graded / trellis";
        if queries == "1" && (cache == "turboquant / turboquant" || is_default && heads != "1") {
            assert!(share.parse::<f64>().unwrap() < 1.0, "{line}");
            default += usize::from(is_default);
        }
    }
    assert_eq!(default, 2 * 3 * 3, "two widths, three instruction sets, 4 and 7 heads");
}

#[test]
fn what_to_take_instead() {
    let rows = table(CHOOSING, "\n## What to take\n");
    assert!(rows.len() >= 16);
    for row in rows {
        let exact = bits(quoted(row[0]).next().unwrap(), 128);
        check("docs/choosing.md", row[0], row[1], exact);
        check("docs/choosing.md", row[0], row[4], cached(quoted(row[0]).next().unwrap(), Role::Keys));
    }
}

/// A page's bits for keys and values together, from the least to the most over the models.
#[test]
fn the_rows_of_accuracy() {
    let rows = table(ACCURACY, "\n## Three models, three texts\n");
    assert_eq!(rows.len(), 13);
    for row in rows {
        let (mut names, centred) = (quoted(row[0]), !row[0].contains("raw") && !row[0].contains("llama.cpp"));
        let keys = names.next().unwrap();
        let values = names.next().unwrap_or(keys);
        let center = if centred { Center::Page } else { Center::Off };
        let page = |(heads, dim): (usize, usize)| {
            8.0 * page_bytes(keys, values, (heads, dim), center) as f64 / (64 * 2 * heads * dim) as f64
        };
        let each = MODELS.map(page);
        let (least, most) = each.iter().fold((f64::MAX, 0.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        let stated = numbers(row[1]);
        let ends = [stated[0], stated[stated.len() - 1]];
        if has_outliers(keys) {
            let block = (bits(keys, 64) + bits(values, 64)) / 2.0;
            assert!(ends.iter().all(|end| end.parse::<f64>().unwrap() > block), "docs/accuracy.md: {row:?}");
            continue;
        }
        // A row that was not run on all models has one figure, which is one of theirs.
        if ends[0] == ends[1] {
            let found = each.iter().any(|exact| is_rounded(ends[0], *exact));
            assert!(found, "docs/accuracy.md: {}: {} is none of {each:?}", row[0], ends[0]);
        } else {
            check("docs/accuracy.md", row[0], ends[0], least);
            check("docs/accuracy.md", row[0], ends[1], most);
        }
    }
}

/// Bytes of blocks, part by part.
#[test]
fn the_blocks_of_formats() {
    let (_, rest) = FORMATS.split_once("at D = 128\n").unwrap();
    let lines = rest.lines().skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```");
    let mut rows = 0;
    for line in lines {
        let mut cells = line.trim_end_matches([' ', '|']).split('|').map(str::trim);
        let (name, times) = match cells.next().unwrap().split_once(", four times") {
            Some((name, _)) => (name, 4),
            None => (line.split('|').next().unwrap().trim(), 1),
        };
        let bytes: usize = cells.map(|cell| cell.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum();
        assert_eq!(times * bytes, spec(name).block_bytes(128), "docs/formats.md: {line}");
        rows += 1;
    }
    assert_eq!(rows, 7);
}

/// The table of a page's parts is the layout's own words.
#[test]
fn the_page_of_formats() {
    let config = LayerConfig::new(2, 128, 1000).keys(spec("trellis")).values(spec("trellis"));
    let mut expected = String::from("| bytes | what |\n|---|---|\n");
    config.page_layout(|bytes, what| expected += &format!("| {bytes} | {what} |\n"));
    expected.push('\n');
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/formats.md");
    let (before, rest) = FORMATS.split_once("`trellis` keys and values:\n\n").unwrap();
    let behind = rest.find("\n\n").map_or("", |end| &rest[end + 2..]);
    let blessed = format!("{before}`trellis` keys and values:\n\n{expected}{behind}");
    if std::env::var_os("OCTAPLEX_BLESS").is_some() {
        std::fs::write(path, &blessed).unwrap();
    } else {
        assert!(blessed == FORMATS, "docs/formats.md lacks\n{expected}");
    }
    let mut bytes = 0;
    config.page_layout(|part, _| bytes += part);
    assert_eq!(bytes, page_bytes("trellis", "trellis", (2, 128), Center::Page));
}
