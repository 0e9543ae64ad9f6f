//! Steps of one token for each sequence that do not wait, by an engine's calls; and layers that grow.

use super::engine::{FLOATS, Memory, Stream, bytes_of, call, out};
use super::vectors::Random;
use super::{case, device};
use octaplex::gpu::{DeviceRows, Error, Float, Layer};
use octaplex::{Attend, LayerConfig};

/// Returns tokens of some sequences for one step, \[sequences]\[keys, values]\[heads]\[width].
fn one_each(random: &mut Random, config: &LayerConfig, sequences: usize, float: Float) -> Memory {
    Memory::of(&random.gaussians(sequences * 2 * config.kv_heads * config.key_dim), float)
}

/// Describes them as rows of a step, or of one sequence of it.
fn rows_of(memory: &Memory, config: &LayerConfig, of: std::ops::Range<usize>, float: Float) -> DeviceRows {
    let (dim, side) = (config.key_dim, config.kv_heads * config.key_dim);
    let first = of.start * 2 * side;
    DeviceRows {
        keys: memory.slice(first, float),
        values: memory.slice(first + side, float),
        tokens: of.len(),
        token_stride: 2 * side,
        head_stride: dim,
    }
}

fn saved(layer: &mut Layer, sequence: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    layer.save(sequence, &mut |piece| bytes.extend_from_slice(piece)).unwrap();
    bytes
}

/// Steps, captured and not, compared with `append_on` of single tokens: the sequences and attention between
/// steps are equal.
#[test]
fn steps_are_what_append_makes() {
    let Some(device) = device() else { return };
    for (number, float) in FLOATS.into_iter().enumerate() {
        let mut case = case("turboquant", "trellis", 64, (4, 2), 900);
        case.config = case.config.page([64, 128, 64][number]);
        if number == 2 {
            case.config = case.config.sliding_window(150);
        }
        let config = case.config;
        let new = || {
            let mut layer = Layer::new(&device, &config, 4, 4 * 900).unwrap();
            layer.reserve(4).unwrap();
            layer
        };
        let (mut gpu, mut other, stream) = (new(), new(), Stream::new());
        let mut random = Random::new(9 + number as u64);
        for sequence in 0..3 {
            let sides = [(); 2].map(|()| random.gaussians(2 * (70 + 40 * sequence) * 64));
            let count = sides[0].len() / 128;
            let memory = sides.map(|side| Memory::of(&side, float));
            let [keys, values] = [memory[0].slice(0, float), memory[1].slice(0, float)];
            let rows = DeviceRows { keys, values, tokens: count, token_stride: 64, head_stride: 64 * count };
            gpu.append_on(sequence, &rows, stream.callers()).unwrap();
            other.append_on(sequence, &rows, stream.callers()).unwrap();
        }
        let queries = Memory::of(&random.gaussians(3 * 4 * 64), float);
        let outputs = [(); 2].map(|()| Memory::new(queries.bytes));
        let ask = |layer: &mut Layer, output: &Memory| {
            let (asked, to) = (queries.slice(0, float), output.slice(0, float));
            layer.attend_sequences_on(0..3, asked, &Attend::default(), to, stream.callers()).unwrap();
        };
        let (mut steps, mut compared) = (0, 0);
        for round in 0..330 {
            let tokens = one_each(&mut random, &config, 3, float);
            if gpu.steps_left(0..3) == 0 {
                gpu.settle_on(stream.callers()).unwrap();
                steps += 1;
            }
            gpu.append_step_on(0..3, &rows_of(&tokens, &config, 0..3, float), stream.callers()).unwrap();
            for sequence in 0..3 {
                let row = rows_of(&tokens, &config, sequence..sequence + 1, float);
                other.append_on(sequence, &row, stream.callers()).unwrap();
            }
            // As many pages give as many sums: settling drops a page that no query sees.
            let pages = |layer: &Layer| [0, 1, 2].map(|sequence| layer.pages(sequence).unwrap());
            if round % 37 == 5 && pages(&gpu) == pages(&other) {
                compared += 1;
                ask(&mut gpu, &outputs[0]);
                ask(&mut other, &outputs[1]);
                stream.wait();
                assert!(outputs[0].read() == outputs[1].read(), "{float:?}, round {round}");
            }
            stream.wait();
        }
        assert!(steps >= 4 && compared >= 3, "{steps}, {compared}");
        (0..3).for_each(|sequence| assert!(saved(&mut gpu, sequence) == saved(&mut other, sequence)));
        assert_eq!(gpu.next_position(1), other.next_position(1));

        // A call for one of several sequences.
        ask(&mut gpu, &outputs[0]);
        let row = 4 * 64;
        let (asked, to) = (queries.second(row, float), outputs[1].second(row, float));
        gpu.attend_sequences_on(1..2, asked, &Attend::default(), to, stream.callers()).unwrap();
        stream.wait();
        let bytes = row * float.bytes()..2 * row * float.bytes();
        assert!(outputs[0].read()[bytes.clone()] == outputs[1].read()[bytes]);

        // A non-finite token stops only its sequence, and the next call returns the error.
        gpu.settle_on(stream.callers()).unwrap();
        let before = [0, 1, 2].map(|sequence| gpu.next_position(sequence).unwrap());
        let mut values = random.gaussians(3 * 256);
        values[256 + 70] = f32::NAN;
        for values in [&values, &random.gaussians(3 * 256)] {
            let tokens = Memory::of(values, float);
            gpu.append_step_on(0..3, &rows_of(&tokens, &config, 0..3, float), stream.callers()).unwrap();
            stream.wait();
        }
        let refused = gpu.settle_on(stream.callers());
        assert!(
            matches!(refused, Err(Error::Unsupported { why }) if why.contains("not finite")),
            "{refused:?}"
        );
        let after = [0, 1, 2].map(|sequence| gpu.next_position(sequence).unwrap());
        assert_eq!(after, [before[0] + 2, before[1], before[2] + 2]);
        assert!(saved(&mut gpu, 1) == saved(&mut other, 1));
        gpu.settle_on(stream.callers()).unwrap();
    }
}

