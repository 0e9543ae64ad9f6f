//! An engine with its own memory and streams, which it gets by direct calls of the driver.

use super::{Case, WIDTHS, assert_pages, case, device, each_width};
use octaplex::cache::SharedLayer;
use octaplex::gpu::{CallerStream, DeviceRows, DeviceSlice, Error, Float, Layer, Vendor};
use octaplex::{Attend, Backend, Floats, LayerConfig, bf16, f16};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    pub(super) fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    pub(super) fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Calls the driver with words as arguments, by CUDA's name, and checks success.
pub(super) fn call(name: &CStr, words: &[u64]) {
    assert_eq!(answer(name, words), 0, "{name:?}");
}

/// Calls the driver and returns its answer. HIP's equivalent call takes the same words.
fn answer(name: &CStr, words: &[u64]) -> c_int {
    let nvidia = device().is_none_or(|device| device.vendor() == Vendor::Nvidia);
    let of_hip = match name.to_str().unwrap().trim_end_matches("_v2") {
        "cuMemAlloc" => "hipMalloc".into(),
        "cuMemFree" => "hipFree".into(),
        "cuCtxSynchronize" => "hipDeviceSynchronize".into(),
        "cuStreamCreate" => "hipStreamCreateWithFlags".into(),
        "cuLaunchKernel" => "hipModuleLaunchKernel".into(),
        name => name.replacen("cu", "hip", 1),
    };
    let of_hip = CString::new(of_hip).unwrap();
    let files = [c"libamdhip64.so", c"libamdhip64.so.7", c"libamdhip64.so.6"];
    let (name, files) = if nvidia { (name, &[c"libcuda.so.1"][..]) } else { (&*of_hip, &files[..]) };
    let mut all = [0; 11];
    all[..words.len()].copy_from_slice(words);
    let [a, b, c, d, e, f, g, h, i, j, k] = all;
    // SAFETY: these are the driver's functions. Their parameters are words, and pointers to local data that lives long
    // enough. A parameter too many is in a register or on the stack, where the function does not read it.
    unsafe {
        let library = files.iter().map(|file| dlopen(file.as_ptr(), 2)).find(|library| !library.is_null());
        let function = dlsym(library.unwrap(), name.as_ptr());
        assert!(!function.is_null(), "{name:?}");
        type W = u64;
        let function: unsafe extern "C" fn(W, W, W, W, W, W, W, W, W, W, W) -> c_int =
            core::mem::transmute(function);
        function(a, b, c, d, e, f, g, h, i, j, k)
    }
}

/// Returns the address that a call writes to.
pub(super) fn out(word: &mut u64) -> u64 {
    std::ptr::from_mut(word) as u64
}

/// Memory of the GPU.
pub(super) struct Memory {
    address: u64,
    pub(super) bytes: usize,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Self {
        let mut address = 0;
        call(c"cuMemAlloc_v2", &[out(&mut address), bytes.max(1) as u64]);
        call(c"cuMemsetD8_v2", &[address, 0xff, bytes as u64]);
        call(c"cuCtxSynchronize", &[]);
        Self { address, bytes }
    }

    pub(super) fn of(values: &[f32], float: Float) -> Self {
        let bytes = bytes_of(values, float);
        let memory = Self::new(bytes.len());
        memory.write(&bytes);
        memory
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        call(c"cuMemcpyHtoD_v2", &[self.address, bytes.as_ptr() as u64, bytes.len() as u64]);
        // Streams that do not wait for the default stream start after this.
        call(c"cuCtxSynchronize", &[]);
    }

    pub(super) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        call(c"cuMemcpyDtoH_v2", &[bytes.as_mut_ptr() as u64, self.address, self.bytes as u64]);
        bytes
    }

    /// Returns a slice from float `from` on.
    pub(super) fn slice(&self, from: usize, float: Float) -> DeviceSlice {
        self.at_byte(from * float.bytes(), float)
    }

    pub(super) fn at_byte(&self, from: usize, float: Float) -> DeviceSlice {
        let len = (self.bytes - from) / float.bytes();
        // SAFETY: this owns the memory. Tests keep it until the layer is done and the stream was waited
        // for.
        unsafe { DeviceSlice::new(self.address + from as u64, len, float) }
    }
}

