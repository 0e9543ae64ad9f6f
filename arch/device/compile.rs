//! Joins the kernels' sources, compiles them for the GPU, and keeps the result on disk.
//!
//! ```text
//! kernels/*.cuh ──► one source ──► key = options + source ──► file of that hash? ──► image
//!                   with numbers                                └ no: compile, write
//! ```

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

/// Sources that are joined in this order and compiled together.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// `upload`, `download`, `attend`, `combine`.
    Attend,
    /// `encode_keys`, `encode_values`: float operations in the order of the source, without fused
    /// multiply-add.
    Encode,
    /// `check`, `take`, `widen`, `step`.
    Rows,
    /// `measure`, `ask`, `unfold`, `block`, `finish`.
    Block,
    /// `open`.
    Open,
    /// `write`, `show`, `stash`, `recall`, `gather`.
    Cells,
}

macro_rules! sources {
    ($($name:literal)*) => { concat!($(include_str!(concat!("kernels/", $name, ".cuh"))),*) };
}

impl Source {
    const fn joined(self) -> &'static str {
        match self {
            Self::Attend => sources!(
                "words" "layout" "nvidia" "portable" "streams" "slices" "chunk_rows" "packing" "lookup" "warp" "blocks" "chunks"
                "indexed" "groups" "outliers" "exchange" "attend"
            ),
            Self::Encode => sources!(
                "words" "layout" "nvidia" "streams" "slices" "chunk_rows" "packing" "triplets" "chunk_search" "paths" "encode"
            ),
            Self::Rows => sources!("words" "nvidia" "rows"),
            Self::Block => sources!(
                "words" "layout" "nvidia" "portable" "streams" "slices" "lookup" "warp" "blocks" "chunks" "indexed" "groups"
                "outliers" "unfold" "block"
            ),
            Self::Open => sources!(
                "words" "layout" "nvidia" "portable" "streams" "slices" "lookup" "warp" "blocks" "chunks" "indexed" "groups"
                "outliers" "unfold" "open"
            ),
            Self::Cells => sources!("words" "nvidia" "cells"),
        }
    }

    /// Returns the source for a vendor's compiler. For AMD, definitions of CUDA's words come first.
    fn of(self, vendor: Vendor, numbers: &Numbers) -> String {
        let source = numbers.with_halves(self.joined());
        match vendor {
            Vendor::Nvidia => source,
            Vendor::Amd => format!("namespace octaplex {{\n{}{source}}}\n", sources!("hip")),
        }
    }
}

/// The sources before those on keys, and the sources on one row of keys.
const BEFORE_KEYS: &str = sources!("words" "layout" "nvidia" "portable");
const OF_KEYS: &str = sources!("layout" "streams" "slices" "packing" "lookup" "chunks" "indexed" "half");

/// The numbers that a source is compiled with.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    pub(super) whole: Vec<(&'static str, u32)>,
    /// For keys with two halves: the numbers that differ for each half, the fine one first.
    pub(super) halves: Option<[Vec<(&'static str, u32)>; 2]>,
}

impl Numbers {
    /// Returns the source. For keys with halves, it has the sources on one row of keys twice: in a
    /// namespace for each half, with that half's numbers.
    fn with_halves(&self, source: &str) -> String {
        let Some((halves, behind)) = self.halves.as_ref().zip(source.strip_prefix(BEFORE_KEYS)) else {
            return source.to_string();
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
        // Numbers that only halves define.
        all + "#define OF_HALF 0\n#define VALUE_STEPS (is_grouped(VALUES) ? 0 : 2 * SLOT_TOKENS)\n" + behind
    }
}

/// A target that uses no instructions of one architecture: PTX with the matrix products and copies of
/// `kernels/portable.cuh`, as on AMD GPUs.
pub(super) const PORTABLE: &str = "portable";

/// Compiles a source with these numbers, or reads the image from disk, and loads the kernels with these
/// names.
pub(super) fn load(
    device: &Device,
    source: Source,
    target: &str,
    numbers: &Numbers,
    names: &[&'static CStr],
) -> Result<Kernels, Failure> {
    let image = image(source, target, numbers)?;
    // SAFETY: the compiler made the image, or a file whose hash is right contains it.
    unsafe { device.load(&image, names) }
}

/// Returns the image of the kernels with these numbers. It is a cubin for `sm_..`, PTX for `compute_..` and
/// [`PORTABLE`], which the driver compiles, and AMD's code object for `gfx..`.
///
/// A file in a folder of the user keeps the image. Its name is a hash of source, target and numbers. The
/// file starts with them, and is used only if they are equal. Without such a folder, or if writing fails,
/// the kernels are compiled again.
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
        // The options of ci/hip.sh.
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
    let source = source.of(vendor, numbers);
    let key = format!("{}\n{source}", options.join(" "));
    let file = folder().map(|folder| folder.join(format!("{:016x}.bin", fnv(key.as_bytes()))));
    if let Some(image) =
        file.as_ref().and_then(|file| fs::read(file).ok()).and_then(|bytes| kept(&key, &bytes))
    {
        return Ok(image);
    }
    let source = CString::new(source).map_err(|error| Failure::Compile(error.to_string()))?;
    let image = compile(vendor, &source, target, &options)?;
    if let Some(file) = file {
        keep(&file, &key, &image);
    }
    Ok(image)
}

/// Returns the folder of images: `OCTAPLEX_CACHE`, or the system's cache folder.
fn folder() -> Option<PathBuf> {
    let path = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = || {
        path("XDG_CACHE_HOME").or_else(|| path("LOCALAPPDATA")).or_else(|| Some(path("HOME")?.join(".cache")))
    };
    path("OCTAPLEX_CACHE").or_else(|| Some(cache()?.join("octaplex")))
}

/// Computes the FNV-1a hash.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the image in a file's bytes, if the file is whole and has this key.
///
/// ```text
/// length of key u64 │ length of image u64 │ key │ image │ hash of image u64
/// ```
fn kept(key: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (lengths, rest) = bytes.split_at_checked(16)?;
    let [of_key, of_image] = lengths.as_chunks::<8>().0 else { return None };
    let of_key = usize::try_from(u64::from_le_bytes(*of_key)).ok()?;
    let of_image = usize::try_from(u64::from_le_bytes(*of_image)).ok()?;
    let (mine, rest) = rest.split_at_checked(of_key)?;
    let (image, hash) = rest.split_at_checked(of_image)?;
    (mine == key.as_bytes() && *hash == fnv(image).to_le_bytes()).then(|| image.to_vec())
}

/// Writes a file under another name first, so that readers find a whole file or none. Errors are ignored.
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
        // A folder that cannot be created is no error.
        keep(std::path::Path::new("/proc/none/one.bin"), "key", b"image");
    }
}
