//! The kernels' source, compiled for the GPU that was found, and kept on disk.

use super::driver::{Device, Kernels, compile};
use super::failure::{Failure, Vendor};
use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::CStr;
use std::env;
use std::fs;
use std::path::PathBuf;

/// What is compiled together: one text, in this order.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// `upload`, `download`, `attend`, `combine`.
    Attend,
    /// `encode_keys`, `encode_values`: float operations as they are written.
    Encode,
    /// `check`, `take`, `widen`, `step`.
    Rows,
    /// `measure`, `ask`, `unfold`, `block`, `finish`.
    Block,
}

macro_rules! texts {
    ($($name:literal)*) => { concat!($(include_str!(concat!("kernels/", $name, ".cuh"))),*) };
}

impl Source {
    const fn text(self) -> &'static str {
        match self {
            Self::Attend => texts!(
                "words" "layout" "nvidia" "portable" "streams" "slices" "chunk_rows" "packing" "lookup" "warp" "blocks" "chunks"
                "indexed" "groups" "outliers" "exchange" "attend"
            ),
            Self::Encode => texts!(
                "words" "layout" "nvidia" "streams" "slices" "chunk_rows" "packing" "triplets" "chunk_search" "paths" "encode"
            ),
            Self::Rows => texts!("words" "nvidia" "rows"),
            Self::Block => texts!(
                "words" "layout" "nvidia" "portable" "streams" "slices" "lookup" "warp" "blocks" "chunks" "indexed" "groups"
                "outliers" "block"
            ),
        }
    }

    /// As a vendor's compiler takes it: AMD's with CUDA's words before it.
    fn of(self, vendor: Vendor, numbers: &Numbers) -> String {
        let text = numbers.with_halves(self.text());
        match vendor {
            Vendor::Nvidia => text,
            Vendor::Amd => format!("namespace octaplex {{\n{}{text}}}\n", texts!("hip")),
        }
    }
}

/// What stands before the texts on keys, and what is written for one row of keys.
const BEFORE_KEYS: &str = texts!("words" "layout" "nvidia" "portable");
const OF_KEYS: &str = texts!("layout" "streams" "slices" "packing" "lookup" "chunks" "indexed" "half");

