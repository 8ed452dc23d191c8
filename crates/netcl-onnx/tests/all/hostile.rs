//! Damaged and hostile files: a model or an error, no panic, no hang, no more memory than the limits allow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use netcl_nn::autograd::{Tensor, manager};
use netcl_onnx::{Array, Data, Kind, Value, load, operators, proto, read};

use crate::build::{floats, graph, graph_attribute, int, ints, model, network, node};

#[path = "../../../netcl-io/tests/all/damage.rs"]
#[allow(dead_code, reason = "the other readers damage JSON as well")]
mod damage;
#[path = "../../../netcl-io/tests/all/memory.rs"]
mod memory;

/// What reading and running one small file may take.
const MOST_MEMORY: usize = 1 << 30;
const MOST_TIME: Duration = Duration::from_secs(30);

#[test]
fn damaged_models_neither_panic_nor_hang() {
    let cases: u64 = std::env::var("FUZZ_FILES").map_or(400, |cases| cases.parse().unwrap());
    let queue = manager().cpu().queue;
    let good = network().to_bytes();
    let x = Tensor::from_host(&queue, &[0.5f32; 6], [2, 3]).unwrap();
    let mut opened = 0;
    for seed in 0..cases {
        let bytes = damage::Damage::new(seed).bytes(&good);
        let start = Instant::now();
        let (result, peak) = memory::peak_of(|| {
            catch_unwind(AssertUnwindSafe(|| {
                let model = read(&bytes, &manager().cpu().queue);
                model.map(|model| model.run(vec![Value::from(x.clone())]).is_ok()).is_ok()
            }))
        });
        opened += u64::from(result.unwrap_or_else(|_| panic!("it panics with the file of seed {seed}")));
        assert!(peak < MOST_MEMORY, "it takes {peak} bytes for seed {seed}");
        assert!(start.elapsed() < MOST_TIME, "it takes {:?} for seed {seed}", start.elapsed());
    }
    assert!(opened * 100 > cases, "only {opened} of {cases} damaged models could be read");
}

fn refused(bytes: &[u8]) -> String {
    read(bytes, &manager().cpu().queue).err().expect("it was read").to_string()
}

#[test]
fn parts_without_content_are_counted() {
    // Two bytes each; decoded they would fill gigabytes.
    let nodes: Vec<u8> = [0x0a, 0x00].repeat(3 << 20);
    let mut bytes = Vec::new();
    netcl_onnx::wire::push_bytes(7, &nodes, &mut bytes);
    assert!(refused(&bytes).contains("parts"));
}

#[test]
fn nesting_ends_somewhere() {
    let mut bytes = Vec::new();
    for _ in 0..5000 {
        // A graph in an attribute of a node of a graph.
        for field in [6, 5, 1] {
            let inner = std::mem::take(&mut bytes);
            netcl_onnx::wire::push_bytes(field, &inner, &mut bytes);
        }
    }
    let inner = std::mem::take(&mut bytes);
    netcl_onnx::wire::push_bytes(7, &inner, &mut bytes);
    assert!(refused(&bytes).contains("nested"));
}

#[test]
fn shapes_ask_for_no_memory() {
    for dims in [&[i64::MAX, 4][..], &[-1], &[1 << 40], &[1 << 31, 1 << 31, 0]] {
        let text = refused(&model(graph(&[], &["w"], vec![], vec![floats("w", dims, &[])])).to_bytes());
        assert!(text.contains("shape"), "{text}");
    }
    // Nor do operators that grow.
    let queue = manager().cpu().queue;
    let nodes = vec![node("ConstantOfShape", &["n"], &["y"], vec![])];
    let huge = model(graph(&[], &["y"], nodes, vec![ints("n", &[2], &[1 << 40, 1 << 40])]));
    let (result, peak) = memory::peak_of(|| read(&huge.to_bytes(), &queue).unwrap().run(vec![]));
    assert!(result.is_err() && peak < 64 << 20, "{peak}");
}

fn list(name: &str, values: &[i64]) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), ints: values.to_vec(), kind: 7, ..Default::default() }
}

fn whole(kind: Kind, shape: &[usize], values: &[i64]) -> Value {
    Array::ints(kind, shape.to_vec(), values.to_vec()).into()
}

/// Fractions that count from 0.
fn fractions(shape: &[usize]) -> Value {
    let values = (0..shape.iter().product::<usize>()).map(|i| i as f64).collect();
    Array::floats(Kind::F32, shape.to_vec(), values).into()
}

