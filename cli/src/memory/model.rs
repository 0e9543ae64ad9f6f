//! Reads the shape of a model's cache from a GGUF file.

use super::shape::{Kind, LARGEST, LAYERS, Shape, last_of};
use crate::failure::{Result, fail, shown};
use crate::gguf::Header;

/// Families whose files have a window, and not which layers it is for: the last one of each period is full.
const PERIODS: [(&str, usize); 6] =
    [("gemma2", 2), ("gemma3", 6), ("gpt-oss", 2), ("cohere2", 4), ("olmo2", 4), ("exaone4", 4)];

/// Reads the entries of a header.
pub(super) fn read(header: &Header) -> Result<Shape> {
    if header.counts("split.no")?.is_some_and(|number| number != [0]) {
        fail!("a later file of a model in several: give the first");
    }
    let Some(family) = header.text("general.architecture") else {
        fail!("a damaged GGUF file: no general.architecture");
    };
    Model { header, family }.shape()
}

struct Model<'a> {
    header: &'a Header,
    family: &'a str,
}

impl Model<'_> {
    /// Reads counts: one for all layers, or one for each.
    fn counts(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let key = format!("{}.{name}", self.family);
        let Some(counts) = self.header.counts(&key)? else { return Ok(None) };
        let checked = |count: &u64| usize::try_from(*count).ok().filter(|count| *count <= LARGEST);
        match counts.iter().map(checked).collect() {
            Some(counts) => Ok(Some(counts)),
            None => fail!("{} is not a count up to {}", shown(&key), LARGEST),
        }
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        match self.counts(name)?.as_deref() {
            None => Ok(None),
            Some([count]) => Ok(Some(*count)),
            Some(_) => fail!("{}.{name} is a list", shown(self.family)),
        }
    }

    /// Reads a count for each layer.
    fn of_layers(&self, name: &str, layers: usize) -> Result<Option<Vec<usize>>> {
        match self.counts(name)? {
            Some(counts) if counts.len() == 1 => Ok(Some(vec![counts[0]; layers])),
            Some(counts) if counts.len() < layers => {
                fail!("{}.{name} has {} counts for {layers} layers", shown(self.family), counts.len())
            }
            counts => Ok(counts),
        }
    }

    fn shape(&self) -> Result<Shape> {
        let family = shown(self.family);
        let layers = match self.count("block_count")? {
            Some(layers @ 1..=LAYERS) => layers,
            Some(layers) => fail!("{family}.block_count is {layers}"),
            None => fail!("a damaged GGUF file: no {family}.block_count"),
        };
        let queries = self.of_layers("attention.head_count", layers)?;
        let Some(heads) = self.of_layers("attention.head_count_kv", layers)?.or_else(|| queries.clone())
        else {
            fail!("\"{family}\" has no attention: no {family}.attention.head_count");
        };
        let mut notes = Vec::new();
        let (mut kinds, window) = self.kinds(layers, &mut notes)?;
        for (kind, _) in kinds.iter_mut().zip(&heads).filter(|(_, heads)| **heads == 0) {
            *kind = Kind::Other("no attention".into());
        }
        let shared = self.count("attention.shared_kv_layers")?.unwrap_or(0);
        for kind in kinds.iter_mut().rev().take(shared) {
            *kind = Kind::Other("keys and values that another layer holds".into());
        }
        if self.count("ssm.state_size")?.is_some() {
            notes.push(
                "Not counted: the states of recurrent layers, which do not grow with the context.".into(),
            );
        }
        let mut shape = match self.count("attention.kv_lora_rank")? {
            Some(rank @ 1..) => {
                let rotated = self.count("rope.dimension_count")?.unwrap_or(0);
                Shape::new(&kinds, window, |_, _| Ok([1, rank + rotated, 0]), notes)?
            }
            _ => {
                let width = |name: &str| match self.of_layers(name, layers)? {
                    Some(widths) => Ok(widths),
                    None => self.usual_width(layers, queries.as_deref()),
                };
                let widths = ["attention.key_length", "attention.value_length"].map(width);
                let [keys, values] = widths;
                let (keys, values) = (keys?, values?);
                // Gemma 4: layers with a window have heads of their own.
                let sliding =
                    [self.count("attention.key_length_swa")?, self.count("attention.value_length_swa")?];
                let sizes = |layer: usize, kind: &Kind| {
                    let [key, value] = if *kind == Kind::Sliding { sliding } else { [None; 2] };
                    Ok([heads[layer], key.unwrap_or(keys[layer]), value.unwrap_or(values[layer])])
                };
                Shape::new(&kinds, window, sizes, notes)?
            }
        };
        shape.context = self.count("context_length")?;
        Ok(shape)
    }

    /// Returns the width of the embedding, divided by the query heads.
    fn usual_width(&self, layers: usize, queries: Option<&[usize]>) -> Result<Vec<usize>> {
        match (self.count("embedding_length")?, queries) {
            (Some(width), Some(queries)) => {
                Ok((0..layers).map(|layer| width / queries[layer].max(1)).collect())
            }
            _ => fail!("a damaged GGUF file: no width of heads"),
        }
    }

    /// Returns the kind of each layer, and the window of the sliding ones.
    fn kinds(&self, layers: usize, notes: &mut Vec<String>) -> Result<(Vec<Kind>, Option<usize>)> {
        if let Some(interval) = self.count("full_attention_interval")? {
            return Ok((last_of(interval, layers, &Kind::Other("linear attention".into())), None));
        }
        let Some(window) = self.count("attention.sliding_window")?.filter(|window| *window > 0) else {
            return Ok((vec![Kind::Full; layers], None));
        };
        let kinds = match self.counts("attention.sliding_window_pattern")? {
            Some(flags) if flags.len() >= layers => flags[..layers]
                .iter()
                .map(|flag| if *flag == 0 { Kind::Full } else { Kind::Sliding })
                .collect(),
            Some(periods) => last_of(periods.first().copied().unwrap_or(1), layers, &Kind::Sliding),
            None => match PERIODS.iter().find(|(family, _)| *family == self.family) {
                Some((_, period)) => last_of(*period, layers, &Kind::Sliding),
                None => {
                    notes.push(format!(
                        "Its sliding window of {window} tokens is not counted: the file does not say which layers have it."
                    ));
                    vec![Kind::Full; layers]
                }
            },
        };
        Ok((kinds, Some(window)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use crate::gguf;
    use crate::memory::shape::Layer;
    use std::io::{BufReader, Cursor};

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    /// A list of 32-bit counts, or one count.
    fn counts(values: &[u32]) -> Vec<u8> {
        let items = values.iter().flat_map(|value| value.to_le_bytes());
        match values {
            [one] => [&4u32.to_le_bytes()[..], &one.to_le_bytes()].concat(),
            _ => [9u32, 4]
                .iter()
                .flat_map(|kind| kind.to_le_bytes())
                .chain((values.len() as u64).to_le_bytes())
                .chain(items)
                .collect(),
        }
    }

    /// A file with these entries, a vocabulary, and no tensor.
    fn file(family: &str, entries: &[(&str, &[u32])]) -> Vec<u8> {
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
        file.extend((entries.len() as u64 + 2).to_le_bytes());
        file.extend(
            [text("tokenizer.ggml.tokens"), [9u32, 8].iter().flat_map(|kind| kind.to_le_bytes()).collect()]
                .concat(),
        );
        file.extend([&2u64.to_le_bytes()[..], &text("a"), &text("b")].concat());
        for (name, values) in entries {
            file.extend([text(&format!("{family}.{name}")), counts(values)].concat());
        }
        file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text(family)].concat());
        file
    }

    fn parse(bytes: &[u8]) -> Result<Shape> {
        gguf::read(&mut BufReader::new(Cursor::new(bytes)), bytes.len() as u64)
            .and_then(|header| read(&header))
    }

    fn layer(kv_heads: usize, dim: usize, window: impl Into<Option<usize>>) -> Layer {
        Layer { kv_heads, key_dim: dim, value_dim: dim, window: window.into() }
    }

    const LLAMA: [(&str, &[u32]); 5] = [
        ("block_count", &[2]),
        ("attention.head_count", &[32]),
        ("attention.head_count_kv", &[8]),
        ("embedding_length", &[4096]),
        ("context_length", &[8192]),
    ];

    #[test]
    fn families_are_understood() {
        let llama = parse(&file("llama", &LLAMA)).unwrap();
        assert_eq!((llama.layers, llama.context), (vec![layer(8, 128, None); 2], Some(8192)));
        let gemma = [
            ("block_count", &[6][..]),
            ("attention.head_count", &[4]),
            ("attention.head_count_kv", &[1]),
            ("attention.key_length", &[256]),
            ("attention.value_length", &[256]),
            ("attention.sliding_window", &[512]),
        ];
        let windows: Vec<_> =
            parse(&file("gemma3", &gemma)).unwrap().layers.iter().map(|layer| layer.window).collect();
        assert_eq!(windows, [Some(512), Some(512), Some(512), Some(512), Some(512), None]);
        let unknown = parse(&file("phi3", &gemma)).unwrap();
        assert!(
            unknown.layers.iter().all(|layer| layer.window.is_none())
                && unknown.notes[0].contains("window of 512")
        );
        let flags = [&gemma[..], &[("attention.sliding_window_pattern", &[1, 0, 0, 0, 0, 1])]].concat();
        assert_eq!(parse(&file("any", &flags)).unwrap().layers[0].window, Some(512));
        // Layers without attention have no heads, and a file may leave the heads of keys out.
        let hybrid = [
            ("block_count", &[2][..]),
            ("attention.head_count", &[16]),
            ("attention.head_count_kv", &[0, 2]),
            ("attention.key_length", &[128]),
            ("attention.value_length", &[128]),
            ("ssm.state_size", &[128]),
        ];
        let hybrid = parse(&file("nemotron_h", &hybrid)).unwrap();
        assert!(
            hybrid.layers == [layer(2, 128, None)]
                && hybrid.notes.join(" ").contains("1 layers of no attention"),
            "{hybrid:?}"
        );
        assert_eq!(
            parse(&file("old", &[LLAMA[0], LLAMA[1], LLAMA[3]])).unwrap().layers[0],
            layer(32, 128, None)
        );
        let latent =
            [LLAMA[0], LLAMA[1], ("attention.kv_lora_rank", &[512]), ("rope.dimension_count", &[64])];
        let latent = parse(&file("deepseek2", &latent)).unwrap();
        assert!(latent.is_latent() && latent.layers[1].values() == 576);
    }

    #[test]
    fn errors_name_the_entry() {
        for (entries, words) in [
            (&[][..], "no x.block_count"),
            (&[("block_count", &[0][..])], "x.block_count is 0"),
            (&[("block_count", &[5000])], "x.block_count is 5000"),
            (&[("block_count", &[2])], "has no attention"),
            (&[("block_count", &[2]), ("attention.head_count", &[8])], "no width of heads"),
            (&[("block_count", &[3]), ("attention.head_count", &[8, 8])], "2 counts for 3 layers"),
            (
                &[("block_count", &[1]), ("attention.head_count", &[0]), ("embedding_length", &[64])],
                "no layer has",
            ),
            (&[("block_count", &[1]), ("attention.head_count", &[u32::MAX])], "is not a count up to"),
        ] {
            let error = parse(&file("x", entries)).unwrap_err().to_string();
            assert!(error.contains(words), "{entries:?}: {error}");
        }
        assert!(parse(b"GGML").unwrap_err().to_string().contains("not a GGUF file"));
        let big = [&b"GGUF"[..], &(3u32 << 24).to_le_bytes()].concat();
        assert!(parse(&big).unwrap_err().to_string().contains("big-endian"));
    }

    /// Every damaged file is an error, or the shape of some model.
    #[test]
    fn damaged_files_do_no_harm() {
        let file = file("llama", &LLAMA);
        for at in 0..file.len() {
            assert!(parse(&file[..at]).is_err(), "{at}");
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(shape) = parse(&damaged) {
                    assert!(shape.layers.iter().all(|layer| layer.values() > 0));
                }
            }
        }
    }
}