/// The numbers that a text is compiled with.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    pub(super) whole: Vec<(&'static str, u32)>,
    /// Of keys that are two halves, those that each half has otherwise, the fine one first.
    pub(super) halves: Option<[Vec<(&'static str, u32)>; 2]>,
}

impl Numbers {
    /// The text with what is written for one row of keys in a namespace for each half, under its own numbers.
    fn with_halves(&self, text: &str) -> String {
        let Some((halves, behind)) = self.halves.as_ref().zip(text.strip_prefix(BEFORE_KEYS)) else {
            return text.to_string();
        };
        let mut all = BEFORE_KEYS.to_string();
        for (name, numbers) in ["fine", "coarse"].into_iter().zip(halves) {
            for (number, value) in numbers {
                all += &format!("#undef {number}\n#define {number} {value}\n");
            }
            all += &format!("namespace {name} {{\n{OF_KEYS}}}\n");
            for (number, _) in numbers {
                all += &format!("#undef {number}\n");
                if let Some((_, value)) = self.whole.iter().find(|(of_whole, _)| of_whole == number) {
                    all += &format!("#define {number} {value}\n");
                }
            }
        }
        // What has no number of its own in the whole.
        all + "#define OF_HALF 0\n#define VALUE_STEPS (is_grouped(VALUES) ? 0 : 2 * SLOT_TOKENS)\n" + behind
    }
}

/// A target of no architecture's own: matrix products and copies by `kernels/portable.cuh`, as AMD's GPUs would have them; PTX.
pub(super) const PORTABLE: &str = "portable";

/// Compiles a source with these numbers defined, or takes it from the disk, and loads the kernels of these names.
pub(super) fn load(
    device: &Device,
    source: Source,
    target: &str,
    numbers: &Numbers,
    names: &[&'static CStr],
) -> Result<Kernels, Failure> {
    let image = image(source, target, numbers)?;
    // SAFETY: the image is the compiler's, or a file's that holds it as it was.
    unsafe { device.load(&image, names) }
}

/// The image of the kernels with these numbers defined: for `sm_..` a cubin, for `compute_..` and [`PORTABLE`] PTX, which the driver
/// compiles, for `gfx..` a code object of AMD's.
///
/// A folder of the user's keeps it, under a name that is a hash of source, target and numbers; the file begins with them as they
/// are, and is believed only where they are the same. Without such a folder, or where it cannot be written, they are compiled
/// again.
///
/// # Errors
/// [`Failure::NoCompiler`], [`Failure::Compile`].
fn image(source: Source, target: &str, numbers: &Numbers) -> Result<Vec<u8>, Failure> {
    let (target, portable) = if target == PORTABLE { ("compute_80", true) } else { (target, false) };
    let vendor = if target.starts_with("gfx") { Vendor::Amd } else { Vendor::Nvidia };
    let exact = matches!(source, Source::Encode);
    let options: &[&str] = match vendor {
        Vendor::Nvidia if exact => &["--std=c++17", "-default-device", "--fmad=false"],
        Vendor::Nvidia => &["--std=c++17", "-default-device"],
        // As ci/hip.sh compiles them.
        Vendor::Amd => &["-std=c++17", "-O3", "-ffp-contract=off"],
    };
    let mut options: Vec<String> = options.iter().map(ToString::to_string).collect();
    options.push(match vendor {
        Vendor::Nvidia => format!("--gpu-architecture={target}"),
        Vendor::Amd => format!("--offload-arch={target}"),
    });
    if portable {
        options.push("-DPORTABLE=1".to_string());
    }
    options.extend(numbers.whole.iter().map(|(name, value)| format!("-D{name}={value}")));
    let text = source.of(vendor, numbers);
    let key = format!("{}\n{text}", options.join(" "));
    let file = folder().map(|folder| folder.join(format!("{:016x}.bin", fnv(key.as_bytes()))));
    if let Some(image) =
        file.as_ref().and_then(|file| fs::read(file).ok()).and_then(|bytes| kept(&key, &bytes))
    {
        return Ok(image);
    }
    let text = CString::new(text).map_err(|error| Failure::Compile(error.to_string()))?;
    let image = compile(vendor, &text, target, &options)?;
    if let Some(file) = file {
        keep(&file, &key, &image);
    }
    Ok(image)
}

/// Where images are kept: `OCTAPLEX_CACHE`, or the folder that the system has for such things.
fn folder() -> Option<PathBuf> {
    let path = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = || {
        path("XDG_CACHE_HOME").or_else(|| path("LOCALAPPDATA")).or_else(|| Some(path("HOME")?.join(".cache")))
    };
    path("OCTAPLEX_CACHE").or_else(|| Some(cache()?.join("octaplex")))
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A file: the key's length and the image's, u64 each, then both, then the image's hash.
fn kept(key: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (lengths, rest) = bytes.split_at_checked(16)?;
    let [of_key, of_image] = lengths.as_chunks::<8>().0 else { return None };
    let of_key = usize::try_from(u64::from_le_bytes(*of_key)).ok()?;
    let of_image = usize::try_from(u64::from_le_bytes(*of_image)).ok()?;
    let (mine, rest) = rest.split_at_checked(of_key)?;
    let (image, hash) = rest.split_at_checked(of_image)?;
    (mine == key.as_bytes() && *hash == fnv(image).to_le_bytes()).then(|| image.to_vec())
}

/// Writes it under another name first: who reads meanwhile finds a whole file or none. What fails is as if it were not tried.
fn keep(file: &std::path::Path, key: &str, image: &[u8]) {
    let mut bytes = Vec::with_capacity(24 + key.len() + image.len());
    [key.len(), image.len()].iter().for_each(|length| bytes.extend((*length as u64).to_le_bytes()));
    bytes.extend(key.as_bytes());
    bytes.extend(image);
    bytes.extend(fnv(image).to_le_bytes());
    let draft = file.with_extension(std::process::id().to_string());
    let written = file.parent().map(fs::create_dir_all).transpose().and_then(|_| fs::write(&draft, &bytes));
    if written.and_then(|()| fs::rename(&draft, file)).is_err() {
        let _ = fs::remove_file(&draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_believed_only_as_they_were_written() {
        let folder = env::temp_dir().join(format!("octaplex-images-{}", std::process::id()));
        let file = folder.join("one.bin");
        keep(&file, "key", b"image");
        let bytes = fs::read(&file).expect("written");
        assert_eq!(kept("key", &bytes).as_deref(), Some(&b"image"[..]));
        assert_eq!(kept("yek", &bytes), None);
        for cut in 0..bytes.len() {
            assert_eq!(kept("key", &bytes[..cut]), None, "{cut} bytes");
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_eq!(kept("key", &changed), None, "byte {cut}");
        }
        assert_eq!(fs::read_dir(&folder).expect("there").count(), 1, "no draft stays");
        fs::remove_dir_all(&folder).expect("mine");
        // A folder that cannot be made is no error.
        keep(std::path::Path::new("/proc/none/one.bin"), "key", b"image");
    }
}
