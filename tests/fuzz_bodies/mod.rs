//! The bodies of the fuzz targets. `fuzz/` runs them on libFuzzer's inputs, `tests/fuzz_replay.rs` on the committed
//! corpus. Codecs join by themselves: the first bytes of an input choose one of all codecs and its keys.
//!
//! Codecs, their tables and sets, and empty caches take longer to make than to use. Each thread makes them once.
#![allow(dead_code, unreachable_pub)] // each binary takes what it needs
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod bytes;
mod cache;
mod codecs;

pub use bytes::{chunk, snapshot, spec};
pub use cache::cache;
pub use codecs::{backends, decode, roundtrip};

use arbitrary::Unstructured;
use octaplex::codebook::WIDTHS;
use octaplex::{CodecSpec, Error};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::OnceLock;

/// Structured data from the fuzzer. Behind the input's end, choices are 0. Floats and bytes are fixed values there, so that
/// a short input does not leave most of a test to zeros.
struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap()
    }

    fn below(&mut self, count: usize) -> usize {
        self.0.int_in_range(0..=count - 1).unwrap()
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Returns a float. Even bits are any f32. Odd bits are a number that codecs take.
    fn float(&mut self) -> f32 {
        let bits: u32 = self.0.arbitrary().unwrap();
        if bits & 1 == 0 { f32::from_bits(bits) } else { (bits as i32 >> 1) as f32 / 65536.0 }
    }

    /// Returns a value for each byte that is left, then fixed ones, so that short inputs fill whole rows.
    fn floats(&mut self, count: usize) -> Vec<f32> {
        if self.0.len() >= 4 * count {
            return (0..count).map(|_| self.float()).collect();
        }
        let fixed = |i: usize| (i * 37 % 64) as f32 / 16.0 - 1.96875;
        (0..count)
            .map(|i| if self.is_empty() { fixed(i) } else { f32::from(self.byte() as i8) / 16.0 })
            .collect()
    }

    fn finite_floats(&mut self, count: usize) -> Vec<f32> {
        let mut floats = self.floats(count);
        floats.iter_mut().filter(|x| x.is_nan() || x.abs() >= 1000.0).for_each(|x| *x = 1.0);
        floats
    }

    /// The fixed bytes are below 64: floats of any two or four are finite, and no scale is negative.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count).map(|i| 1 + (i * 37 % 63) as u8).collect();
        let there = self.0.len().min(count);
        self.0.fill_buffer(&mut bytes[..there]).unwrap();
        bytes
    }

    fn rest(self) -> &'a [u8] {
        self.0.take_rest()
    }
}

/// A thread's values by their inputs. All are dropped when there are too many.
struct Kept<K, V>(RefCell<HashMap<K, V>>);

impl<K: Eq + Hash, V: Clone> Kept<K, V> {
    const MOST: usize = 1000;

    fn new() -> Self {
        Self(RefCell::new(HashMap::new()))
    }

    fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let mut kept = self.0.borrow_mut();
        if kept.len() >= Self::MOST {
            kept.clear();
        }
        kept.entry(key).or_insert_with(make).clone()
    }
}

/// The texts `key=value` of every key of every codec. Dense rotations are left out: making one takes longer than all the rest.
fn choices() -> &'static [Vec<Vec<String>>] {
    static CHOICES: OnceLock<Vec<Vec<Vec<String>>>> = OnceLock::new();
    CHOICES.get_or_init(|| {
        let values = |range: &str| -> Vec<String> {
            match range.split_once("..=") {
                _ if range == "0..2^64" => ["0", "1", "18446744073709551615"].map(str::to_owned).into(),
                Some((low, high)) => {
                    let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
                    // Not all of a thousand: large ones take long.
                    (low..=high.min(low + 254)).map(|x| x.to_string()).collect()
                }
                None => {
                    range.split(", ").filter(|x| !["haar", "gauss"].contains(x)).map(str::to_owned).collect()
                }
            }
        };
        let texts = |key: &octaplex::codecs::Key| {
            values(key.values).iter().map(|x| format!("{}={x}", key.name)).collect()
        };
        CodecSpec::all().iter().map(|codec| codec.keys.iter().map(texts).collect()).collect()
    })
}

/// The spec that the input asks for; `None` where its keys exclude each other.
fn choose_spec(input: &mut Input) -> Option<CodecSpec> {
    let codec = input.below(CodecSpec::all().len());
    let mut text = CodecSpec::all()[codec].name.to_owned();
    let mut separator = ':';
    for choices in &choices()[codec] {
        let choice = usize::from(input.byte());
        if choice > 0 {
            text.push(separator);
            text.push_str(&choices[choice % choices.len()]);
            separator = ',';
        }
    }
    match text.parse::<CodecSpec>() {
        Ok(spec) => Some(spec),
        Err(Error::Conflict { .. }) => None,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// Every width, the narrow ones more often: they take less time.
fn choose_width(input: &mut Input) -> usize {
    let choice = usize::from(input.byte());
    if choice < 128 { WIDTHS[choice % 4] } else { WIDTHS[choice % WIDTHS.len()] }
}

/// Whether the length of a page depends on its data.
fn keeps_outliers(spec: CodecSpec) -> bool {
    match spec {
        CodecSpec::Hqmq(spec) => spec.med > 0,
        CodecSpec::Int(spec) => spec.med > 0,
        _ => false,
    }
}

fn is_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}