/// A graph that appends and attends, launched again and again.
#[test]
fn an_engines_graph_appends() {
    let Some(device) = device() else { return };
    let (case, float) = (case("trellis", "turboquant", 64, (4, 2), 900), Float::Bf16);
    let config = case.config;
    let new = || {
        let mut layer = Layer::new(&device, &config, 2, 2 * 900).unwrap();
        layer.reserve(4).unwrap();
        layer
    };
    let (mut gpu, mut other, stream) = (new(), new(), Stream::new());
    let mut random = Random::new(5);
    let first = one_each(&mut random, &config, 2, float);
    let refused = gpu.append_step_on(0..2, &rows_of(&first, &config, 0..2, float), stream.callers());
    assert!(matches!(refused, Err(Error::Unsupported { why }) if why.contains("sink")), "{refused:?}");
    for _ in 0..100 {
        let tokens = one_each(&mut random, &config, 2, float);
        for layer in [&mut gpu, &mut other] {
            for sequence in 0..2 {
                let row = rows_of(&tokens, &config, sequence..sequence + 1, float);
                layer.append_on(sequence, &row, stream.callers()).unwrap();
            }
        }
    }
    let queries = Memory::of(&random.gaussians(2 * 4 * 64), float);
    let (tokens, outputs) =
        (one_each(&mut random, &config, 2, float), [(); 2].map(|()| Memory::new(queries.bytes)));
    let (asked, to) = (queries.slice(0, float), outputs.each_ref().map(|output| output.slice(0, float)));
    let [mut graph, mut executable] = [0; 2];
    call(c"cuStreamBeginCapture_v2", &[stream.0, 1]);
    let done = gpu
        .append_step_on(0..2, &rows_of(&tokens, &config, 0..2, float), stream.callers())
        .and_then(|()| gpu.attend_on(asked, &Attend::default(), to[0], stream.callers()));
    call(c"cuStreamEndCapture", &[stream.0, out(&mut graph)]);
    done.unwrap();
    call(c"cuGraphInstantiateWithFlags", &[out(&mut executable), graph, 0]);
    let mut left = gpu.steps_left(0..2);
    for round in 0..200 {
        if left == 0 {
            gpu.settle_on(stream.callers()).unwrap();
            left = gpu.steps_left(0..2);
        }
        let new = random.gaussians(2 * 256);
        tokens.write(&bytes_of(&new, float));
        call(c"cuGraphLaunch", &[executable, stream.0]);
        left -= 1;
        stream.wait();
        for sequence in 0..2 {
            let row = rows_of(&tokens, &config, sequence..sequence + 1, float);
            other.append_on(sequence, &row, stream.callers()).unwrap();
        }
        if left > 0 {
            other.attend_on(asked, &Attend::default(), to[1], stream.callers()).unwrap();
            stream.wait();
            assert!(outputs[0].read() == outputs[1].read(), "round {round}");
        }
    }
    // One step more than the ring has space for: the sequences keep their tokens, and the call returns an
    // error.
    (0..=left).for_each(|_| call(c"cuGraphLaunch", &[executable, stream.0]));
    stream.wait();
    let refused = gpu.settle_on(stream.callers());
    assert!(matches!(refused, Err(Error::Unsupported { why }) if why.contains("no space")), "{refused:?}");
    for _ in 0..left {
        for sequence in 0..2 {
            let row = rows_of(&tokens, &config, sequence..sequence + 1, float);
            other.append_on(sequence, &row, stream.callers()).unwrap();
        }
    }
    assert!(saved(&mut gpu, 1) == saved(&mut other, 1));
    // Other calls settle by themselves.
    gpu.truncate(0, 300).unwrap();
    other.truncate(0, 300).unwrap();
    assert!(saved(&mut gpu, 0) == saved(&mut other, 0));
    call(c"cuGraphExecDestroy", &[executable]);
    call(c"cuGraphDestroy", &[graph]);
}

