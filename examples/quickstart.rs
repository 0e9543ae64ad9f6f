//! A first program: a prompt, the attention of its newest token, and the memory that both take.
//! `cargo run --example quickstart`

use octaplex::{Error, KvCache};

fn main() -> Result<(), Error> {
    let (kv_heads, query_heads, width, tokens) = (8, 32, 128, 4000);
    let number = |i: usize| (i * 7919 % 1009) as f32 / 504.0 - 1.0; // stands in for a model's
    let rows = |count: usize| (0..count * width).map(number).collect::<Vec<f32>>();

    // One layer of one sequence, up to 32,768 tokens. Rows are [heads][tokens][width], in f32, f16 or bf16.
    let mut cache = KvCache::builder(1, kv_heads, width, 32_768).query_heads(query_heads).build()?;
    cache.append(0, &rows(kv_heads * tokens), &rows(kv_heads * tokens))?; // keys after the rotary embedding, values
    let mut output = vec![0.0; query_heads * width];
    cache.attend(0, &rows(query_heads), &mut output)?; // the newest token's queries

    let (stats, in_pages) = (cache.stats(), cache.layers()[0].config().page_bits());
    println!("{} tokens in {:.1} MB, {} outputs", stats.tokens, stats.bytes as f64 / 1e6, output.len());
    println!("{:.2} bits a value, {in_pages:.2} in pages", stats.bits_per_value());
    Ok(())
}
