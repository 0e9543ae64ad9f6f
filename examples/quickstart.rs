//! A toy model's loop with a compressed cache: a prompt at once, then token by token, a fork, a rejected guess, and a
//! snapshot. `cargo run --release --example quickstart`
#![allow(clippy::unwrap_used)]

use octaplex::{Backend, CacheConfig, Error, KvCache};

const LAYERS: usize = 2;
const HEADS: usize = 2;
const QUERY_HEADS: usize = 4;
const D: usize = 64;

/// What stands in for a model: rows of a layer at some positions, `heads` of them.
fn rows(layer: usize, heads: usize, positions: std::ops::Range<usize>) -> Vec<f32> {
    let mut rows = Vec::new();
    for head in 0..heads {
        for position in positions.clone() {
            rows.extend(
                (0..D).map(|i| ((layer * 7 + head * 3 + i + 1) as f32 * position as f32 * 0.01).sin()),
            );
        }
    }
    rows
}

fn main() -> Result<(), Error> {
    // Keys and values in 4 bits, keys centred page by page; change any field, of all layers or of one.
    let mut config = CacheConfig::new(LAYERS, HEADS, D, 8192);
    config.each.values = "turboquant:bits=3".parse()?;
    let mut cache = KvCache::new(config.layers(), Backend::detect())?;
    cache.reserve(QUERY_HEADS)?; // from here on, attention allocates nothing

    // The prompt: all its tokens in one call a layer. Its queries tell the balance which channels of keys count.
    for layer in 0..LAYERS {
        cache.calibrate(layer, &rows(layer, HEADS, 0..1000), &rows(layer, QUERY_HEADS, 0..1000))?;
        cache.append(layer, &rows(layer, HEADS, 0..1000), &rows(layer, HEADS, 0..1000))?;
    }
    let prompt = cache.fork(); // shares every closed page

    // Generation: one token at a time.
    let mut output = vec![0.0; QUERY_HEADS * D];
    for token in 1000..1100 {
        for layer in 0..LAYERS {
            let new = rows(layer, HEADS, token..token + 1);
            cache.append(layer, &new, &new)?;
            let queries = rows(layer, QUERY_HEADS, token..token + 1);
            cache.attend(layer, &queries, &mut output)?;
        }
    }
    cache.truncate(1090)?; // ten guesses were rejected

    let stats = cache.stats();
    println!("{} tokens in {LAYERS} layers, {:.2} bits a value", stats.tokens, stats.bits_per_value());
    println!("the prompt alone has {} tokens", prompt.stats().tokens);

    let saved = cache.save();
    let loaded = KvCache::load(&saved, Backend::detect())?;
    let queries = rows(0, QUERY_HEADS, 1090..1091);
    let mut again = output.clone();
    cache.attend(0, &queries, &mut output)?;
    loaded.attend(0, &queries, &mut again)?;
    assert_eq!(output, again);
    println!("saved in {} bytes; the loaded cache gives the same bits", saved.len());
    Ok(())
}
