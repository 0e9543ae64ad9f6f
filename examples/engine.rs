//! A toy engine's loop: grouped heads, a sliding window, a prompt, rejected drafts, a fork, a snapshot.
//! `cargo run --example engine`

use octaplex::{Backend, Error, KvCache, Rows, RowsMut};

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const QUERY_HEADS: usize = 4;
const WIDTH: usize = 64;

/// Stands in for a model: rows of some tokens, in the order [tokens][heads][width].
fn rows(layer: usize, heads: usize, tokens: std::ops::Range<usize>) -> Vec<f32> {
    let row = |token: usize, head: usize, i: usize| {
        ((layer * 7 + head * 3 + i + 1) as f32 * token as f32 * 0.01).sin()
    };
    tokens.flat_map(|token| (0..heads * WIDTH).map(move |i| row(token, i / WIDTH, i % WIDTH))).collect()
}

/// Runs some tokens through all layers.
fn step(cache: &mut KvCache, tokens: std::ops::Range<usize>, output: &mut Vec<f32>) -> Result<(), Error> {
    output.resize(tokens.len() * QUERY_HEADS * WIDTH, 0.0);
    for layer in 0..LAYERS {
        let [keys, values] = [(); 2].map(|()| rows(layer, KV_HEADS, tokens.clone()));
        cache.append(layer, Rows::tokens_first(&keys), Rows::tokens_first(&values))?;
        let queries = rows(layer, QUERY_HEADS, tokens.clone());
        cache.attend(layer, Rows::tokens_first(&queries), RowsMut::tokens_first(&mut output[..]))?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let builder = KvCache::builder(LAYERS, KV_HEADS, WIDTH, 8192).query_heads(QUERY_HEADS);
    let mut cache = builder.sliding_window(4096).build()?;
    let mut output = Vec::new();
    step(&mut cache, 0..1000, &mut output)?; // the prompt
    let prompt = cache.fork(); // shares every closed page

    for token in 1000..1090 {
        step(&mut cache, token..token + 1, &mut output)?;
    }
    step(&mut cache, 1090..1100, &mut output)?; // ten drafts at once
    cache.truncate(1093)?; // three were right

    let stats = cache.stats();
    let in_pages = cache.layers()[0].config().page_bits(); // a long context approaches it
    println!("{} tokens, {:.2} bits a value, {in_pages:.2} in pages", stats.tokens, stats.bits_per_value());
    println!("the prompt alone has {} tokens", prompt.stats().tokens);

    let mut loaded = KvCache::load(&cache.save(), Backend::detect())?;
    loaded.set_query_heads(QUERY_HEADS)?; // snapshots do not hold it
    let mut again = Vec::new();
    step(&mut cache, 1093..1094, &mut output)?;
    step(&mut loaded, 1093..1094, &mut again)?;
    assert_eq!(output, again);
    Ok(())
}