impl Memory {
    /// Returns the second `count` floats.
    pub(super) fn second(&self, count: usize, float: Float) -> DeviceSlice {
        assert!(2 * count * float.bytes() <= self.bytes);
        // SAFETY: as `at_byte`, and within the memory.
        unsafe { DeviceSlice::new(self.address + (count * float.bytes()) as u64, count, float) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        call(c"cuMemFree_v2", &[self.address]);
    }
}

/// A kernel that fails when it runs, in PTX, which NVIDIA's drivers compile.
const TRAP: &CStr =
    c".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry lost()\n{\n    trap;\n    ret;\n}\n";

pub(super) struct Stream(pub(super) u64);

impl Stream {
    pub(super) fn new() -> Self {
        let mut stream = 0;
        call(c"cuStreamCreate", &[out(&mut stream), 1]);
        Self(stream)
    }

    pub(super) fn callers(&self) -> CallerStream {
        // SAFETY: created above, or the default stream, on the only GPU that tests use.
        unsafe { CallerStream::new(self.0 as usize) }
    }

    pub(super) fn wait(&self) {
        assert!(self.is_well());
    }

    /// Waits, and returns whether all work on the stream succeeded.
    pub(super) fn is_well(&self) -> bool {
        answer(c"cuStreamSynchronize", &[self.0]) == 0
    }

    /// Adds idle work, then a kernel that fails. The GPU is lost then.
    pub(super) fn lose_gpu(&self) {
        let [mut module, mut function] = [0; 2];
        call(c"cuModuleLoadData", &[out(&mut module), TRAP.as_ptr() as u64]);
        call(c"cuModuleGetFunction", &[out(&mut function), module, c"lost".as_ptr() as u64]);
        self.nap();
        call(c"cuLaunchKernel", &[function, 1, 1, 1, 1, 1, 1, 0, self.0]);
    }

    /// Adds idle work.
    pub(super) fn nap(&self) {
        call(c"cuLaunchHostFunc", &[self.0, nap as *const () as u64, 0]);
    }

    /// Adds a copy.
    pub(super) fn copy(&self, to: &Memory, from: &Memory) {
        call(c"cuMemcpyDtoDAsync_v2", &[to.address, from.address, to.bytes as u64, self.0]);
    }

    /// Fills memory with bytes that are NaN.
    pub(super) fn spoil(&self, memory: &Memory) {
        call(c"cuMemsetD8Async", &[memory.address, 0xff, memory.bytes as u64, self.0]);
    }
}

extern "C" fn nap(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(40));
}

