//! How many launches a layer norm takes: one forward, at most two backward, at any size.

use std::rc::Rc;

use netcl_core::dtype::DType;
use netcl_core::kernels::group_limit::force_full_groups;
use netcl_core::kernels::launch::{Counter, with_sink};
use netcl_ops::norm::{Affine, layer_norm, layer_norm_backward};

use crate::support::{devices, random, tensor};

#[test]
fn layer_norm_is_one_launch_and_at_most_two_backward() {
    // One row, several rows to a group, many slots to add up, vectors and single elements, rows that fill a group's registers
    // and rows that do not fit into them.
    let shapes = [[1, 40], [37, 100], [3000, 64], [20_000, 8], [5, 1025], [300, 4096], [3, 9000]];
    for device in devices() {
        let on_opencl = device.backend.name() == "cl";
        let portable = device.platform_name.contains("Portable");
        for shape in shapes {
            // PoCL takes seconds for groups of hundreds of work-items.
            if portable && !matches!(shape[1], 64 | 9000) {
                continue;
            }
            let [rows, n] = shape;
            let make = |n: usize, seed: u64| tensor(&device.queue, &random(n, seed, (-1.0, 2.0)), [n], DType::F32).0;
            let (weight, bias) = (make(n, 3), make(n, 4));
            let wide = |seed: u64| netcl_core::tensor::reshape(&make(rows * n, seed), shape).unwrap();
            let (x, grad) = (wide(1), wide(2));
            for (with_weight, with_bias) in [(true, true), (true, false), (false, true), (false, false)] {
                let affine = Affine { weight: with_weight.then_some(&weight), bias: with_bias.then_some(&bias) };
                let what = format!("{shape:?} weight {with_weight} bias {with_bias} on {}", device.device_name);
                let counter = Rc::new(Counter::default());
                let forward = || force_full_groups(|| layer_norm(&x, 1, affine, 1e-5));
                let y = with_sink(counter.clone(), forward).unwrap();
                assert_eq!(counter.launches(), 1, "forward, {what}: {:?}", counter.names());
                let counter = Rc::new(Counter::default());
                let backward = || force_full_groups(|| layer_norm_backward(&grad, &x, 1, affine, &y.mean, &y.rstd));
                let found = with_sink(counter.clone(), backward).unwrap();
                // Parameters' gradients are sums over rows: the native CPU needs no second launch for the sums of its threads.
                let most = if on_opencl && (with_weight || with_bias) { 2 } else { 1 };
                assert!(counter.launches() <= most, "backward, {what}: {:?}", counter.names());
                assert_eq!((found.weight.is_some(), found.bias.is_some()), (with_weight, with_bias), "{what}");
            }
        }
    }
}
