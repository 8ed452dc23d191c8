//! Dropout: the same mask on every device, in forward and backward, and a new one for each call and each replay.

use std::rc::Rc;

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{Counter, Recorder, Slot, with_sink};
use netcl_core::random::{Generator, default_generator};
use netcl_core::tensor::Tensor;
use netcl_ops as ops;
use netcl_ops::dropout::MaskPlace;

use crate::support::{Grid, Tolerance, devices, random, supports, tensor};

#[test]
fn every_device_and_dtype_drops_what_bernoulli_says() {
    let mut grid = Grid::new("dropout");
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                grid.skip("the device has no float64");
                continue;
            }
            for (shape, p) in [(vec![1], 0.5), (vec![5, 7], 0.25), (vec![3, 1000, 3], 0.1), (vec![40_001], 0.9)] {
                grid.cell(&device, format!("{dtype} {shape:?} {p}"), || {
                    let n: usize = shape.iter().product();
                    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
                    let x = tensor(&device.queue, &random(n, 1, (-3.0, 3.0)), reversed, dtype).0;
                    let x = x.permute(&(0..shape.len() as isize).rev().collect::<Vec<_>>()).unwrap();
                    let start = Generator { seed: 9, offset: u64::MAX - 2 };
                    let mut generator = start;
                    let (y, place) = ops::dropout(&x, p, Some(&mut generator)).map_err(|e| e.to_string())?;
                    assert_eq!(generator.offset, start.offset.wrapping_add(n.div_ceil(4) as u64));
                    let cpu = manager().cpu().queue;
                    let mask =
                        ops::random::bernoulli(&cpu, [n], DType::F32, 1.0 - p, Some(&mut start.clone())).unwrap();
                    let mask = mask.to_f64_vec().unwrap();
                    let masked = |x: &Tensor| -> Vec<f64> {
                        x.to_f64_vec().unwrap().iter().zip(&mask).map(|(x, m)| x * m / (1.0 - p)).collect()
                    };
                    Tolerance::strict(dtype).check(&y.to_f64_vec().unwrap(), &masked(&x))?;
                    let grad = tensor(&device.queue, &random(n, 2, (-1.0, 1.0)), &shape[..], dtype).0;
                    let back = ops::dropout_backward(&grad, p, &place).map_err(|e| e.to_string())?;
                    Tolerance::strict(dtype).check(&back.to_f64_vec().unwrap(), &masked(&grad))
                });
            }
        }
    }
    grid.finish(16);
}

#[test]
fn extreme_probabilities_and_values() {
    for device in devices() {
        let x = tensor(&device.queue, &[1.0, f64::INFINITY, f64::NAN, -2.0], [4], DType::F32).0;
        let (y, _) = ops::dropout(&x, 0.0, None).unwrap();
        assert!(y.to_host::<f32>().unwrap()[2].is_nan() && !y.shares_storage(&x));
        assert_eq!(ops::dropout(&x, 1.0, None).unwrap().0.to_host::<f32>().unwrap(), [0.0; 4], "{device:?}");
        assert_eq!(
            ops::dropout(&x.slice(0, netcl_core::shape::Slice::new(None, Some(0), 1)).unwrap(), 0.5, None)
                .unwrap()
                .0
                .size(),
            0
        );
        for p in [-0.1, 1.5, f64::NAN] {
            let text = ops::dropout(&x, p, None).unwrap_err().to_string();
            assert!(text.contains("is not a probability"), "{text}");
        }
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
    let labels = Tensor::from_host(&manager().cpu().queue, &[1i64], [1]).unwrap();
    assert!(ops::dropout(&labels, 0.5, None).unwrap_err().to_string().contains("expected a float tensor"));
}

#[test]
fn each_call_draws_anew_and_the_share_is_right() {
    for device in devices() {
        let n = 1 << 18;
        let x = Tensor::full(&device.queue, [n], DType::F32, 1.0).unwrap();
        let before = default_generator();
        let (first, place) = ops::dropout(&x, 0.3, None).unwrap();
        let (second, other) = ops::dropout(&x, 0.3, None).unwrap();
        assert_eq!((place.seed(), place.offset()), (before.seed, before.offset));
        assert_eq!(other.offset(), before.offset + ops::dropout_blocks(n));
        let (first, second) = (first.to_host::<f32>().unwrap(), second.to_host::<f32>().unwrap());
        let dropped = |v: &[f32]| v.iter().filter(|v| **v == 0.0).count() as f64 / n as f64;
        // Five standard deviations of n draws.
        for share in [dropped(&first), dropped(&second)] {
            assert!((share - 0.3).abs() < 5.0 * (0.21f64 / n as f64).sqrt(), "{share}");
        }
        let both = first.iter().zip(&second).filter(|(a, b)| **a == 0.0 && **b == 0.0).count() as f64 / n as f64;
        assert!((both - 0.09).abs() < 5.0 * (0.09f64 / n as f64).sqrt(), "the masks are not independent: {both}");
    }
}

#[test]
fn a_replay_draws_the_mask_of_its_slot() {
    for device in devices() {
        let x = Tensor::full(&device.queue, [1000], DType::F32, 1.0).unwrap();
        let slot = Slot::integer(0);
        let place = MaskPlace::in_slot(5, slot.clone());
        let recorder = Rc::new(Recorder::default());
        let (y, back) = with_sink(recorder.clone(), || {
            (ops::dropout_at(&x, 0.5, &place).unwrap(), ops::dropout_backward(&x, 0.5, &place).unwrap())
        });
        let mut seen = Vec::new();
        for offset in [0, 250, 500] {
            slot.set_integer(offset);
            recorder.replay().unwrap();
            let eager = ops::dropout_at(&x, 0.5, &MaskPlace::from(Generator { seed: 5, offset })).unwrap();
            let got = y.to_host::<f32>().unwrap();
            assert_eq!(got, eager.to_host::<f32>().unwrap(), "{device:?}");
            assert_eq!(got, back.to_host::<f32>().unwrap(), "{device:?}");
            assert!(!seen.contains(&got), "{device:?}");
            seen.push(got);
        }
    }
}

#[test]
fn one_launch() {
    for device in devices() {
        let x = Tensor::full(&device.queue, [10, 10], DType::F32, 1.0).unwrap();
        let counter = Rc::new(Counter::default());
        with_sink(counter.clone(), || ops::dropout(&x, 0.5, None).unwrap());
        assert_eq!((counter.launches(), counter.of("dropout"), counter.allocations().0), (1, 1, 1));
        // Nothing may be under way when the process ends.
        device.queue.finish().unwrap();
    }
}
