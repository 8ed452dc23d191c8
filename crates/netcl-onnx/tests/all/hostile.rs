//! Damaged and hostile files: a model or an error, no panic, no hang, no more memory than the limits allow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use netcl_nn::autograd::{Tensor, manager};
use netcl_onnx::{Value, read};

use crate::build::{floats, graph, ints, model, network, node};

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
