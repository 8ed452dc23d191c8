//! Random tensors: the same bits on every device, the right moments, and honest errors.

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::random::{Generator, manual_seed};
use netcl_core::tensor::Tensor;
use netcl_ops::random::{bernoulli, normal, permutation, uniform};

use crate::support::{devices, epsilon, supports};

#[test]
fn bits_and_uniforms_are_equal_on_every_device() {
    for device in devices() {
        for dtype in DType::FLOATS {
            if !supports(&device, dtype) {
                continue;
            }
            for n in [1, 2, 3, 5, 64, 1023, 40_001] {
                let at = || Generator { seed: 0x1234_5678_9abc_def0, offset: u64::from(u32::MAX) - 3 };
                let cpu = manager().cpu().queue;
                let both = |draw: &dyn Fn(&netcl_core::backend::Queue) -> Tensor| {
                    (draw(&device.queue).to_f64_vec().unwrap(), draw(&cpu).to_f64_vec().unwrap())
                };
                let (a, b) = both(&|q| uniform(q, [n], dtype, 0.0, 1.0, Some(&mut at())).unwrap());
                assert_eq!(a, b, "{device:?} {dtype} {n}");
                let (a, b) = both(&|q| uniform(q, [n], dtype, -0.3, 2.5, Some(&mut at())).unwrap());
                assert_eq!(a, b, "{device:?} {dtype} {n}");
                let (a, b) = both(&|q| bernoulli(q, [n], dtype, 0.37, Some(&mut at())).unwrap());
                assert_eq!(a, b, "{device:?} {dtype} {n}");
                let (a, b) = both(&|q| normal(q, [n], dtype, 0.0, 1.0, Some(&mut at())).unwrap());
                for (a, b) in a.iter().zip(&b) {
                    assert!((a - b).abs() <= 4.0 * epsilon(dtype) * b.abs(), "{device:?} {dtype} {n}: {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn moments_are_right_and_draws_differ() {
    for device in devices() {
        let n = 200_000;
        let mut generator = Generator::new(3);
        let moments = |t: &Tensor| {
            let v = t.to_f64_vec().unwrap();
            let mean = v.iter().sum::<f64>() / n as f64;
            (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64)
        };
        let u = uniform(&device.queue, [n], DType::F32, 2.0, 4.0, Some(&mut generator)).unwrap();
        let (mean, var) = moments(&u);
        assert!((mean - 3.0).abs() < 0.01 && (var - 1.0 / 3.0).abs() < 0.01, "{mean} {var}");
        let z = normal(&device.queue, [n], DType::F32, 5.0, 2.0, Some(&mut generator)).unwrap();
        let (mean, var) = moments(&z);
        assert!((mean - 5.0).abs() < 0.03 && (var - 4.0).abs() < 0.08, "{mean} {var}");
        let (mean, _) = moments(&bernoulli(&device.queue, [n], DType::F32, 0.25, Some(&mut generator)).unwrap());
        assert!((mean - 0.25).abs() < 0.01);
        let again = uniform(&device.queue, [n], DType::F32, 2.0, 4.0, Some(&mut generator)).unwrap();
        assert_ne!(u.to_f64_vec().unwrap()[..8], again.to_f64_vec().unwrap()[..8]);
    }
}

#[test]
fn the_process_wide_generator_repeats_after_a_seed() {
    let q = manager().cpu().queue;
    let draw = || {
        manual_seed(11);
        let a = normal(&q, [5], DType::F64, 0.0, 1.0, None).unwrap().to_f64_vec().unwrap();
        let b = permutation(&q, 20, None).unwrap().to_host().unwrap();
        (a, b)
    };
    let (first, second) = (draw(), draw());
    assert_eq!(first, second);
    let mut sorted = first.1.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..20).collect::<Vec<i64>>());
    assert_ne!(first.1, sorted);
}

#[test]
fn bad_requests_are_explained() {
    let q = manager().cpu().queue;
    assert!(uniform(&q, [2], DType::F32, 1.0, 0.0, None).unwrap_err().to_string().contains("in order"));
    assert!(normal(&q, [2], DType::F32, 0.0, -1.0, None).unwrap_err().to_string().contains("not negative"));
    assert!(bernoulli(&q, [2], DType::F32, 1.5, None).unwrap_err().to_string().contains("not a probability"));
    assert!(uniform(&q, [2], DType::I64, 0.0, 1.0, None).is_err());
    assert_eq!(uniform(&q, [0, 3], DType::F32, 0.0, 1.0, None).unwrap().size(), 0);
}
