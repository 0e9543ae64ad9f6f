//! Errors of GPUs, and a GPU that is lost in the middle of a step.
//!
//! Each test starts itself again as a process of its own, because a lost GPU stays lost as long as the
//! process lives.

use super::engine::{Memory, Stream};
use super::{BLOCK_TOLERANCE, Case, case, device, error};
use octaplex::cache::SharedLayer;
use octaplex::gpu::{self, DeviceRows, Failure, Float, Layer, Step, Vendor};
use octaplex::{Attend, Error};
use std::mem::ManuallyDrop;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in such a process.
const ALONE: &str = "OCTAPLEX_TEST_ALONE";
/// The shared memory of the GPU that ci/hip-on-cpu, the stand-in for AMD's libraries, reports.
const SHARED: &str = "OCTAPLEX_STAND_IN_SHARED";
/// The launch at which the GPU is lost.
const LOST: &str = "OCTAPLEX_STAND_IN_LOST";
/// Longer than compiling all kernels takes.
const PATIENCE: Duration = Duration::from_secs(400);

/// Runs a test of this file in a process of its own. It checks that the process ends well in time, and
/// returns its output.
fn alone(test: &str, variable: (&str, &str)) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("failures::{test}"), "--nocapture", "--test-threads=1"])
        .envs([(ALONE, "1"), variable])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = child.wait_with_output().unwrap();
    let [said, wrong] = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(done.status.success(), "{} after {:?}:\n{said}\n{wrong}", done.status, start.elapsed());
    said
}

fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Returns whether the GPU is a stand-in for AMD's libraries on the CPU.
fn is_on_cpu(device: &gpu::Device) -> bool {
    device.architecture().contains("on-cpu")
}

/// With 64 KB of shared memory for a block of threads, as on AMD, a layer whose steps need more returns an
/// error. It does so when the layer is created, or when its kernels are loaded. Blocks of queries always
/// fit.
#[test]
fn kernels_that_need_more_shared_memory_than_there_is() {
    let Some(device) = device() else { return };
    if is_on_cpu(&device) && !is_alone() {
        let test = "kernels_that_need_more_shared_memory_than_there_is";
        assert!(alone(test, (SHARED, "65536")).contains("64 KB: refused"));
        return;
    }
    let config = |codec: &str, dim| case(codec, codec, dim, (2, 1), 300).config;
    let mut refused = 0;
    for (codec, dim) in [("turboquant:bits=8", 256), ("turboquant:bits=8", 128), ("turboquant:bits=2", 64)] {
        match Layer::new(&device, &config(codec, dim), 1, 300) {
            Ok(_) => assert!(!is_alone() || dim == 64, "{codec}, {dim}"),
            Err(gpu::Error::Device(Failure::SharedMemory { needed, most })) => {
                assert!(needed > most && most >= 48 << 10 && dim > 64, "{codec}, {dim}: {needed} of {most}");
                refused += 1;
            }
            Err(error) => panic!("{codec}, {dim}: {error}"),
        }
    }
    if !is_alone() {
        return println!("{refused} of 3 are refused");
    }
    for dim in [128, 192, 256] {
        let case = case("turboquant:bits=2", "turboquant:bits=2", dim, (2, 1), 300);
        let (layer, queries, options) = (case.layer(), case.block(3), Attend::default().queries(3));
        let mut gpu = Layer::new(&device, &case.config, 1, 300).unwrap();
        // Kernels have shared memory of their own too, whose size is known only after loading.
        let brought = gpu.upload(0, &layer);
        if dim == 256 && matches!(brought, Err(gpu::Error::Device(Failure::SharedMemory { .. }))) {
            println!("a width of 256 is refused");
            break;
        }
        brought.unwrap();
        let mut output = vec![f32::NAN; queries.len()];
        gpu.attend_with(&queries, &options, &mut output).unwrap();
        let wrong = error(&output, &case.in_f64(&layer, &queries, &options), dim);
        assert!(wrong < BLOCK_TOLERANCE, "{dim}: {wrong:e}");
    }
    println!("64 KB: refused");
}

/// A layer that has run every call once, so that nothing is compiled later, and the arguments of the calls.
struct Asked {
    device: gpu::Device,
    case: Case,
    gpu: Layer,
    step: Step,
    cpu: SharedLayer,
    snapshot: Vec<u8>,
    page: Vec<u8>,
    stream: Stream,
    /// The engine's memory, which a lost GPU's driver does not free.
    rows: ManuallyDrop<Memory>,
    queries: ManuallyDrop<Memory>,
    output: ManuallyDrop<Memory>,
}