pub(super) fn bytes_of(values: &[f32], float: Float) -> Vec<u8> {
    let each = |x: &f32| match float {
        Float::F32 => x.to_le_bytes().to_vec(),
        Float::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        Float::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

/// Returns values as bytes of a float type.
pub(super) fn rounded(values: &[f32], float: Float) -> Vec<f32> {
    let each = |x: &f32| match float {
        Float::F32 => *x,
        Float::F16 => f16::from_f32(*x).to_f32(),
        Float::Bf16 => bf16::from_f32(*x).to_f32(),
    };
    values.iter().map(each).collect()
}

pub(super) const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];

/// Returns tokens from `first` on, of \[heads]\[tokens]\[width].
pub(super) fn piece(
    rows: &[f32],
    config: &LayerConfig,
    tokens: usize,
    first: usize,
    count: usize,
) -> Vec<f32> {
    let dim = config.key_dim;
    let head = |head| rows[(head * tokens + first) * dim..][..count * dim].iter().copied();
    (0..config.kv_heads).flat_map(head).collect()
}

/// Transposes \[heads]\[tokens]\[width] to an engine's order, \[tokens]\[keys, values]\[heads]\[width].
pub(super) fn by_token(sides: &[Vec<f32>; 2], config: &LayerConfig, count: usize) -> Vec<f32> {
    let (heads, dim) = (config.kv_heads, config.key_dim);
    let mut all = Vec::new();
    for token in 0..count {
        for side in sides {
            (0..heads).for_each(|head| all.extend_from_slice(&side[(head * count + token) * dim..][..dim]));
        }
    }
    all
}

/// Appends rows from the GPU's memory, in one of two orders.
pub(super) fn append(
    gpu: &mut Layer,
    sides: &[Vec<f32>; 2],
    count: usize,
    float: Float,
    stream: &Stream,
) -> Result<(), Error> {
    let config = *gpu.config();
    let (heads, dim) = (config.kv_heads, config.key_dim);
    if count.is_multiple_of(2) {
        let memory = Memory::of(&by_token(sides, &config, count), float);
        let (keys, values) = (memory.slice(0, float), memory.slice(heads * dim, float));
        let rows =
            DeviceRows { keys, values, tokens: count, token_stride: 2 * heads * dim, head_stride: dim };
        return gpu.append_on(0, &rows, stream.callers());
    }
    let [keys, values] = [&sides[0], &sides[1]].map(|side| Memory::of(side, float));
    let [k, v] = [keys.slice(0, float), values.slice(0, float)];
    let rows = DeviceRows { keys: k, values: v, tokens: count, token_stride: dim, head_stride: count * dim };
    gpu.append_on(0, &rows, stream.callers())
}

fn append_on_cpu(cpu: &mut SharedLayer, sides: &[Vec<f32>; 2], float: Float, heads: usize) {
    let mut scratch = vec![0.0; cpu.config().scratch_len(heads)];
    let halves = sides.clone().map(|side| side.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>());
    let brains = sides.clone().map(|side| side.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
    let tensors = [0, 1].map(|side| match float {
        Float::F32 => Floats::from(&sides[side]),
        Float::F16 => Floats::from(&halves[side][..]),
        Float::Bf16 => Floats::from(&brains[side][..]),
    });
    cpu.append(tensors[0], tensors[1], &mut scratch).unwrap();
}

fn compare(gpu: &mut Layer, cpu: &SharedLayer) {
    let pages = cpu.stats().paged_tokens / cpu.config().page;
    assert_eq!((gpu.pages(0).unwrap(), gpu.tokens(0).unwrap()), (pages, cpu.stats().tokens));
    assert_pages(gpu, 0, cpu);
}

/// Compares attention with queries and output in the GPU's memory with attention on host slices.
pub(super) fn attend(gpu: &mut Layer, case: &Case, options: &Attend, float: Float, stream: &Stream) {
    let queries = rounded(&case.block(options.queries.unwrap_or(1)), float);
    let mut expected = vec![f32::NAN; queries.len()];
    gpu.attend_with(&queries, options, &mut expected).unwrap();
    let (asked, output) = (Memory::of(&queries, float), Memory::new(queries.len() * float.bytes()));
    gpu.attend_on(asked.slice(0, float), options, output.slice(0, float), stream.callers()).unwrap();
    stream.wait();
    assert!(output.read() == bytes_of(&expected, float), "{float:?}, {options:?}");
}

/// Appends one token of two heads of width 128.
fn append_rows(gpu: &mut Layer, slice: DeviceSlice, stream: &Stream) -> Result<(), Error> {
    let rows = DeviceRows { keys: slice, values: slice, tokens: 1, token_stride: 256, head_stride: 128 };
    gpu.append_on(0, &rows, stream.callers())
}

#[test]
fn tokens_queries_and_outputs_of_an_engine() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let codec = if dim % 3 == 2 { "turboquant" } else { "trellis:m=2" };
        for (number, float) in FLOATS.into_iter().enumerate() {
            device.synchronize().unwrap(); // makes its context current on this thread
            let stream = if number == 1 { Stream(0) } else { Stream::new() };
            let mut case = case("turboquant:bits=3", codec, dim, (6, 2), 900);
            case.config = case.config.page([64, 128, 64][number]);
            let mut gpu = Layer::new(&device, &case.config, 1, 900).unwrap();
            let mut cpu = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
            gpu.reserve(6).unwrap();
            let mut given = 0;
            for count in [1, 2, 3, 300, 1, 63, 64, 1, 200] {
                let sides = case.rows().map(|side| piece(&side, &case.config, 900, given, count));
                append(&mut gpu, &sides, count, float, &stream).unwrap();
                append_on_cpu(&mut cpu, &sides, float, 6);
                given += count;
                if count == 63 {
                    gpu.truncate(0, given - 30).unwrap();
                    cpu.truncate(given - 30).unwrap();
                }
                compare(&mut gpu, &cpu);
                attend(&mut gpu, &case, &Attend::default(), float, &stream);
            }
            attend(&mut gpu, &case, &Attend::default().soft_cap(4.0).window(150), float, &stream);
            attend(&mut gpu, &case, &Attend::default().sink_logits(&[0.5; 6]), float, &stream);
            let bias: Vec<f32> = (0..6 * 605).map(|at| (at % 23) as f32 / 9.0 - 1.0).collect();
            attend(&mut gpu, &case, &Attend::default().bias(&bias), float, &stream);
            attend(&mut gpu, &case, &Attend::default().bias(&bias[..605]), float, &stream);
            if dim <= 128 {
                attend(&mut gpu, &case, &Attend::default().queries(9), float, &stream);
            }
            // Equals a layer that was uploaded as a whole.
            let mut other = Layer::new(&device, &case.config, 1, 900).unwrap();
            other.upload(0, &cpu).unwrap();
            other.reserve(6).unwrap();
            let mut outputs = [vec![0.0; 6 * dim], vec![1.0; 6 * dim]];
            for (layer, output) in [gpu, other].iter_mut().zip(&mut outputs) {
                layer.attend(&case.queries(), output).unwrap();
            }
            assert_eq!(outputs[0], outputs[1]);
        }
    });
}