/// What one node says of its inputs, and the memory that it takes.
fn run_one(
    operator: &str,
    attributes: Vec<proto::Attribute>,
    inputs: Vec<Value>,
) -> (Result<Vec<Value>, String>, usize) {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let made = model(graph(&names, &["y"], vec![node(operator, &names, &["y"], attributes)], vec![])).to_bytes();
    let queue = manager().cpu().queue;
    let start = Instant::now();
    let (result, peak) =
        memory::peak_of(|| read(&made, &queue).unwrap().run(inputs).map_err(|error| error.to_string()));
    assert!(start.elapsed() < MOST_TIME, "{operator} takes {:?}", start.elapsed());
    (result, peak)
}

#[test]
fn numbers_out_of_range_are_errors() {
    let zeros = |kind, shape: &[usize]| whole(kind, shape, &vec![0; shape.iter().product()]);
    let longs = |values: &[i64]| whole(Kind::I64, &[values.len()], values);
    let none = || longs(&[]);
    let two = || fractions(&[2]);
    let far = 1 << 24;
    let cases: Vec<(&str, Vec<proto::Attribute>, Vec<Value>)> = vec![
        ("Slice", vec![], vec![fractions(&[8]), longs(&[0, 6]), longs(&[2, 8]), longs(&[0, 0])]),
        ("Unsqueeze", vec![], vec![two(), longs(&[0, 0])]),
        ("DepthToSpace", vec![int("blocksize", 1 << 32)], vec![fractions(&[1, 4, 1, 1])]),
        ("DepthToSpace", vec![int("blocksize", (1 << 32) - 1)], vec![zeros(Kind::I8, &[0, 0, 1, 1])]),
        ("SpaceToDepth", vec![int("blocksize", i64::MAX)], vec![zeros(Kind::I8, &[1, 1, 0, 0])]),
        ("DequantizeLinear", vec![], vec![zeros(Kind::I8, &[1, 1, 2]), fractions(&[0])]),
        ("DequantizeLinear", vec![], vec![zeros(Kind::I8, &[1, 1, 2]), fractions(&[1, 0, 2])]),
        ("QuantizeLinear", vec![], vec![two(), fractions(&[1]), zeros(Kind::U8, &[1, 0])]),
        (
            "QLinearMatMul",
            vec![],
            vec![
                zeros(Kind::U8, &[1, 1]),
                fractions(&[1]),
                zeros(Kind::U8, &[1]),
                zeros(Kind::U8, &[1, 1]),
                fractions(&[1]),
                zeros(Kind::U8, &[1]),
                fractions(&[0]),
                zeros(Kind::U8, &[0]),
            ],
        ),
        ("MatMulInteger", vec![], vec![zeros(Kind::U8, &[1, 1]), zeros(Kind::U8, &[1, 1]), zeros(Kind::U8, &[0])]),
        (
            "ConvInteger",
            vec![],
            vec![zeros(Kind::U8, &[1, 1, 1]), zeros(Kind::U8, &[]), zeros(Kind::U8, &[]), zeros(Kind::U8, &[1])],
        ),
        ("Attention", vec![], [vec![fractions(&[1, 1, 2, 2]); 3], vec![fractions(&[2, 2]); 3]].concat()),
        ("TensorScatter", vec![], vec![fractions(&[1, 2, 2]), fractions(&[1, 1, 2]), longs(&[i64::MAX])]),
        ("TensorScatter", vec![], vec![fractions(&[1, 2, 2]), fractions(&[1, 1, 9]), longs(&[0])]),
        (
            "MaxUnpool",
            vec![list("kernel_shape", &[1, 1, 1]), list("strides", &[far, far, far])],
            vec![zeros(Kind::I8, &[1, 1, 2, 2, 2]), whole(Kind::I64, &[1, 1, 2, 2, 2], &[i64::MAX; 8])],
        ),
        ("CenterCropPad", vec![], vec![two(), longs(&[i64::MIN])]),
        ("Pad", vec![], vec![zeros(Kind::I8, &[2]), longs(&[i64::MIN, i64::MAX])]),
        ("Pad", vec![], vec![two(), longs(&[i64::MAX, i64::MAX])]),
        ("Split", vec![int("axis", 0)], vec![two(), longs(&[i64::MAX, i64::MAX])]),
        ("Tile", vec![], vec![fractions(&[1, 2]), longs(&[i64::MAX, i64::MAX])]),
        ("Col2Im", vec![], vec![fractions(&[1, 1, 1]), longs(&[i64::MAX, 1]), longs(&[i64::MAX, i64::MAX])]),
        ("AffineGrid", vec![], vec![fractions(&[1, 2, 3]), longs(&[1, 1, 1 << 40, 1 << 40])]),
        (
            "ConvTranspose",
            vec![list("output_padding", &[i64::MAX])],
            vec![fractions(&[1, 1, 2]), fractions(&[1, 1, 1])],
        ),
        ("ConvTranspose", vec![list("output_shape", &[i64::MAX])], vec![fractions(&[1, 1, 2]), fractions(&[1, 1, 1])]),
        ("Reshape", vec![], vec![fractions(&[1]), longs(&[1; 100])]),
        ("SplitToSequence", vec![], vec![two(), none()]),
    ];
    for (operator, attributes, inputs) in cases {
        let shapes: Vec<_> = inputs.iter().map(|value| value.shape().unwrap()).collect();
        let (result, peak) = run_one(operator, attributes, inputs);
        assert!(result.is_err(), "{operator} of {shapes:?} gives {result:?}");
        assert!(peak < 64 << 20, "{operator} of {shapes:?} takes {peak} bytes");
    }
    // What is in range to the last number.
    let (eye, _) = run_one("EyeLike", vec![int("k", i64::MAX)], vec![fractions(&[2, 2])]);
    assert_eq!(eye.unwrap()[0].to_array().unwrap().to_floats().unwrap(), [0.0; 4]);
    let all = whole(Kind::U64, &[1, 1], &[-1]);
    let (product, _) = run_one("MatMul", vec![], vec![all.clone(), all]);
    assert_eq!(product.unwrap()[0].to_array().unwrap(), Array::ints(Kind::U64, vec![1, 1], vec![1]));
    let (last, _) = run_one(
        "Slice",
        vec![],
        vec![zeros(Kind::I8, &[2, 3]), longs(&[1]), longs(&[9]), longs(&[0]), longs(&[i64::MAX])],
    );
    assert_eq!(last.unwrap()[0].shape().unwrap(), [1, 3]);
}