type Results = Vec<(&'static str, Result<(), gpu::Error>)>;

const HEADS: usize = 4;
const DIM: usize = 64;
const TOKENS: usize = 700;

impl Asked {
    fn new() -> Result<Self, gpu::Error> {
        // Not the device of other tests, because it is dropped too.
        let device = gpu::Device::new(0)?;
        let mut case = case("turboquant", "turboquant:bits=3", DIM, (HEADS, 2), TOKENS);
        case.config.capacity = 2 * TOKENS;
        let cpu = case.layer();
        let mut gpu = Layer::new(&device, &case.config, 2, 2 * TOKENS + 256)?;
        gpu.upload(0, &cpu)?;
        gpu.reserve(HEADS)?;
        let step = gpu.capture(&Attend::default())?;
        let (mut snapshot, mut page) = (Vec::new(), 0);
        cpu.save(&mut |piece| snapshot.extend_from_slice(piece));
        case.config.page_layout(|part, _| page += part);
        Ok(Self {
            device,
            case,
            gpu,
            step,
            cpu,
            snapshot,
            page: vec![0; page],
            stream: Stream::new(),
            rows: ManuallyDrop::new(Memory::of(&vec![0.25; 2 * 70 * DIM], Float::F32)),
            queries: ManuallyDrop::new(Memory::of(&vec![0.25; 2 * HEADS * DIM], Float::F32)),
            output: ManuallyDrop::new(Memory::new(4 * 2 * HEADS * DIM)),
        })
    }

    fn attend(&mut self, options: &Attend) -> Result<(), gpu::Error> {
        let count = HEADS * options.queries.unwrap_or(1) * DIM;
        let mut output = vec![0.0; 2 * count];
        self.gpu.attend_with(&vec![0.25; 2 * count], options, &mut output)
    }

    fn attend_on(&mut self) -> Result<(), gpu::Error> {
        let [queries, output] = [&self.queries, &self.output].map(|memory| memory.slice(0, Float::F32));
        self.gpu.attend_on(queries, &Attend::default(), output, self.stream.callers())
    }

    fn append_on(&mut self) -> Result<(), gpu::Error> {
        let slice = self.rows.slice(0, Float::F32);
        let rows =
            DeviceRows { keys: slice, values: slice, tokens: 70, token_stride: DIM, head_stride: 70 * DIM };
        self.gpu.append_on(0, &rows, self.stream.callers())
    }

    fn append(&mut self, tokens: usize) -> Result<(), gpu::Error> {
        let rows = vec![0.25; 2 * tokens * DIM];
        self.gpu.append(0, &rows, &rows)
    }

    /// All calls that use the GPU, in an order that can be repeated.
    fn everything(&mut self) -> Results {
        let bias = vec![0.5; TOKENS];
        let one = Attend::default();
        let mut output = vec![0.0; 2 * HEADS * DIM];
        let few = vec![0.25; 2 * HEADS * DIM];
        let rows = vec![0.25; 2 * 128 * DIM];
        let mut results: Results = Vec::new();
        let mut add = |name, result: Result<(), gpu::Error>| {
            if let Err(error) = &result {
                println!("{name}: {error}");
            }
            results.push((name, result));
        };
        add("attend", self.attend(&one));
        add("a window", self.attend(&one.window(100)));
        add("a soft cap", self.attend(&one.soft_cap(4.0)));
        add("sinks", self.attend(&one.sink_logits(&[0.5; HEADS])));
        add("a bias", self.attend(&one.bias(&bias)));
        add("a block", self.attend(&one.queries(3).position(600)));
        add("a block, timed", self.gpu.time_block(&few, &one.position(600), 2).map(drop));
        add("launch", self.gpu.launch(&self.step, &few, &mut output));
        add("time", self.gpu.time(&self.step, 2).map(drop));
        add("capture", self.gpu.capture(&one).map(drop));
        add("attend_on", self.attend_on());
        add("synchronize", self.device.synchronize().map_err(gpu::Error::Device));
        add("append_on", self.append_on());
        add("append a token", self.append(1));
        add("append a page", self.append(100));
        add("time_append", self.gpu.time_append(&rows, &rows, 2).map(drop));
        add("page", self.gpu.page(0, 1, &mut self.page));
        add("save", self.gpu.save(0, &mut |_| {}));
        add("download", self.gpu.download(0).map(drop));
        add("fork", self.gpu.fork(0, 1));
        add("truncate", self.gpu.truncate(0, TOKENS - 10));
        add("evict", self.gpu.evict(0, 100..400).map(drop));
        add("clear", self.gpu.clear(1));
        add("load", self.gpu.load(0, &self.snapshot));
        add("upload", self.gpu.upload(0, &self.cpu));
        add("reserve more", self.gpu.reserve(2 * HEADS));
        add("reserve as before", self.gpu.reserve(HEADS));
        add("capture again", self.gpu.capture(&one).map(|step| self.step = step));
        add("a layer", Layer::new(&self.device, &self.case.config, 1, 300).map(drop));
        results
    }
}

/// Returns the first call that fails on a lost GPU, if any. All later calls must fail too.
fn first_refused(results: &Results) -> Option<&'static str> {
    let is_gpu = |result: &Result<(), gpu::Error>| matches!(result, Err(gpu::Error::Device(_)));
    let first = results.iter().position(|(_, result)| result.is_err())?;
    for (name, result) in &results[first..] {
        // Some calls have nothing to do. The layer may also have been lost with other tokens than at first.
        let is_nothing = ["reserve as before", "truncate", "evict"].contains(name) && result.is_ok()
            || *name == "a bias" && matches!(result, Err(gpu::Error::Library(Error::Length { .. })));
        assert!(is_gpu(result) || is_nothing, "{name}, after {}: {result:?}", results[first].0);
    }
    Some(results[first].0)
}

