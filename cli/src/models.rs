//! Language models with the cache in their loop: how well they predict, write and remember on compressed bytes.

mod attention;
#[cfg(feature = "gpu")]
mod card;
mod forward;
pub(crate) mod generate;
mod gguf;
mod likelihood;
mod matrix;
pub(crate) mod needle;
mod options;
pub(crate) mod perplexity;
mod repacked;
mod rope;
mod sentencepiece;
mod session;
mod shape;
pub(crate) mod sweep;
mod text;
pub(crate) mod threads;