/// The engine's graph: its copy of the queries, the step, its copy of the output.
#[test]
fn an_engines_graph() {
    let Some(device) = device() else { return };
    let case = case("trellis", "turboquant", 128, (8, 2), 700);
    let mut gpu = Layer::new(&device, &case.config, 1, 700).unwrap();
    gpu.reserve(8).unwrap();
    let sides = case.rows().map(|side| piece(&side, &case.config, 700, 0, 500));
    let (stream, float) = (Stream::new(), Float::Bf16);
    append(&mut gpu, &sides, 500, float, &stream).unwrap();
    let bytes = 8 * 128 * 2;
    let [source, queries, output, sink] = [(); 4].map(|()| Memory::new(bytes));
    let [mut graph, mut executable] = [0; 2];
    call(c"cuStreamBeginCapture_v2", &[stream.0, 1]);
    stream.copy(&queries, &source);
    let (asked, answer) = (queries.slice(0, float), output.slice(0, float));
    let done = gpu.attend_on(asked, &Attend::default(), answer, stream.callers());
    // Calls that would break the capture return errors, and the capture continues.
    let refused = [
        gpu.attend_on(asked, &Attend::default().queries(2), answer, stream.callers()),
        gpu.attend_on(asked, &Attend::default().sink_logits(&[0.0; 8]), answer, stream.callers()),
        append_rows(&mut gpu, asked, &stream),
    ];
    stream.copy(&sink, &output);
    call(c"cuStreamEndCapture", &[stream.0, out(&mut graph)]);
    done.unwrap();
    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Unsupported { .. }))), "{refused:?}");
    call(c"cuGraphInstantiateWithFlags", &[out(&mut executable), graph, 0]);
    // A token of both heads, from the GPU.
    let mut other = Layer::new(&device, &case.config, 1, 700).unwrap();
    let memory = Memory::of(&sides[0][..4 * 128], float);
    let rows = DeviceRows {
        keys: memory.slice(0, float),
        values: memory.slice(256, float),
        tokens: 1,
        token_stride: 256,
        head_stride: 128,
    };
    (0..150).for_each(|_| other.append_on(0, &rows, stream.callers()).unwrap());
    let start = std::time::Instant::now();
    (0..512).for_each(|_| other.append_on(0, &rows, stream.callers()).unwrap());
    println!("append_on, a token of 2 heads: {:.1} us", start.elapsed().as_secs_f64() * 1e6 / 512.0);
    for round in 0..4 {
        let count = 17 + round;
        let sides = case.rows().map(|side| piece(&side, &case.config, 700, 500 + round * 30, count));
        append(&mut gpu, &sides, count, float, &stream).unwrap();
        let values: Vec<f32> = case.queries().iter().map(|x| x * (1.0 + round as f32)).collect();
        let values = rounded(&values, float);
        source.write(&bytes_of(&values, float));
        call(c"cuGraphLaunch", &[executable, stream.0]);
        stream.wait();
        let mut expected = vec![f32::NAN; values.len()];
        gpu.attend(&values, &mut expected).unwrap();
        assert!(sink.read() == bytes_of(&expected, float), "round {round}");
    }
    call(c"cuGraphExecDestroy", &[executable]);
    call(c"cuGraphDestroy", &[graph]);
}

