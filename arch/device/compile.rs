//! Joins the kernels' sources, compiles them for the GPU, and keeps the result on disk.
//!
//! ```text
//! kernels/*.cuh ──► one source ──► key = options + source ──► file of that hash? ──► image
//!                   with numbers                                └ no: compile, write
//! ```
//!
//! Several missing images are compiled side by side, a thread for each.

use super::driver::{Device, Kernels, compile, compiler_version};
use super::failure::{Failure, Vendor};
use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

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

/// A compilation: a source, a target and numbers.
pub(super) struct Job {
    pub(super) source: Source,
    pub(super) target: String,
    pub(super) numbers: Numbers,
}

/// Compiles a source with these numbers, or reads the image from disk, and loads the kernels with these
/// names.
pub(super) fn load(
    device: &Device,
    source: Source,
    target: &str,
    numbers: &Numbers,
    names: &[&'static CStr],
) -> Result<Kernels, Failure> {
    let image = Request::new(source, target, numbers).image()?;
    // SAFETY: the compiler made the image, or a file whose hash is right contains it.
    unsafe { device.load(&image, names) }
}

/// Compiles what is missing of these, side by side. Later calls of [`load`] find it.
///
/// # Errors
/// [`Failure::NoCompiler`], [`Failure::Compile`].
pub(super) fn compile_all(jobs: &[Job]) -> Result<(), Failure> {
    let mut requests: Vec<Request> = Vec::new();
    for job in jobs {
        let request = Request::new(job.source, &job.target, &job.numbers);
        if requests.iter().all(|other| other.key != request.key) {
            requests.push(request);
        }
    }
    requests.retain(|request| request.known().is_none());
    if requests.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    let many = requests.len();
    let kept = folder().map_or_else(String::new, |folder| format!("; {} keeps them", folder.display()));
    tell(&format!("compiling {many} sources of GPU kernels, which takes seconds at the first use{kept}"));
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = requests.iter().map(|request| scope.spawn(|| request.compile())).collect();
        let failed = |_| Err(Failure::Compile("a thread that compiled has ended".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect::<Vec<_>>()
    });
    done.into_iter().try_for_each(|image| image.map(drop))?;
    tell(&format!("compiled them in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Sets what a process does with lines about kernels that are compiled. The first call decides.
pub fn on_compile(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

fn tell(line: &str) {
    if let Some(listener) = LISTENER.get() {
        listener(line);
    }
}

/// Images that this process compiled, by the hashes of their keys.
static COMPILED: Mutex<BTreeMap<u64, Arc<[u8]>>> = Mutex::new(BTreeMap::new());

fn compiled() -> MutexGuard<'static, BTreeMap<u64, Arc<[u8]>>> {
    COMPILED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A source for a compiler.
struct Request {
    vendor: Vendor,
    source: String,
    target: String,
    options: Vec<String>,
    /// Options and source.
    key: String,
}

impl Request {
    fn new(source: Source, target: &str, numbers: &Numbers) -> Self {
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
        Self { vendor, source, target: target.to_string(), options, key }
    }

    fn hash(&self) -> u64 {
        fnv(self.key.as_bytes())
    }

    fn file(&self) -> Option<PathBuf> {
        folder().map(|folder| folder.join(format!("{:016x}.bin", self.hash())))
    }

    /// Returns the image if this process compiled it, or if a file has it.
    fn known(&self) -> Option<Arc<[u8]>> {
        let image = compiled().get(&self.hash()).cloned();
        image.or_else(|| {
            let bytes = fs::read(self.file()?).ok()?;
            kept(&self.key, compiler_version(self.vendor), &bytes).map(Arc::from)
        })
    }

    /// Returns the image. It is a cubin for `sm_..`, PTX for `compute_..` and [`PORTABLE`], which the driver compiles, and
    /// AMD's code object for `gfx..`.
    ///
    /// A file in a folder of the user keeps the image. Its name is a hash of source, target and numbers. The file starts with
    /// them, and is used only if they are equal, and if the compiler that is there has the same version. Without such a
    /// folder, or if writing fails, another process compiles the kernels again.
    ///
    /// # Errors
    /// [`Failure::NoCompiler`], [`Failure::Compile`].
    fn image(&self) -> Result<Arc<[u8]>, Failure> {
        self.known().map_or_else(|| self.compile(), Ok)
    }

    fn compile(&self) -> Result<Arc<[u8]>, Failure> {
        let source = CString::new(&*self.source).map_err(|error| Failure::Compile(error.to_string()))?;
        let image: Arc<[u8]> = compile(self.vendor, &source, &self.target, &self.options)?.into();
        if let Some(file) = self.file() {
            keep(&file, &self.key, compiler_version(self.vendor), &image);
        }
        compiled().insert(self.hash(), image.clone());
        Ok(image)
    }
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

/// Returns the image in a file's bytes, if the file is whole and has this key, and unless another version of the compiler made
/// it. Without a compiler, `compiler` is 0 and any version will do.
///
/// ```text
/// length of key u64 │ length of image u64 │ version of compiler u64 │ key │ image │ hash of all before u64
/// ```
fn kept(key: &str, compiler: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let (all, hash) = bytes.split_last_chunk::<8>()?;
    let (numbers, rest) = all.split_at_checked(24)?;
    let [of_key, of_image, version] = numbers.as_chunks::<8>().0 else { return None };
    let of_key = usize::try_from(u64::from_le_bytes(*of_key)).ok()?;
    let of_image = usize::try_from(u64::from_le_bytes(*of_image)).ok()?;
    let (mine, image) = rest.split_at_checked(of_key)?;
    let same = mine == key.as_bytes() && image.len() == of_image;
    let fits = compiler == 0 || u64::from_le_bytes(*version) == compiler;
    (same && fits && *hash == fnv(all).to_le_bytes()).then(|| image.to_vec())
}

/// Writes a file under another name first, so that readers find a whole file or none. Errors are ignored.
fn keep(file: &std::path::Path, key: &str, compiler: u64, image: &[u8]) {
    let mut bytes = Vec::with_capacity(32 + key.len() + image.len());
    let numbers = [key.len() as u64, image.len() as u64, compiler];
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(key.as_bytes());
    bytes.extend(image);
    bytes.extend(fnv(&bytes).to_le_bytes());
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
        keep(&file, "key", 12_009, b"image");
        let bytes = fs::read(&file).expect("written");
        for compiler in [12_009, 0] {
            assert_eq!(kept("key", compiler, &bytes).as_deref(), Some(&b"image"[..]));
        }
        assert_eq!(kept("yek", 12_009, &bytes), None);
        assert_eq!(kept("key", 13_000, &bytes), None, "another compiler");
        for cut in 0..bytes.len() {
            assert_eq!(kept("key", 0, &bytes[..cut]), None, "{cut} bytes");
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_eq!(kept("key", 0, &changed), None, "byte {cut}");
        }
        assert_eq!(fs::read_dir(&folder).expect("there").count(), 1, "no draft stays");
        fs::remove_dir_all(&folder).expect("mine");
        // A folder that cannot be created is no error.
        keep(std::path::Path::new("/proc/none/one.bin"), "key", 1, b"image");
    }
}
