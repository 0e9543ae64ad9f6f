//! Language models that read and write through a compressed cache.

mod attention;
mod baseline;
pub(crate) mod calibrate;
pub(crate) mod capture;
mod forward;
pub(crate) mod generate;
mod gguf;
#[cfg(feature = "gpu")]
mod gpu;
mod kept;
mod likelihood;
mod matrix;
pub(crate) mod needle;
mod options;
pub(crate) mod perplexity;
mod profiles;
mod repacked;
mod rope;
mod sentencepiece;
mod session;
mod shape;
pub(crate) mod sweep;
mod text;
pub(crate) mod threads;

pub(crate) use calibrate::Calibrate;
pub(crate) use capture::Capture;
pub(crate) use generate::Generate;
pub(crate) use needle::Needle;
pub(crate) use perplexity::Perplexity;
pub(crate) use sweep::Sweep;