/// Work that was added to a stream just before a call runs before it, however long it takes; later work
/// runs after it.
#[test]
fn calls_keep_their_place_in_a_stream() {
    let Some(device) = device() else { return };
    let (case, float) = (case("turboquant", "trellis", 128, (4, 2), 700), Float::F16);
    for default in [false, true] {
        device.synchronize().unwrap();
        let stream = if default { Stream(0) } else { Stream::new() };
        let mut gpu = Layer::new(&device, &case.config, 1, 700).unwrap();
        let mut cpu = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
        gpu.reserve(4).unwrap();
        let values = rounded(&case.queries(), float);
        let mut given = 0;
        for (count, options) in [
            (250, Attend::default()),
            (1, Attend::default().window(100)),
            (64, Attend::default().queries(1).position(200)),
        ] {
            let sides = case.rows().map(|side| piece(&side, &case.config, 700, given, count));
            append_on_cpu(&mut cpu, &sides, float, 4);
            let mut other = Layer::new(&device, &case.config, 1, 700).unwrap();
            other.upload(0, &cpu).unwrap();
            other.reserve(4).unwrap();
            let mut expected = vec![f32::NAN; values.len()];
            other.attend_with(&values, &options, &mut expected).unwrap();

            // Tokens that arrive after some time and are overwritten at once; queries and an output
            // likewise.
            let tokens = Memory::of(&by_token(&sides, &case.config, count), float);
            let rows = Memory::new(tokens.bytes);
            let queries = Memory::of(&values, float);
            let [asked, output, answer] = [(); 3].map(|()| Memory::new(queries.bytes));
            stream.nap();
            stream.copy(&rows, &tokens);
            let (keys, value) = (rows.slice(0, float), rows.slice(256, float));
            let rows_of =
                DeviceRows { keys, values: value, tokens: count, token_stride: 512, head_stride: 128 };
            gpu.append_on(0, &rows_of, stream.callers()).unwrap();
            stream.spoil(&rows);
            stream.nap();
            stream.copy(&asked, &queries);
            let [of_asked, of_output] = [&asked, &output].map(|memory| memory.slice(0, float));
            gpu.attend_on(of_asked, &options, of_output, stream.callers()).unwrap();
            stream.copy(&answer, &output);
            stream.spoil(&asked);
            stream.spoil(&output);
            // Later calls of the layer run after the step, which does not see them.
            let more = case.rows().map(|side| piece(&side, &case.config, 700, given + count, 70));
            gpu.append(0, &more[0], &more[1]).unwrap();
            append_on_cpu(&mut cpu, &more, Float::F32, 4);
            stream.wait();
            assert!(answer.read() == bytes_of(&expected, float), "{count} tokens, {options:?}");
            compare(&mut gpu, &cpu);
            given += count + 70;
        }
    }
}

