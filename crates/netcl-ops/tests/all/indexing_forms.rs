//! Reading and adding at indices that recorded launches meet, and kernel files by themselves.

use std::rc::Rc;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch::{Recorder, with_sink};
use netcl_core::random::{Generator, fill_below_i64};
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_ops as ops;

use crate::support::{Tolerance, devices, epsilon, random, tensor};

fn below(n: usize, count: usize, seed: u64) -> Vec<i64> {
    let mut out = vec![0; count];
    fill_below_i64(&mut out, n as i64, &Generator::new(seed)).unwrap();
    out
}

/// Recorded launches meet wrong indices among others, in rows of several vectors: reads give NaN, additions are left out.
#[test]
fn recorded_wrong_indices_in_long_rows() {
    let (n, k, width) = (30, 50, 75);
    for device in devices() {
        let Queue::OpenCl(_) = &device.queue else { continue };
        let queue = &device.queue;
        let rows = |rows: usize, seed: u64| {
            let x = tensor(queue, &random((rows + 1) * width, seed, (-2.0, 2.0)), [rows + 1, width], DType::F32).0;
            x.slice(0, Slice::new(Some(1), None, 1)).unwrap()
        };
        let (table, source) = (rows(n, 1), rows(k, 2));
        let mut values = below(n, k, 3);
        for (at, wrong) in [(0, -1), (7, n as i64), (8, i64::MIN), (49, i64::MAX)] {
            values[at] = wrong;
        }
        let (tables, sources) = (table.to_host::<f32>().unwrap(), source.to_host::<f32>().unwrap());
        let inside = |v: i64| (0..n as i64).contains(&v);
        let mut summed = vec![0.0f64; n * width];
        for (row, &v) in values.iter().enumerate().filter(|(_, v)| inside(**v)) {
            for c in 0..width {
                summed[v as usize * width + c] += f64::from(sources[row * width + c]);
            }
        }
        let indices = IndexTensor::from_host(queue, &below(n, k, 4), [k]).unwrap();
        let recorder = Rc::new(Recorder::default());
        let (taken, added) = with_sink(recorder.clone(), || {
            let taken = ops::embedding(&table, &indices).unwrap();
            (taken, ops::embedding_backward(&source, &indices, n, None).unwrap())
        });
        indices.tensor().assign(&Tensor::from_host(queue, &values, [k]).unwrap()).unwrap();
        recorder.replay().unwrap();
        let taken = taken.to_host::<f32>().unwrap();
        for (row, &v) in values.iter().enumerate() {
            let got = &taken[row * width..][..width];
            match inside(v) {
                true => assert_eq!(got, &tables[v as usize * width..][..width], "{device:?}"),
                false => assert!(got.iter().all(|v| v.is_nan()), "{device:?} {v}"),
            }
        }
        let close = Tolerance { relative: epsilon(DType::F32), absolute: 8.0 * k as f64 * epsilon(DType::F32) };
        close.check(&added.to_f64_vec().unwrap(), &summed).unwrap();
    }
}
