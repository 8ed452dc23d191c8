//! The gradient of every op: against finite differences in f64, twice, and in f32 on every device against f64.

use std::collections::BTreeMap;

use netcl_autograd::gradcheck::{Tolerance, gradcheck, gradgradcheck};
use netcl_autograd::{BackwardOptions, Tensor, grad};
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::kernels::expr::table;

use crate::support::{Case, SECOND, cases, cpu, devices, leaf};

#[test]
fn differences_agree_on_the_cpu() {
    let all = cases();
    assert!(all.len() >= table::ops().len() + 60, "only {} cases", all.len());
    for case in &all {
        let leaves = case.leaves(&cpu(), DType::F64);
        gradcheck(&case.function, &leaves.iter().collect::<Vec<_>>(), Tolerance::default())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn second_derivatives_agree_on_the_cpu() {
    for case in &cases() {
        let leaves = case.leaves(&cpu(), DType::F64);
        // Squared, so that linear ops have a second derivative as well.
        let squared = |t: &[&Tensor]| (case.function)(t)?.square();
        gradgradcheck(squared, &leaves.iter().collect::<Vec<_>>(), SECOND)
            .unwrap_or_else(|error| panic!("{} twice: {error}", case.name));
    }
}

/// The devices that the tests of a place look at: the CPU is the first, the last place stands for all that follow.
fn at(place: usize) -> impl Iterator<Item = DeviceHandle> {
    let found = devices();
    if found.len() <= place {
        eprintln!("NOT TESTED: there are {} devices here, and this test looks at others", found.len());
    }
    found.into_iter().enumerate().filter(move |(i, _)| (*i).min(2) == place).map(|(_, device)| device)
}

fn differences_of_heavy_ops_agree(place: usize) {
    for device in at(place).filter(|device| device.queue.check_dtype("gradcheck", DType::F64).is_ok()) {
        let heavy: Vec<Case> =
            cases().into_iter().filter(|case| case.heavy && !case.name.contains("keepdims true")).collect();
        // Drivers that take long for each kernel run a fixed part.
        for case in heavy.iter().step_by(if place == 2 { 4 } else { 1 }) {
            let leaves = case.leaves(&device.queue, DType::F64);
            gradcheck(&case.function, &leaves.iter().collect::<Vec<_>>(), Tolerance::default())
                .unwrap_or_else(|error| panic!("{} on {}: {error}", case.name, device.platform_name));
        }
        device.queue.finish().unwrap();
    }
}

/// The gradients of a case for one fixed gradient of its output.
fn gradients(case: &Case, leaves: &[Tensor]) -> Vec<Vec<f64>> {
    let refs: Vec<&Tensor> = leaves.iter().collect();
    let output = (case.function)(&refs).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    if !output.requires_grad() {
        return leaves.iter().map(|t| vec![0.0; t.size()]).collect();
    }
    let seed = leaf(output.queue(), output.dtype(), output.shape(), 99, (0.25, 1.0)).detach();
    let found = grad(&[&output], &refs, &[Some(&seed)], BackwardOptions::default())
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    found.iter().zip(leaves).map(|(g, t)| g.as_ref().map_or(vec![0.0; t.size()], |g| g.to_f64_vec().unwrap())).collect()
}

// One test per device, so that they run side by side.

#[test]
fn differences_of_heavy_ops_agree_on_the_first_device() {
    differences_of_heavy_ops_agree(1);
}

#[test]
fn differences_of_heavy_ops_agree_on_other_devices() {
    differences_of_heavy_ops_agree(2);
}

#[test]
fn gradients_agree_with_f64_natively() {
    let cells = gradients_agree_with_f64(0);
    assert!(cells["netcl float32"] >= table::ops().len() + 100, "{cells:?}");
}

#[test]
fn gradients_agree_with_f64_on_the_first_device() {
    gradients_agree_with_f64(1);
}

#[test]
fn gradients_agree_with_f64_on_other_devices() {
    gradients_agree_with_f64(2);
}

/// Gradients in f32 and 16 bits against those in f64.
fn gradients_agree_with_f64(place: usize) -> BTreeMap<String, usize> {
    let mut cells: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for device in at(place) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let (relative, absolute) = match dtype {
                DType::F32 => (2e-5, 2e-5),
                DType::F16 => (2e-2, 1e-2),
                _ => (1e-1, 6e-2),
            };
            // Gradients of every op on the CPU, of a fixed part elsewhere: every kernel is built anew there.
            let every = match (place, dtype) {
                (0, _) | (1, DType::F32) => 1,
                (_, DType::F32) => 6,
                _ => 24,
            };
            for case in cases().iter().step_by(every) {
                // The reference sees the numbers that the device sees, after rounding.
                let leaves = case.leaves(&device.queue, dtype);
                let exact: Vec<Tensor> = leaves
                    .iter()
                    .map(|t| {
                        let rounded = t.to_f64_vec().unwrap();
                        Tensor::from_host(&cpu(), &rounded, t.shape().clone()).unwrap().with_grad()
                    })
                    .collect();
                *cells.entry(format!("{} {dtype}", device.platform_name)).or_default() += 1;
                for (i, (got, expected)) in gradients(case, &leaves).iter().zip(gradients(case, &exact)).enumerate() {
                    let largest = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                    let near = |g: f64, e: f64| (g - e).abs() <= absolute * largest.max(1.0) + relative * e.abs();
                    let wrong = got.iter().zip(&expected).position(|(&g, &e)| !near(g, e));
                    if let Some(at) = wrong {
                        failures.push(format!(
                            "{} {dtype} on {}: element {at} of gradient {i} is {}, expected {}",
                            case.name, device.platform_name, got[at], expected[at]
                        ));
                    }
                }
            }
        }
    }
    println!("gradient cells: {cells:?}");
    assert!(failures.is_empty(), "{} cells failed:\n{}", failures.len(), failures.join("\n"));
    cells
}
