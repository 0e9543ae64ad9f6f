//! Reads the shape of a model's cache from a `config.json` of Hugging Face.

use super::shape::{Kind, LARGEST, LAYERS, Shape, last_of};
use crate::failure::{Result, fail, first_line, shown};
use serde_json::{Map, Value};

/// Names of the language model's config in that of a model of several parts.
const INNER: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

/// Reads a config.
pub(super) fn read(bytes: &[u8]) -> Result<Shape> {
    let json: Value = match serde_json::from_slice(bytes) {
        Ok(json) => json,
        Err(error) => fail!("neither a GGUF file nor a config.json: {}", first_line(&error)),
    };
    let Some(mut map) = json.as_object() else { fail!("neither a GGUF file nor a config.json: no object") };
    let mut notes = Vec::new();
    while let Some(inner) = INNER.iter().find_map(|name| map.get(*name)?.as_object()) {
        map = inner;
        notes =
            vec!["The language model alone: what encoders of images or sound take is not counted.".into()];
    }
    Config { map, notes }.shape()
}

struct Config<'a> {
    map: &'a Map<String, Value>,
    notes: Vec<String>,
}

impl Config<'_> {
    /// Returns the first of these entries that is not null, and its name.
    fn value<'a>(&self, names: &[&'a str]) -> Option<(&'a str, &Value)> {
        let find = |name: &&'a str| Some((*name, self.map.get(*name)?)).filter(|(_, value)| !value.is_null());
        names.iter().find_map(find)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.map.get(name)?.as_str()
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.map.get(name)?.as_bool()
    }

    /// Reads the first of these entries that is there, a count.
    fn count(&self, names: &[&str]) -> Result<Option<usize>> {
        self.value(names).map(|(name, value)| count(name, value)).transpose()
    }

    /// Reads a count that must exist and be at least 1.
    fn needed(&self, names: &[&str]) -> Result<usize> {
        match self.count(names)? {
            Some(count @ 1..) => Ok(count),
            Some(0) => fail!("{} is 0", names[0]),
            None => fail!("no {}: give --layers, --kv-heads and --width", names[0]),
        }
    }

    fn shape(mut self) -> Result<Shape> {
        if self.flag("is_encoder_decoder") == Some(true) {
            fail!("a model with an encoder and a decoder, which is not supported");
        }
        let layers = self.needed(&["num_hidden_layers", "n_layer", "num_layers", "n_layers"])?;
        if layers > LAYERS {
            fail!("{layers} layers; at most {LAYERS} are supported");
        }
        let (kinds, window) = self.kinds(layers)?;
        let context = self.count(&["max_position_embeddings", "n_positions", "seq_length", "max_seq_len"])?;
        let mut shape = match self.count(&["kv_lora_rank"])? {
            Some(rank @ 1..) => {
                let rotated = self.count(&["qk_rope_head_dim"])?.unwrap_or(0);
                if let Some((name, _)) = self.value(&["index_head_dim"]) {
                    self.notes.push(format!("Not counted: the keys of the indexer ({name})."));
                }
                Shape::new(&kinds, window, |_, _| Ok([1, rank + rotated, 0]), self.notes)?
            }
            _ => self.heads(&kinds, window)?,
        };
        shape.context = context;
        Ok(shape)
    }

    /// Adds the heads of each layer.
    fn heads(mut self, kinds: &[Kind], window: Option<usize>) -> Result<Shape> {
        let queries = self.count(&["num_attention_heads", "n_head", "n_heads", "num_heads"])?;
        let heads = self.kv_heads(kinds.len(), queries)?;
        let width = match self.count(&["head_dim", "kv_channels", "attention_head_dim"])? {
            Some(width) => width,
            None => {
                let hidden = self.needed(&["hidden_size", "n_embd", "d_model"])?;
                let queries = match queries {
                    Some(queries @ 1..) => queries,
                    _ => {
                        fail!("no head_dim and no num_attention_heads: give --layers, --kv-heads and --width")
                    }
                };
                self.notes.push("head_dim is missing: hidden_size / num_attention_heads is taken.".into());
                hidden / queries
            }
        };
        let values = self.count(&["v_head_dim"])?.unwrap_or(width);
        // Gemma 4: layers that see all tokens have heads of their own.
        let global = self.count(&["global_head_dim"])?;
        let global_heads = self.count(&["num_global_key_value_heads"])?;
        let sizes = |layer: usize, kind: &Kind| {
            Ok(match global.filter(|_| *kind == Kind::Full) {
                Some(width) => [global_heads.unwrap_or(heads[layer]), width, width],
                None => [heads[layer], width, values],
            })
        };
        Shape::new(kinds, window, sizes, std::mem::take(&mut self.notes))
    }

    /// Returns the key/value heads of each layer.
    fn kv_heads(&mut self, layers: usize, queries: Option<usize>) -> Result<Vec<usize>> {
        let names = ["num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"];
        if let Some((name, Value::Array(list))) = self.value(&names) {
            let heads = list.iter().map(|item| count(name, item)).collect::<Result<Vec<_>>>()?;
            return match heads.len() == layers {
                true => Ok(heads),
                false => fail!("{name} has {} counts for {layers} layers", heads.len()),
            };
        }
        let nested = self.map.get("attn_config").and_then(|config| config.get("kv_n_heads"));
        let one =
            self.flag("multi_query") == Some(true) && self.flag("new_decoder_architecture") != Some(true);
        let heads = match (self.count(&names)?, nested, queries) {
            // Falcon's configs have the number and do not use it.
            _ if one => 1,
            (Some(heads), ..) => heads,
            (None, Some(nested), _) => count("kv_n_heads", nested)?,
            (None, None, Some(queries)) => {
                self.notes.push("num_key_value_heads is missing: as many as query heads are taken.".into());
                queries
            }
            (None, None, None) => fail!("no num_attention_heads: give --layers, --kv-heads and --width"),
        };
        Ok(vec![heads; layers])
    }

    /// Returns the kind of each layer, and the window of the sliding ones.
    fn kinds(&mut self, layers: usize) -> Result<(Vec<Kind>, Option<usize>)> {
        let sliding = self.count(&["sliding_window", "attention_window_size"])?.filter(|window| *window > 0);
        let chunk = self.count(&["attention_chunk_size"])?;
        let window = sliding.or(chunk);
        let mut kinds = match self.named(layers)? {
            Some(kinds) => kinds,
            None => self.periodic(layers, sliding)?,
        };
        if chunk.is_some() && !kinds.contains(&Kind::Sliding) {
            self.notes
                .push("attention_chunk_size is not counted: no layer_types say which layers have it.".into());
        }
        if let Some(Value::Array(list)) = self.map.get("cross_attention_layers") {
            for number in list.iter().filter_map(Value::as_u64) {
                if let Some(kind) = kinds.get_mut(number as usize) {
                    *kind = Kind::Other("cross-attention".into());
                }
            }
        }
        // Gemma 3n and 4: the last layers read the keys and values of earlier ones.
        let shared = self.count(&["num_kv_shared_layers"])?.unwrap_or(0);
        for kind in kinds.iter_mut().rev().take(shared) {
            *kind = Kind::Other("keys and values that another layer holds".into());
        }
        if window.is_none() && kinds.contains(&Kind::Sliding) {
            self.notes.push("sliding_window is missing: sliding layers count as full ones.".into());
        }
        Ok((kinds, window))
    }

    /// Reads the kinds of layers that a config names one by one.
    fn named(&self, layers: usize) -> Result<Option<Vec<Kind>>> {
        let of = |name: &str| match name {
            "full_attention" | "attention" | "hybrid" | "*" => Kind::Full,
            "sliding_attention" | "chunked_attention" => Kind::Sliding,
            "M" => Kind::Other("Mamba".into()),
            "-" | "E" => Kind::Other("no attention".into()),
            other => Kind::Other(shown(other)),
        };
        let kinds: Vec<Kind> =
            match self.value(&["layer_types", "layers_block_type", "hybrid_override_pattern"]) {
                Some((_, Value::Array(list))) => {
                    list.iter().map(|item| of(item.as_str().unwrap_or("?"))).collect()
                }
                Some((_, Value::String(pattern))) => {
                    pattern.chars().map(|one| of(&one.to_string())).collect()
                }
                _ => return Ok(None),
            };
        match kinds.len() >= layers {
            true => Ok(Some(kinds[..layers].to_vec())),
            false => fail!("{layers} layers, but kinds of {}", kinds.len()),
        }
    }

    /// Returns the kinds of layers that follow from a period, or from the family of the model.
    fn periodic(&self, layers: usize, sliding: Option<usize>) -> Result<Vec<Kind>> {
        let family = self.text("model_type").unwrap_or("");
        if let Some(interval) = self.count(&["full_attention_interval"])? {
            return Ok(last_of(interval, layers, &Kind::Other("linear attention".into())));
        }
        if let Some(period) = self.count(&["attn_layer_period"])? {
            let offset = self.count(&["attn_layer_offset"])?.unwrap_or(0);
            let others = Kind::Other("no attention".into());
            let kind = |i: usize| if i % period.max(1) == offset { Kind::Full } else { others.clone() };
            return Ok((0..layers).map(kind).collect());
        }
        // Qwen's configs have a window that is off unless a flag says otherwise.
        let is_on = self.flag("use_sliding_window").unwrap_or(!family.starts_with("qwen"));
        if sliding.is_none() || !is_on {
            return Ok(vec![Kind::Full; layers]);
        }
        let period = match self.value(&["sliding_window_pattern", "_sliding_window_pattern"]) {
            Some((_, Value::String(pattern))) => Some(pattern.len()), // "LLLG" of EXAONE
            Some((name, pattern)) => Some(count(name, pattern)?),
            None => None,
        };
        let period = match (period, family) {
            (Some(period), _) => period,
            (None, "gemma2" | "gpt_oss") => 2,
            (None, "gemma3" | "gemma3_text") => 6,
            (None, "cohere2") => 4,
            _ => {
                let full = self.count(&["max_window_layers"])?.unwrap_or(0);
                let kind = |layer: usize| if layer < full { Kind::Full } else { Kind::Sliding };
                return Ok((0..layers).map(kind).collect());
            }
        };
        Ok(last_of(period, layers, &Kind::Sliding))
    }
}

