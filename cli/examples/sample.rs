//! Cuts the bundled sample out of a larger file of the same kind:
//!
//! ```text
//! cargo run -p octaplex-cli --example sample -- IN.safetensors OUT.safetensors TOKENS INDEX,INDEX…
//! ```
//!
//! keeps the layers at these indices of k, v, q and `layers`, the first TOKENS tokens, and the queries at positions
//! inside. The same input gives the same bytes.

use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, input, output, tokens, layers] = arguments.as_slice() else {
        return Err("usage: sample IN OUT TOKENS INDEX,INDEX…".into());
    };
    let tokens: usize = tokens.parse()?;
    let layers = layers.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;

    let bytes = std::fs::read(input)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let words = |name: &str| -> Result<Vec<[u8; 4]>, safetensors::SafeTensorError> {
        Ok(file.tensor(name)?.data().as_chunks().0.to_vec())
    };

    let positions: Vec<_> =
        words("q_pos")?.into_iter().filter(|p| i32::from_le_bytes(*p) < tokens as i32).collect();
    let mut numbers = Vec::new();
    for &layer in &layers {
        numbers.push(*words("layers")?.get(layer).ok_or("no such layer")?);
    }
    let mut tensors = vec![
        ("layers", Dtype::I32, vec![layers.len()], numbers.concat()),
        ("q_pos", Dtype::I32, vec![positions.len()], positions.concat()),
    ];
    for (name, keep) in [("k", tokens), ("q", positions.len()), ("v", tokens)] {
        let tensor = file.tensor(name)?;
        let &[all_layers, heads, rows, dim] = tensor.shape() else {
            return Err("four dimensions expected".into());
        };
        let head_bytes = tensor.data().len() / (all_layers * heads);
        let mut data = Vec::new();
        for &layer in &layers {
            let of_layer =
                tensor.data().chunks_exact(heads * head_bytes).nth(layer).ok_or("no such layer")?;
            for head in of_layer.chunks_exact(head_bytes) {
                data.extend_from_slice(
                    head.get(..head_bytes / rows * keep).ok_or("fewer tokens than TOKENS")?,
                );
            }
        }
        tensors.push((name, tensor.dtype(), vec![layers.len(), heads, keep, dim], data));
    }

    let mut metadata: serde_json::Map<_, _> =
        header.metadata().iter().flatten().map(|(key, value)| (key.clone(), json!(value))).collect();
    metadata.insert("cut".into(), json!(format!("layers at indices {layers:?}, first {tokens} tokens")));
    let mut entries = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata.into())]);
    let mut end = 0;
    for (name, dtype, shape, data) in &tensors {
        let start = end;
        end += data.len();
        entries.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
    }
    let mut header = serde_json::to_vec(&entries)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    tensors.iter().for_each(|(.., data)| out.extend_from_slice(data));
    std::fs::write(output, out)?;
    Ok(())
}