#[test]
fn small_inputs_ask_for_no_memory() {
    // Long axes beside one of no elements.
    let empty = || whole(Kind::I8, &[1 << 40, 0], &[]);
    let indices = || whole(Kind::I64, &[1 << 40, 0], &[]);
    let body = || vec![int("num_scan_inputs", 1), graph_attribute("body", graph(&["a"], &["a"], vec![], vec![]))];
    let wide = |n: i64| [list("kernel_shape", &[n, n]), list("pads", &[n, n, n, n])].to_vec();
    let far = 1 << 24;
    let texts = Array { kind: Kind::Text, shape: vec![1], data: Data::Texts(vec!["t".repeat(1 << 16)]) };
    let cases: Vec<(&str, Vec<proto::Attribute>, Vec<Value>)> = vec![
        ("ReduceSum", vec![int("keepdims", 0)], vec![empty(), whole(Kind::I64, &[1], &[1])]),
        ("ArgMax", vec![int("axis", 1)], vec![empty()]),
        ("Unique", vec![int("axis", 0)], vec![empty()]),
        ("GatherND", vec![], vec![fractions(&[2]), indices()]),
        ("SplitToSequence", vec![], vec![empty()]),
        ("SplitToSequence", vec![], vec![fractions(&[1 << 20])]),
        ("Scan", body(), vec![empty()]),
        ("Tile", vec![], vec![whole(Kind::I8, &[0], &[]), whole(Kind::I64, &[1], &[i64::MAX])]),
        ("Tile", vec![], vec![whole(Kind::I8, &[1], &[0]), whole(Kind::I64, &[1], &[1 << 30])]),
        ("Expand", vec![], vec![texts.into(), whole(Kind::I64, &[1], &[1 << 24])]),
        ("MaxPool", wide(far), vec![fractions(&[1, 1, 4, 4])]),
        ("MaxPool", wide(far), vec![whole(Kind::I8, &[1, 1, 4, 4], &[0; 16])]),
        ("AveragePool", wide(far), vec![fractions(&[1, 1, 4, 4])]),
        ("Conv", vec![list("pads", &[far; 4])], vec![fractions(&[1, 1, 2, 2]), fractions(&[1, 1, 1, 1])]),
        ("ConvInteger", vec![list("pads", &[far; 4])], vec![whole(Kind::U8, &[1, 1, 1, 1], &[0]); 2]),
        (
            "ConvTranspose",
            vec![list("strides", &[far; 3])],
            vec![fractions(&[1, 1, 2, 2, 2]), fractions(&[1, 1, 1, 1, 1])],
        ),
        ("ConvTranspose", vec![list("strides", &[far; 2])], vec![fractions(&[1, 1, 9, 9]), fractions(&[1, 1, 1, 1])]),
    ];
    for (operator, attributes, inputs) in cases {
        let shapes: Vec<_> = inputs.iter().map(|value| value.shape().unwrap()).collect();
        let (result, peak) = run_one(operator, attributes, inputs);
        assert!(peak < 512 << 20, "{operator} of {shapes:?} takes {peak} bytes");
        // Nothing, however often, is nothing.
        assert!(result.is_err() || shapes[0] == [0], "{operator} of {shapes:?} gives a result");
    }
    // The sizes of windows are counted along each axis.
    let pads = [list("kernel_shape", &[64, 64]), list("pads", &[32; 4])].to_vec();
    let (result, peak) = run_one("AveragePool", pads, vec![fractions(&[1, 1, 128, 128])]);
    assert!(result.is_ok() && peak < 64 << 20, "{peak}");
}