/// An engine's kernel fails while a step waits for it. All later calls return errors, and everything can be
/// dropped.
#[test]
fn a_gpu_lost_in_mid_step() {
    let Some(device) = device() else { return };
    if device.vendor() == Vendor::Amd {
        return println!("skipped: this needs a kernel in NVIDIA's PTX");
    }
    if !is_alone() {
        let said = alone("a_gpu_lost_in_mid_step", (ALONE, "1"));
        assert!(said.contains("lost, and dropped"), "{said}");
        return;
    }
    let mut asked = Asked::new().unwrap();
    assert_eq!(first_refused(&asked.everything()), None);
    asked.stream.lose_gpu();
    let step = asked.attend_on();
    assert!(matches!(step, Ok(()) | Err(gpu::Error::Device(_))), "{step:?}");
    // It has its memory, but cannot fill it: the earlier reservation stays.
    let more = asked.gpu.reserve(2 * HEADS);
    assert!(matches!(more, Err(gpu::Error::Device(_))), "{more:?}");
    assert!(!asked.stream.is_well());
    for _ in 0..2 {
        assert_eq!(first_refused(&asked.everything()), Some("attend"));
    }
    assert_eq!((asked.gpu.tokens(0), asked.gpu.tokens(1)), (Ok(TOKENS), Ok(0)));
    match gpu::Device::new(0).map(|device| Layer::new(&device, &asked.case.config, 1, 300)) {
        Err(failure) => println!("another device: {failure}"),
        Ok(Err(gpu::Error::Device(failure))) => println!("another layer: {failure}"),
        Ok(other) => panic!("{other:?}"),
    }
    drop(asked);
    println!("lost, and dropped");
}

/// A GPU on the CPU is lost at any of the launches.
#[test]
fn a_gpu_lost_at_some_launch() {
    let Some(device) = device() else { return };
    if !is_on_cpu(&device) {
        return println!("skipped: this needs a GPU that says when it is lost");
    }
    if !is_alone() {
        // Launches at some distance, until the GPU is lost after the last.
        for launch in (1..).step_by(7) {
            let said = alone("a_gpu_lost_at_some_launch", (LOST, &launch.to_string()));
            let last = said.lines().rfind(|line| line.starts_with("lost")).unwrap();
            println!("launch {launch}: {last}");
            if last == "lost nowhere" {
                return assert!(launch > 30);
            }
        }
    }
    let mut asked = match Asked::new() {
        Ok(asked) => asked,
        Err(error) => {
            assert!(matches!(error, gpu::Error::Device(_)), "{error:?}");
            return println!("\nlost before everything was there");
        }
    };
    let first = first_refused(&asked.everything());
    if let Some(first) = first {
        assert_eq!(first_refused(&asked.everything()), Some("attend"));
        drop(asked);
        return println!("\nlost at {first}, and dropped");
    }
    println!("\nlost nowhere");
}
