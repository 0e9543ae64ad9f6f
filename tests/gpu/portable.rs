//! The implementation without instructions of one GPU, `OCTAPLEX_CUDA_TARGET=portable`. Every test can run
//! with it; here it is compared with the GPU's own instructions.

use super::{Case, case, device, error};
use octaplex::Attend;
use std::process::Command;
use std::sync::LazyLock;

/// The file that a process of this test writes its outputs to.
const TO: &str = "OCTAPLEX_TEST_OUTPUTS";

/// Sums of integers are equal, so only the last bits of floats may differ. Blocks of queries sum products
/// of f16 in f32, in another order.
const STEPS: f64 = 1e-6;
const BLOCKS: f64 = 1e-3;

fn cases() -> Vec<Case> {
    [
        ("turboquant", "turboquant", 64),
        ("turboquant:bits=3", "trellis:m=8", 80),
        ("turboquant:bits=2", "trellis:m=2", 96),
        ("turboquant", "turboquant", 128),
        ("turboquant:bits=3", "turboquant:bits=3", 128),
        ("trellis", "trellis", 128),
        ("trellis:m=8", "turboquant:bits=2", 192),
        ("trellis:m=2", "trellis", 256),
        ("octopus", "turboquant", 128),
        ("octopus:bits=2", "trellis", 80),
        ("int", "int:bits=8", 64),
        ("int:bits=8,rotate=true", "int:rotate=true", 128),
        ("int:bits=3", "int:bits=6,group=32,asymmetric=true", 96),
        ("tq3_0", "turboquant:bits=6", 128),
        ("hqmq", "trellis:m=3,states=32", 64),
        ("turboquant:bits=8", "int:group=16", 128),
        ("turboquant:levels=10", "turboquant:levels=3", 80),
        ("int:med=2", "int:bits=8,group=16,med=2", 128),
        ("hqmq:med=2", "int:bits=3,med=2", 80),
    ]
    .iter()
    .map(|(keys, values, dim)| case(keys, values, *dim, (14, 2), TOKENS))
    .collect()
}

/// Tokens of each case.
const TOKENS: usize = 1500;
/// Some biases hide their token.
static BIAS: LazyLock<Vec<f32>> = LazyLock::new(|| {
    (0..TOKENS).map(|at| if at % 11 == 4 { f32::NEG_INFINITY } else { 0.3 * (at % 7) as f32 }).collect()
});

/// For each case: steps, some with options, and a block of queries.
fn options() -> [Attend<'static>; 4] {
    [
        Attend::default(),
        Attend::default().soft_cap(3.0).window(700).keep_sinks(true),
        Attend::default().bias(&BIAS),
        Attend::default().queries(20),
    ]
}

fn outputs(device: &octaplex::gpu::Device) -> Vec<Vec<f32>> {
    let of_case = |case: &Case| {
        let layer = case.layer();
        let mut gpu = case.on_gpu(device, &layer);
        options().map(|options| {
            let queries = case.block(options.queries.unwrap_or(1));
            let mut output = vec![f32::NAN; queries.len()];
            gpu.attend_with(&queries, &options, &mut output).unwrap();
            output
        })
    };
    let cases = cases();
    // All in parallel, because compiling kernels takes most of the time.
    std::thread::scope(|scope| {
        let of_case = &of_case;
        let threads: Vec<_> = cases.iter().map(|case| scope.spawn(move || of_case(case))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_are_those_of_the_gpus_own_instructions() {
    let Some(device) = device() else { return };
    // The target applies to a whole process.
    if let Ok(to) = std::env::var(TO) {
        let bytes: Vec<u8> = outputs(&device).iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        return std::fs::write(to, bytes).unwrap();
    }
    if std::env::var_os("OCTAPLEX_CUDA_TARGET").is_some() {
        println!("skipped: OCTAPLEX_CUDA_TARGET is set, so that these are not the GPU's own instructions");
        return;
    }
    let own = outputs(&device);
    let to = std::env::temp_dir().join(format!("octaplex-outputs-{}", std::process::id()));
    let name = "portable::sums_are_those_of_the_gpus_own_instructions";
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .envs([("OCTAPLEX_CUDA_TARGET", "portable"), (TO, to.to_str().unwrap())])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = std::fs::read(&to).unwrap();
    std::fs::remove_file(&to).unwrap();
    let mut others = bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x));
    for (number, own) in own.iter().enumerate() {
        let (config, options) = (cases()[number / 4].config, options()[number % 4]);
        let other: Vec<f32> = others.by_ref().take(own.len()).collect();
        assert_eq!(other.len(), own.len());
        let differ = own.iter().zip(&other).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let of_own: Vec<f64> = own.iter().map(|x| f64::from(*x)).collect();
        let wrong = error(&other, &of_own, config.key_dim);
        println!(
            "{:?}, {:?}, step {}: {differ} of {} differ, by {wrong:.1e}",
            config.keys,
            config.values,
            number % 4,
            own.len()
        );
        let most = if options.queries.is_some() { BLOCKS } else { STEPS };
        assert!(wrong < most, "{:?}, {:?}, step {}: {wrong:e}", config.keys, config.values, number % 4);
    }
}