#[test]
fn sequences_do_not_multiply() {
    // Each is twice the one before.
    let names: Vec<String> = std::iter::once("x".to_owned()).chain((0..64).map(|i| format!("y{i}"))).collect();
    let twice = |pair: &[String]| node("SequenceConstruct", &[&pair[0], &pair[0]], &[&pair[1]], vec![]);
    let nodes = names.windows(2).map(twice).collect();
    let made = read(&model(graph(&["x"], &["y63"], nodes, vec![])).to_bytes(), &manager().cpu().queue).unwrap();
    let error = made.run(vec![fractions(&[2])]).unwrap_err().to_string();
    assert!(error.contains("a sequence holds tensors"), "{error}");
}

#[test]
fn sparse_tensors_have_a_budget() {
    let sparse = |name: &str, n: i64| proto::SparseTensor {
        values: Some(floats(name, &[1], &[1.0])),
        indices: Some(ints("", &[1], &[0])),
        dims: vec![n],
    };
    let made = |count: usize, n: i64| {
        let graph = graph(&[], &["w0"], vec![], vec![]);
        let sparse = (0..count).map(|i| sparse(&format!("w{i}"), n)).collect();
        model(proto::Graph { sparse_initializer: sparse, ..graph }).to_bytes()
    };
    assert!(read(&made(2, 1 << 10), &manager().cpu().queue).is_ok());
    for (count, n) in [(1, 1 << 28), (100, 1 << 22), (1, i64::MAX)] {
        let (text, peak) = memory::peak_of(|| refused(&made(count, n)));
        assert!(text.contains("too large") && peak < 512 << 20, "{text} {peak}");
    }
}

/// A file whose attributes, operators and wiring make no sense, run with values of every kind.
struct Nonsense(damage::Damage);