#[test]
fn wrong_rows_of_an_engine_are_errors() {
    let Some(device) = device() else { return };
    let case = case("turboquant", "turboquant", 64, (2, 1), 400);
    let mut gpu = Layer::new(&device, &case.config, 2, 400).unwrap();
    gpu.reserve(2).unwrap();
    let stream = Stream::new();
    let first = case.rows().map(|side| side[..100 * 64].to_vec());
    append(&mut gpu, &first, 100, Float::F32, &stream).unwrap();
    // The same errors and bytes as on the host; rows with large norms pass through it.
    let (mut refused, mut cpu) = (0, SharedLayer::on_heap(&case.config, Backend::detect()).unwrap());
    append_on_cpu(&mut cpu, &first, Float::F32, 2);
    for size in [1.0, 400.0, 900.0, 3e3, 2e4, 3e4, 6e4, 7e4, f32::NAN, f32::INFINITY, -1e38] {
        for side in 0..2 {
            let mut rows = case.rows().map(|side| side[100 * 64..250 * 64].to_vec());
            rows[side][77 * 64 + 5] = size;
            let mut scratch = vec![0.0; case.config.scratch_len(2)];
            let mut next = cpu.clone();
            let expected = next.append(&rows[0], &rows[1], &mut scratch).map_err(Error::Library);
            let mut alone = Layer::new(&device, &case.config, 1, 400).unwrap();
            append(&mut alone, &first, 100, Float::F32, &stream).unwrap();
            let actual = append(&mut alone, &rows, 150, Float::F32, &stream);
            refused += usize::from(expected.is_err());
            assert_eq!(actual, expected, "{size}");
            compare(&mut alone, if actual.is_ok() { &next } else { &cpu });
        }
    }
    assert!((8..20).contains(&refused), "{refused}");
    let memory = Memory::new(4 * 64 * 10);
    let slice = |from| memory.slice(from, Float::F32);
    let rows = |tokens, token_stride| DeviceRows {
        keys: slice(0),
        values: slice(64),
        tokens,
        token_stride,
        head_stride: 64,
    };
    for (tokens, stride) in [(10, 64), (2, 1 << 40), (usize::MAX, 64), (3, usize::MAX / 2)] {
        let short = gpu.append_on(0, &rows(tokens, stride), stream.callers());
        assert!(matches!(short, Err(Error::Library(octaplex::Error::Length { .. }))), "{short:?}");
    }
    let odd = DeviceRows { keys: memory.at_byte(2, Float::F32), ..rows(1, 64) };
    assert!(matches!(gpu.append_on(0, &odd, stream.callers()), Err(Error::Unsupported { .. })));
    let many = DeviceRows { tokens: 1 << 31, token_stride: 0, ..rows(1, 64) };
    assert!(matches!(gpu.append_on(0, &many, stream.callers()), Err(Error::Unsupported { .. })));
    let two = DeviceRows { values: memory.slice(64, Float::F16), ..rows(1, 64) };
    assert!(matches!(gpu.append_on(0, &two, stream.callers()), Err(Error::Unsupported { .. })));
    assert!(gpu.append_on(7, &rows(1, 64), stream.callers()).is_err());
    gpu.append_on(0, &rows(0, 64), stream.callers()).unwrap();
    for (queries, output) in
        [(slice(0), slice(1)), (slice(64 * 7), slice(64 * 8)), (slice(64 * 6 + 1), slice(64 * 6 + 1))]
    {
        assert!(gpu.attend_on(queries, &Attend::default(), output, stream.callers()).is_err());
    }
}