/// Returns an entry that must be a count.
fn count(name: &str, value: &Value) -> Result<usize> {
    match value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= LARGEST) {
        Some(count) => Ok(count),
        None => fail!("{name} is {}, not a count up to {}", shown(&value.to_string()), LARGEST),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use crate::memory::shape::Layer;
    use serde_json::json;

    fn shape(config: Value) -> Shape {
        read(config.to_string().as_bytes()).unwrap()
    }

    fn layer(kv_heads: usize, dim: usize, window: impl Into<Option<usize>>) -> Layer {
        Layer { kv_heads, key_dim: dim, value_dim: dim, window: window.into() }
    }

    /// Configs as the models' authors publish them, with the entries that decide.
    #[test]
    fn published_configs_are_understood() {
        // Llama 3 has no head_dim; GPT-2 has other names, and no heads of keys.
        let llama = json!({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
            "max_position_embeddings": 8192});
        let read = shape(llama);
        assert_eq!((read.layers, read.context), (vec![layer(8, 128, None); 32], Some(8192)));
        let read = shape(json!({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}));
        assert_eq!(read.layers, vec![layer(12, 64, None); 12]);
        assert!(read.notes.iter().any(|note| note.starts_with("num_key_value_heads is missing")));
        // Falcon's shared head, ChatGLM's names, DBRX's nested entry.
        let falcon = json!({"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true});
        assert_eq!(shape(falcon).layers, vec![layer(1, 64, None); 32]);
        let glm = json!({"num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2, "kv_channels": 128});
        assert_eq!(shape(glm).layers, vec![layer(2, 128, None); 28]);
        let dbrx = json!({"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}});
        assert_eq!(shape(dbrx).layers, vec![layer(8, 128, None); 40]);
    }

    #[test]
    fn windows_are_those_of_their_layers() {
        let base = json!({"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256,
            "sliding_window": 512});
        let with = |more: Value| {
            let mut config = base.clone();
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            shape(config).layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
        };
        let (window, full) = (Some(512), None);
        assert_eq!(with(json!({"model_type": "mistral"})), [window; 6]);
        assert_eq!(with(json!({"model_type": "qwen2"})), [full; 6]);
        let qwen = json!({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 5});
        assert_eq!(with(qwen), [full, full, full, full, full, window]);
        assert_eq!(with(json!({"model_type": "gemma2"})), [window, full, window, full, window, full]);
        assert_eq!(
            with(json!({"model_type": "gemma3_text"})),
            [window, window, window, window, window, full]
        );
        assert_eq!(with(json!({"sliding_window_pattern": 3})), [window, window, full, window, window, full]);
        assert_eq!(with(json!({"sliding_window_pattern": "LG"})), [window, full, window, full, window, full]);
        let types = ["full_attention", "sliding_attention"].repeat(3);
        assert_eq!(with(json!({"layer_types": types})), [full, window, full, window, full, window]);
        assert_eq!(with(json!({"sliding_window": null})), [full; 6]);
        // Llama 4's chunks are windows.
        let chunks = json!({"sliding_window": null, "attention_chunk_size": 8192, "layer_types": vec!["chunked_attention"; 6]});
        assert_eq!(with(chunks), [Some(8192); 6]);
    }

    /// Layers without keys and values of their own are left out, and named.
    #[test]
    fn what_is_not_counted_is_said() {
        let base = |more: Value| {
            let mut config = json!({"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let shape = shape(config);
            (shape.layers.len(), shape.notes.join(" "))
        };
        let types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"];
        let expected = (1, "Not counted: 3 layers of linear_attention.".to_owned());
        assert_eq!(base(json!({"layer_types": types})), expected);
        assert_eq!(base(json!({"full_attention_interval": 4})).0, 1);
        assert_eq!(base(json!({"attn_layer_period": 4, "attn_layer_offset": 2})).0, 1);
        assert_eq!(base(json!({"hybrid_override_pattern": "M*-M"})).0, 1);
        assert_eq!(base(json!({"num_kv_shared_layers": 3})).0, 1);
        assert_eq!(base(json!({"cross_attention_layers": [1, 900]})).0, 3);
        let inner = json!({"text_config": {"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64}, "num_hidden_layers": 9});
        let inner = shape(inner);
        assert!(inner.layers.len() == 2 && inner.notes[0].contains("images or sound"), "{inner:?}");
    }

    #[test]
    fn latent_attention_is_one_vector_a_token() {
        let deepseek = json!({"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
            "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128});
        let shape = shape(deepseek);
        assert!(shape.is_latent() && shape.layers.len() == 61 && shape.layers[0].values() == 576);
    }

    #[test]
    fn widths_may_differ_between_layers_and_sides() {
        let gemma = json!({"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256,
            "global_head_dim": 512, "num_global_key_value_heads": 4, "sliding_window": 1024,
            "layer_types": ["sliding_attention", "full_attention"]});
        assert_eq!(shape(gemma).layers, [layer(8, 256, 1024), layer(4, 512, None)]);
        let mimo = json!({"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": [4], "head_dim": 192,
            "v_head_dim": 128});
        assert_eq!(shape(mimo).layers[0], Layer { kv_heads: 4, key_dim: 192, value_dim: 128, window: None });
    }

    #[test]
    fn errors_name_the_entry() {
        for (config, words) in [
            ("", "neither a GGUF file nor a config.json"),
            ("[]", "no object"),
            ("{}", "no num_hidden_layers: give --layers"),
            (r#"{"num_hidden_layers": -1}"#, "num_hidden_layers is -1, not a count"),
            (r#"{"num_hidden_layers": 1e99}"#, "not a count"),
            (r#"{"num_hidden_layers": 5000}"#, "at most 4096"),
            (r#"{"num_hidden_layers": 2}"#, "no num_attention_heads"),
            (r#"{"num_hidden_layers": 2, "num_attention_heads": 0, "head_dim": 64}"#, "0 key/value heads"),
            (
                r#"{"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 64}"#,
                "no head_dim and no",
            ),
            (
                r#"{"num_hidden_layers": 2, "num_key_value_heads": [1], "head_dim": 64}"#,
                "1 counts for 2 layers",
            ),
            (r#"{"num_hidden_layers": 2, "layer_types": ["full_attention"]}"#, "kinds of 1"),
            (
                r#"{"num_hidden_layers": 1, "num_key_value_heads": 1000000, "head_dim": 1000000}"#,
                "layer 0 has",
            ),
            (r#"{"num_hidden_layers": 1, "is_encoder_decoder": true}"#, "an encoder and a decoder"),
        ] {
            let error = read(config.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{config}: {error}");
        }
    }
}