impl Nonsense {
    fn one<'t, T: ?Sized>(&mut self, of: &[&'t T]) -> &'t T {
        of[self.0.below(of.len())]
    }

    fn number(&mut self) -> i64 {
        let few = [0, 1, -1, 2, 3, 5, -2, 7, 16, 255, 65_536];
        let far = [1 << 31, -(1 << 31), 1 << 40, i64::MAX, i64::MIN, i64::MAX - 1];
        match self.0.below(8) {
            0 => far[self.0.below(far.len())],
            _ => few[self.0.below(few.len())],
        }
    }

    fn list(&mut self) -> Vec<i64> {
        (0..self.0.below(6)).map(|_| self.number()).collect()
    }

    fn attribute(&mut self) -> proto::Attribute {
        const NUMBERS: &[&str] = &[
            "axis",
            "keepdims",
            "to",
            "group",
            "blocksize",
            "num_outputs",
            "hidden_size",
            "ceil_mode",
            "storage_order",
            "transA",
            "upper",
            "largest",
            "batch_dims",
            "k",
            "num_groups",
            "num_heads",
            "q_num_heads",
            "kv_num_heads",
            "is_causal",
            "dtype",
            "start",
            "end",
            "p",
            "size",
            "new_axis",
            "exclusive",
            "reverse",
            "num_scan_inputs",
            "noop_with_empty_axes",
            "fmod",
            "detect_negative",
            "select_last_index",
            "allowzero",
            "count_include_pad",
            "time_axis",
            "batch_axis",
            "layout",
            "align_corners",
            "interleaved",
            "rotary_embedding_dim",
            "block_size",
            "output_dtype",
            "saturate",
            "stash_type",
        ];
        const LISTS: &[&str] = &[
            "axes",
            "kernel_shape",
            "strides",
            "pads",
            "dilations",
            "perm",
            "split",
            "shape",
            "output_shape",
            "output_padding",
            "starts",
            "ends",
            "scan_input_axes",
            "scan_output_axes",
            "scan_input_directions",
            "value_ints",
        ];
        const TEXTS: &[&str] = &[
            "mode",
            "equation",
            "auto_pad",
            "direction",
            "reduction",
            "approximate",
            "padding_mode",
            "nearest_mode",
            "coordinate_transformation_mode",
            "round_mode",
        ];
        const WORDS: &[&str] = &[
            "",
            "SAME_UPPER",
            "ij,jk->ik",
            "...a,a...",
            "ii->i",
            "LEFT",
            "bidirectional",
            "linear",
            "cubic",
            "reflect",
            "wrap",
            "edge",
            "add",
            "mean",
            "CRD",
            "align_corners",
            "tf_crop_and_resize",
            "nearest",
        ];
        match self.0.below(4) {
            0 | 1 => int(self.one(NUMBERS), self.number()),
            2 => proto::Attribute { name: self.one(LISTS).into(), ints: self.list(), kind: 7, ..Default::default() },
            _ => {
                let s = Some(netcl_onnx::wire::Blob(self.one(WORDS).as_bytes().to_vec()));
                proto::Attribute { name: self.one(TEXTS).into(), s, kind: 3, ..Default::default() }
            }
        }
    }

    /// A small value of any kind and shape; `small` lists look like axes and shapes.
    fn value(&mut self) -> Array {
        const SHAPES: &[&[usize]] = &[
            &[],
            &[1],
            &[2],
            &[3],
            &[4],
            &[0],
            &[2, 3],
            &[3, 2],
            &[1, 2, 3],
            &[1, 2, 4, 4],
            &[2, 1, 3, 3],
            &[2, 0, 3],
            &[1 << 40, 0],
            &[1, 1, 2, 3, 3],
            &[1, 8, 4],
        ];
        const KINDS: &[Kind] = &[
            Kind::F32,
            Kind::F32,
            Kind::F32,
            Kind::I64,
            Kind::I64,
            Kind::I32,
            Kind::Bool,
            Kind::U8,
            Kind::I8,
            Kind::F16,
            Kind::F64,
            Kind::Text,
            Kind::U64,
            Kind::I4,
            Kind::E4M3Fn,
        ];
        let shape = self.one(SHAPES).to_vec();
        let kind = KINDS[self.0.below(KINDS.len())];
        let n: usize = shape.iter().product();
        if kind == Kind::Text {
            return Array { kind, shape, data: Data::Texts(vec!["text".to_owned(); n]) };
        }
        if kind.is_float() {
            let values = (0..n).map(|i| kind.decode(0).max([0.5, -1.0, 2.0, 0.0, 7.0][i % 5]));
            return Array { kind, shape, data: Data::Floats(values.collect()) };
        }
        let values = (0..n).map(|_| kind.wrap(i128::from(self.number()))).collect();
        Array { kind, shape, data: Data::Ints(values) }
    }

    /// One to three nodes over inputs of all kinds, the last ones over what the first ones made.
    fn case(&mut self, names: &[&str]) -> (proto::Model, Vec<Value>) {
        let count = 1 + self.0.below(6);
        let inputs: Vec<String> = (0..count).map(|i| format!("x{i}")).collect();
        let mut known: Vec<String> = inputs.clone();
        known.push(String::new());
        let mut nodes = Vec::new();
        for at in 0..1 + self.0.below(3) {
            let read: Vec<String> = (0..self.0.below(7)).map(|_| known[self.0.below(known.len())].clone()).collect();
            let outputs: Vec<String> = (0..1 + self.0.below(3)).map(|i| format!("y{at}_{i}")).collect();
            let mut attributes: Vec<proto::Attribute> = (0..self.0.below(5)).map(|_| self.attribute()).collect();
            let operator = self.one(names);
            if matches!(operator, "If" | "Scan" | "SequenceMap") {
                let body = || graph(&["a", "b"], &["b", "a", "c"], vec![node("Neg", &["a"], &["c"], vec![])], vec![]);
                attributes.extend(["then_branch", "else_branch", "body"].map(|name| graph_attribute(name, body())));
            }
            let refs = |list: &[String]| list.to_vec();
            nodes.push(proto::Node {
                op_type: operator.trim_start_matches("ai.onnx.ml:").to_owned(),
                domain: if operator.contains(':') { "ai.onnx.ml".to_owned() } else { String::new() },
                input: refs(&read),
                output: refs(&outputs),
                attribute: attributes,
                ..Default::default()
            });
            known.splice(0..0, outputs);
        }
        let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut made = model(graph(&names, &["y0_0"], nodes, vec![]));
        if self.0.below(4) == 0 {
            made.opset_import[0].version = self.number().clamp(1, 27);
        }
        let values = inputs.iter().map(|_| Value::from(self.value())).collect();
        (made, values)
    }
}