/// A layer that grows keeps its sequences.
#[test]
fn a_layer_grows() {
    let Some(device) = device() else { return };
    let mut case = case("int:med=3", "turboquant", 64, (4, 2), 900);
    case.config = case.config.recent_window(0);
    let (mut gpu, mut other) = (
        Layer::new(&device, &case.config, 2, 192).unwrap(),
        Layer::new(&device, &case.config, 2, 2000).unwrap(),
    );
    let [keys, values] = case.rows();
    for sequence in 0..2 {
        other.append(sequence, &keys, &values).unwrap();
        let refused = gpu.append(sequence, &keys, &values);
        assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        gpu.grow(if sequence == 0 { 1000 } else { 1900 }).unwrap();
        gpu.append(sequence, &keys, &values).unwrap();
    }
    assert_eq!(gpu.paged_capacity(), 1920);
    (0..2).for_each(|sequence| assert!(saved(&mut gpu, sequence) == saved(&mut other, sequence)));
    gpu.reserve(4).unwrap();
    other.reserve(4).unwrap();
    let queries = [case.queries(), case.queries()].concat();
    let mut outputs = [vec![0.0; queries.len()], vec![1.0; queries.len()]];
    gpu.attend(&queries, &mut outputs[0]).unwrap();
    other.attend(&queries, &mut outputs[1]).unwrap();
    assert_eq!(outputs[0], outputs[1]);
    let step = gpu.capture(&Attend::default()).unwrap();
    let refused = gpu.grow(4000);
    assert!(matches!(refused, Err(Error::Unsupported { why }) if why.contains("captured")), "{refused:?}");
    drop(step);
    gpu.grow(4000).unwrap();
}