#[test]
fn nonsense_is_an_error() {
    let cases: u64 = std::env::var("FUZZ_FILES").map_or(1000, |cases| cases.parse().unwrap());
    let first: u64 = std::env::var("FUZZ_FIRST").map_or(0, |first| first.parse().unwrap());
    // Loops have a test of their own: their end takes seconds.
    let names: Vec<&str> = operators().into_iter().filter(|name| *name != "Loop").collect();
    let queue = manager().cpu().queue;
    let mut ran = 0;
    let loud = std::env::var("FUZZ_LOUD").is_ok();
    for seed in first..first + cases {
        let (made, values) = Nonsense(damage::Damage::new(seed)).case(&names);
        if loud {
            eprintln!("seed {seed}");
        }
        let start = Instant::now();
        let (result, peak) = memory::peak_of(|| {
            catch_unwind(AssertUnwindSafe(|| {
                read(&made.to_bytes(), &queue).is_ok_and(|model| model.run(values).is_ok())
            }))
        });
        let operators: Vec<&String> =
            made.graph.iter().flat_map(|graph| &graph.node).map(|node| &node.op_type).collect();
        ran += u64::from(result.unwrap_or_else(|_| panic!("{operators:?} panic with seed {seed}")));
        assert!(peak < MOST_MEMORY, "{operators:?} take {peak} bytes for seed {seed}");
        assert!(start.elapsed() < MOST_TIME, "{operators:?} take {:?} for seed {seed}", start.elapsed());
    }
    assert!(ran * 50 > cases, "only {ran} of {cases} models ran");
}

#[test]
fn folding_has_an_end() {
    // Each node could make half a megabyte of the same one.
    let queue = manager().cpu().queue;
    let names: Vec<String> = (0..20_000).map(|i| format!("y{i}")).collect();
    let nodes = names.iter().map(|name| node("Add", &["x", "x"], &[name], vec![])).collect();
    let long = model(graph(&[], &["y0"], nodes, vec![ints("x", &[1 << 16], &vec![1; 1 << 16])]));
    let (result, peak) = memory::peak_of(|| read(&long.to_bytes(), &queue).map(drop));
    assert!(result.is_ok() && peak < 512 << 20, "{peak}");
    // A table of all pairs.
    let pairs = vec![node("Mul", &["row", "column"], &["y"], vec![])];
    let ones = vec![1; 1 << 14];
    let table =
        model(graph(&[], &["y"], pairs, vec![ints("row", &[1, 1 << 14], &ones), ints("column", &[1 << 14, 1], &ones)]));
    let (result, peak) = memory::peak_of(|| read(&table.to_bytes(), &queue).map(drop));
    assert!(result.is_ok() && peak < 64 << 20, "{peak}");
    // A product of a column and a row, on the device.
    let column =
        proto::Attribute { t: Some(floats("", &[1 << 16, 1], &vec![1.0; 1 << 16])), kind: 4, ..list("value", &[]) };
    let row =
        proto::Attribute { t: Some(floats("", &[1, 1 << 16], &vec![1.0; 1 << 16])), kind: 4, ..list("value", &[]) };
    let constants = [node("Constant", &[], &["column"], vec![column]), node("Constant", &[], &["row"], vec![row])];
    for operator in ["MatMul", "Gemm", "Mean", "PRelu"] {
        let nodes = [&constants[..], &[node(operator, &["column", "row"], &["y"], vec![])]].concat();
        let made = model(graph(&[], &["y"], nodes, vec![])).to_bytes();
        let (result, peak) = memory::peak_of(|| read(&made, &queue).map(drop));
        assert!(result.is_ok() && peak < 64 << 20, "{operator} takes {peak}");
    }
    // Nodes that fail are tried, but not without end.
    let nodes = names.iter().map(|name| node("Sigmoid", &["x"], &[name], vec![])).collect();
    let failing = model(graph(&[], &["y0"], nodes, vec![ints("x", &[1 << 16], &vec![1; 1 << 16])])).to_bytes();
    let start = Instant::now();
    read(&failing, &queue).unwrap();
    assert!(start.elapsed() < MOST_TIME, "{:?}", start.elapsed());
}

#[test]
fn cycles_are_refused() {
    let nodes = vec![node("Neg", &["b"], &["a"], vec![]), node("Neg", &["a"], &["b"], vec![])];
    assert!(refused(&model(graph(&["x"], &["b"], nodes, vec![])).to_bytes()).contains("which nothing before it makes"));
    let own = vec![node("Neg", &["a"], &["a"], vec![])];
    assert!(refused(&model(graph(&["x"], &["a"], own, vec![])).to_bytes()).contains("which nothing before it makes"));
    let call = |name: &str, to: &str| proto::Function {
        name: name.to_owned(),
        domain: "own".to_owned(),
        input: vec!["x".to_owned()],
        output: vec!["y".to_owned()],
        node: vec![proto::Node { domain: "own".to_owned(), ..node(to, &["x"], &["y"], vec![]) }],
        ..Default::default()
    };
    let mut made = model(graph(&["x"], &["y"], call("", "f").node, vec![]));
    made.functions = vec![call("f", "g"), call("g", "f")];
    assert!(refused(&made.to_bytes()).contains("calls itself"));
}

#[test]
fn functions_multiply_within_limits() {
    // Each function calls the next one eight times: 8^20 nodes.
    let step = |name: String, to: String| proto::Function {
        name,
        domain: "own".to_owned(),
        input: vec!["x".to_owned()],
        output: vec!["y0".to_owned()],
        node: (0..8)
            .map(|i| proto::Node { domain: "own".to_owned(), ..node(&to, &["x"], &[&format!("y{i}")], vec![]) })
            .collect(),
        ..Default::default()
    };
    let mut made = model(graph(&["x"], &["y0"], step(String::new(), "f0".to_owned()).node, vec![]));
    made.functions = (0..20).map(|i| step(format!("f{i}"), format!("f{}", i + 1))).collect();
    let start = Instant::now();
    let (text, peak) = memory::peak_of(|| refused(&made.to_bytes()));
    assert!(text.contains("nodes") && peak < MOST_MEMORY && start.elapsed() < MOST_TIME, "{text} {peak}");
    // Each one copies an attribute of a megabyte 1000 times.
    let given = |name: &str| proto::Attribute {
        name: name.to_owned(),
        ref_attr_name: "v".to_owned(),
        kind: 4,
        ..Default::default()
    };
    let outputs: Vec<String> = (0..1000).map(|i| format!("y{i}")).collect();
    let constants = outputs.iter().map(|name| node("Constant", &[], &[name], vec![given("value")])).collect();
    let table = proto::Attribute {
        name: "v".to_owned(),
        t: Some(floats("", &[1 << 18], &vec![0.0; 1 << 18])),
        kind: 4,
        ..Default::default()
    };
    let call = proto::Node { domain: "own".to_owned(), ..node("f", &["x"], &["y"], vec![table]) };
    let mut made = model(graph(&["x"], &["y"], vec![call], vec![]));
    made.functions = vec![proto::Function { node: constants, ..step("f".to_owned(), String::new()) }];
    let (text, peak) = memory::peak_of(|| refused(&made.to_bytes()));
    assert!(text.contains("copy") && peak < MOST_MEMORY, "{text} {peak}");
    // One of its own, in a function that is called 1000 times.
    let table = proto::Attribute {
        name: "value".to_owned(),
        t: Some(floats("", &[1 << 18], &vec![0.0; 1 << 18])),
        kind: 4,
        ..Default::default()
    };
    let call = |name: &String| proto::Node { domain: "own".to_owned(), ..node("f", &["x"], &[name], vec![]) };
    let mut made = model(graph(&["x"], &["y0"], outputs.iter().map(call).collect(), vec![]));
    let own = vec![node("Constant", &[], &["y0"], vec![table])];
    made.functions = vec![proto::Function { node: own, ..step("f".to_owned(), String::new()) }];
    let (text, peak) = memory::peak_of(|| refused(&made.to_bytes()));
    assert!(text.contains("copy") && peak < MOST_MEMORY, "{text} {peak}");
}

#[test]
fn graphs_inside_of_nodes_cost_what_they_hold() {
    // Many names around many small graphs: nothing may be copied for each of them.
    let queue = manager().cpu().queue;
    let inner = || graph(&[], &["z"], vec![node("Neg", &["x"], &["z"], vec![])], vec![floats("c", &[], &[1.0])]);
    let names: Vec<String> = (0..10_000).map(|i| format!("y{i}")).collect();
    let branches = || vec![graph_attribute("then_branch", inner()), graph_attribute("else_branch", inner())];
    let nodes = names.iter().map(|name| node("If", &["go"], &[name], branches())).collect();
    let wide = model(graph(&["go", "x"], &["y0"], nodes, vec![]));
    let start = Instant::now();
    let (result, peak) = memory::peak_of(|| read(&wide.to_bytes(), &queue).map(drop));
    assert!(result.is_ok() && peak < MOST_MEMORY && start.elapsed() < MOST_TIME, "{peak} {:?}", start.elapsed());
}