/// Steps of sequences without a token, compared with `append_on`: new ones, cleared and truncated ones, a
/// fork of them, and one that continues in a graph. Without sinks a step may be the first.
#[test]
fn steps_begin_with_nothing() {
    let Some(device) = device() else { return };
    let (mut case, float) = (case("turboquant", "turboquant", 64, (4, 2), 900), Float::F16);
    case.config = case.config.sink_tokens(0);
    let config = case.config;
    let new = || {
        let mut layer = Layer::new(&device, &config, 3, 3 * 900).unwrap();
        layer.reserve(4).unwrap();
        layer
    };
    let (mut gpu, mut other, stream) = (new(), new(), Stream::new());
    let mut random = Random::new(3);
    let (queries, tokens) =
        (Memory::of(&random.gaussians(3 * 4 * 64), float), one_each(&mut random, &config, 3, float));
    let outputs = [(); 2].map(|()| Memory::new(queries.bytes));
    let (asked, to) = (queries.slice(0, float), outputs.each_ref().map(|output| output.slice(0, float)));
    let is_empty = |answer| matches!(answer, Err(Error::Library(octaplex::Error::Empty)));
    let single = |layer: &mut Layer| {
        for sequence in 0..3 {
            let row = rows_of(&tokens, &config, sequence..sequence + 1, float);
            layer.append_on(sequence, &row, stream.callers()).unwrap();
        }
    };
    let mut expect_equal = |gpu: &mut Layer, other: &mut Layer, graph: Option<u64>, what: &str| {
        tokens.write(&bytes_of(&random.gaussians(3 * 256), float));
        outputs.iter().for_each(|output| output.write(&vec![0xff; output.bytes]));
        match graph {
            Some(graph) => call(c"cuGraphLaunch", &[graph, stream.0]),
            None => {
                gpu.append_step_on(0..3, &rows_of(&tokens, &config, 0..3, float), stream.callers()).unwrap();
                gpu.attend_on(asked, &Attend::default(), to[0], stream.callers()).unwrap();
            }
        }
        single(other);
        other.attend_on(asked, &Attend::default(), to[1], stream.callers()).unwrap();
        stream.wait();
        assert!(outputs[0].read() == outputs[1].read(), "{what}");
    };
    assert!(is_empty(gpu.attend_on(asked, &Attend::default(), to[0], stream.callers())));
    expect_equal(&mut gpu, &mut other, None, "new");
    for layer in [&mut gpu, &mut other] {
        layer.clear(0).unwrap();
        (1..3).for_each(|sequence| layer.truncate(sequence, 0).unwrap());
    }
    assert!(is_empty(gpu.attend_on(asked, &Attend::default(), to[0], stream.callers())));
    expect_equal(&mut gpu, &mut other, None, "cleared and truncated");
    expect_equal(&mut gpu, &mut other, None, "the next one");
    for layer in [&mut gpu, &mut other] {
        layer.clear(1).unwrap();
        layer.fork(1, 0).unwrap();
        layer.clear(2).unwrap();
    }
    expect_equal(&mut gpu, &mut other, None, "forks of nothing");

    for layer in [&mut gpu, &mut other] {
        (0..3).for_each(|sequence| layer.clear(sequence).unwrap());
    }
    let [mut graph, mut executable] = [0; 2];
    call(c"cuStreamBeginCapture_v2", &[stream.0, 1]);
    let done = gpu
        .append_step_on(0..3, &rows_of(&tokens, &config, 0..3, float), stream.callers())
        .and_then(|()| gpu.attend_on(asked, &Attend::default(), to[0], stream.callers()));
    call(c"cuStreamEndCapture", &[stream.0, out(&mut graph)]);
    done.unwrap();
    call(c"cuGraphInstantiateWithFlags", &[out(&mut executable), graph, 0]);
    for round in 0..3 {
        expect_equal(&mut gpu, &mut other, Some(executable), &format!("token {round} of a graph"));
    }
    gpu.settle_on(stream.callers()).unwrap();
    (0..3).for_each(|sequence| assert!(saved(&mut gpu, sequence) == saved(&mut other, sequence)));
    call(c"cuGraphExecDestroy", &[executable]);
    call(c"cuGraphDestroy", &[graph]);
}