#[cfg(unix)]
#[test]
fn external_data_leads_nowhere_else() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("model");
    std::fs::create_dir_all(inside.join("sub")).unwrap();
    for place in ["secret.bin", "model/data.bin", "model/sub/data.bin"] {
        std::fs::write(folder.path().join(place), [0; 64]).unwrap();
    }
    symlink(folder.path().join("secret.bin"), inside.join("link.bin")).unwrap();
    symlink(folder.path(), inside.join("up")).unwrap();
    symlink("/dev/zero", inside.join("zero")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status();
    let entry = |key: &str, value: &str| proto::Entry { key: key.to_owned(), value: value.to_owned() };
    let weight = |entries: Vec<proto::Entry>, dims: &[i64]| proto::Tensor {
        data_location: 1,
        external_data: entries,
        ..floats("w", dims, &[])
    };
    let read = |weights: Vec<proto::Tensor>| {
        let path = inside.join("model.onnx");
        std::fs::write(&path, model(graph(&[], &["w"], vec![], weights)).to_bytes()).unwrap();
        load(&path, &manager().cpu().queue).map(drop).map_err(|error| error.to_string())
    };
    let at = |location: &str| read(vec![weight(vec![entry("location", location)], &[16])]);
    for good in ["data.bin", "./data.bin", "sub/data.bin"] {
        at(good).unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    let outside =
        ["../secret.bin", "sub/../../secret.bin", "/etc/passwd", "link.bin", "up/secret.bin", "zero", "..", ""];
    for location in outside {
        let error = at(location).unwrap_err();
        assert!(error.contains("outside of the model's folder"), "{location}: {error}");
    }
    for location in ["sub", "none.bin", "data.bin\0", "."] {
        assert!(at(location).is_err(), "{location}");
    }
    if made.is_ok_and(|status| status.success()) {
        assert!(at("pipe").unwrap_err().contains("no file"));
    }
    for (key, value) in
        [("offset", "1"), ("offset", "-1"), ("offset", "18446744073709551615"), ("length", "63"), ("length", "x")]
    {
        let entries = vec![entry("location", "data.bin"), entry(key, value)];
        assert!(read(vec![weight(entries, &[16])]).is_err(), "{key} {value}");
    }
    // The shape alone takes no memory, and one file is no source of any amount of it.
    let (result, peak) = memory::peak_of(|| read(vec![weight(vec![entry("location", "data.bin")], &[1 << 30])]));
    assert!(result.is_err() && peak < 16 << 20, "{peak}");
    let many = |n: usize| {
        (0..n).map(|i| proto::Tensor { name: format!("w{i}"), ..weight(vec![entry("location", "data.bin")], &[16]) })
    };
    assert!(read(many(4).chain([floats("w", &[], &[1.0])]).collect()).is_ok());
    assert!(read(many(1000).collect()).unwrap_err().contains("too many tensors"));
}

#[test]
fn a_loop_collects_within_limits() {
    let body = graph(&["i", "go"], &["go", "x"], vec![], vec![]);
    let body = proto::Graph {
        node: vec![node("Identity", &["go"], &["on"], vec![])],
        output: graph(&[], &["on", "x"], vec![], vec![]).output,
        ..body
    };
    let nodes = vec![node("Loop", &["rounds"], &["y"], vec![graph_attribute("body", body)])];
    let made = model(graph(&["x"], &["y"], nodes, vec![ints("rounds", &[], &[i64::MAX])]));
    let x = Tensor::from_host(&manager().cpu().queue, &vec![0.0f32; 1 << 20], [1 << 20]).unwrap();
    let queue = manager().cpu().queue;
    let (result, peak) = memory::peak_of(|| read(&made.to_bytes(), &queue).unwrap().run(vec![x.into()]).map(drop));
    let text = result.unwrap_err().to_string();
    // Without an end of its own, inside of another one.
    let inner = graph(&["i", "go"], &["on"], vec![node("Identity", &["go"], &["on"], vec![])], vec![]);
    let inner = graph_attribute("body", inner);
    let endless = vec![proto::Node { output: vec![], ..node("Loop", &["rounds", ""], &[""], vec![inner]) }];
    let around = vec![node("Identity", &["go"], &["on"], vec![])];
    let outer = graph(&["i", "go"], &["on"], [endless, around].concat(), vec![]);
    let body = graph_attribute("body", outer);
    let nodes = vec![proto::Node { output: vec![], ..node("Loop", &["rounds"], &[""], vec![body]) }];
    let made = model(graph(&[], &["rounds"], nodes, vec![ints("rounds", &[], &[i64::MAX])]));
    let error = read(&made.to_bytes(), &queue).unwrap().run(vec![]).unwrap_err().to_string();
    assert!(error.contains("rounds in a run"), "{error}");
    assert!(text.contains("collects") && peak < MOST_MEMORY, "{text} {peak}");
}
