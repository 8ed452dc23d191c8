//! The test grid: every op on every device and dtype, held against f64; cells are counted, skips are named.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::process::Command;

use netcl_core::backend::Queue;
use netcl_core::device::{DeviceHandle, manager};
use netcl_core::dtype::DType;
use netcl_core::shape::Shape;
use netcl_core::tensor::{HostOptions, Tensor};

/// The native CPU and every OpenCL device. A machine without OpenCL is named, and fails the run where all must be tested.
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

/// Every OpenCL device. Under the checker there must be one, and it must be the checker: tests of nothing would pass.
pub(crate) fn opencl() -> Vec<DeviceHandle> {
    let found: Vec<DeviceHandle> = devices().into_iter().filter(|d| d.backend.name() == "cl").collect();
    if std::env::var_os("OCLGRIND_LOG").is_some() {
        let names: Vec<&str> = found.iter().map(|d| d.platform_name.as_str()).collect();
        assert_eq!(names, ["Oclgrind"], "this run is meant for the checker alone");
    }
    found
}

/// Marks the processes of [`in_child`].
const CHILD: &str = "NETCL_TEST_CHILD";

/// Runs a test, named with its module, in a process of its own: what the environment says is read once. Gives what it printed.
pub(crate) fn in_child(test: &str, variable: &str, value: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs([(CHILD, "1"), (variable, value)])
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} with {variable}={value}:\n{text}{errors}");
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
    text.into_owned()
}

/// Whether this process was started by [`in_child`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Every how many of its cells a device runs: kernels take PoCL 0.2 to 0.4 s to build and Intel's driver 0.1 s. The native CPU runs
/// all cells, and so does every device where `cargo xtask test --full` sets `NETCL_TEST_FULL`.
pub(crate) fn every(device: &DeviceHandle, pocl: usize, others: usize) -> usize {
    match device.backend.name() {
        "cpu" => 1,
        _ if std::env::var_os("NETCL_TEST_FULL").is_some() => 1,
        _ if device.platform_name.contains("Portable") => pocl,
        _ => others,
    }
}

/// Numbers without a pattern, the same for the same seed, uniform between the bounds.
pub(crate) fn random(n: usize, seed: u64, (low, high): (f64, f64)) -> Vec<f64> {
    let generator = netcl_core::random::Generator::new(seed);
    let mut out = vec![0.0f64; n];
    netcl_core::random::fill_uniform_f64(&mut out, &generator).unwrap();
    out.into_iter().map(|u| low + u * (high - low)).collect()
}

/// A tensor of a dtype, and the values it really holds after rounding.
pub(crate) fn tensor(queue: &Queue, values: &[f64], shape: impl Into<Shape>, dtype: DType) -> (Tensor, Vec<f64>) {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    let tensor = Tensor::from_host_with(queue, values, shape, options).unwrap();
    let rounded = tensor.to_f64_vec().unwrap();
    (tensor, rounded)
}

/// How far a result may lie from its reference: a multiple of the dtype's rounding, relative and absolute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) relative: f64,
    pub(crate) absolute: f64,
}

impl Tolerance {
    /// A few roundings of single operations.
    pub(crate) fn strict(dtype: DType) -> Self {
        Tolerance { relative: 4.0 * epsilon(dtype), absolute: 4.0 * epsilon(dtype) * 1e-3 }
    }

    /// Short sums and compositions.
    pub(crate) fn balanced(dtype: DType) -> Self {
        Tolerance { relative: 32.0 * epsilon(dtype), absolute: 32.0 * epsilon(dtype) }
    }

    /// Long sums with cancellation.
    pub(crate) fn permissive(dtype: DType) -> Self {
        Tolerance { relative: 256.0 * epsilon(dtype), absolute: 256.0 * epsilon(dtype) }
    }

    /// An error that names the first element outside the tolerance. NaN equals NaN, infinities must be equal.
    pub(crate) fn check(self, got: &[f64], expected: &[f64]) -> Result<(), String> {
        if got.len() != expected.len() {
            return Err(format!("{} elements instead of {}", got.len(), expected.len()));
        }
        for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
            let same = g == e || (g.is_nan() && e.is_nan());
            let near = (g - e).abs() <= self.absolute + self.relative * e.abs();
            if !same && !near {
                return Err(format!("element {i} is {g:e}, expected {e:e} (tolerance {self:?})"));
            }
        }
        Ok(())
    }
}

/// The distance from 1 to the next number of a dtype.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

/// Counts the cells of a test: run, failed, and skipped with the reason.
pub(crate) struct Grid {
    name: &'static str,
    run: BTreeMap<String, usize>,
    skipped: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Grid {
    pub(crate) fn new(name: &'static str) -> Self {
        Grid { name, run: BTreeMap::new(), skipped: BTreeMap::new(), failures: Vec::new() }
    }

    /// Runs one cell; `what` names it in a failure.
    pub(crate) fn cell(
        &mut self,
        device: &DeviceHandle,
        what: impl Display,
        body: impl FnOnce() -> Result<(), String>,
    ) {
        *self.run.entry(device.platform_name.clone()).or_default() += 1;
        if let Err(why) = body() {
            self.failures.push(format!("{} / {what}: {why}", device.device_name));
        }
    }

    /// Leaves a cell out for a reason that must be in the list of accepted ones.
    pub(crate) fn skip(&mut self, reason: &'static str) {
        const ACCEPTED: [&str; 2] = ["the device has no float64", "the device has no matrix units"];
        assert!(ACCEPTED.contains(&reason), "{reason:?} is not an accepted reason to skip a cell");
        *self.skipped.entry(reason.to_owned()).or_default() += 1;
    }

    /// Prints the counts; fails on any failure and on fewer cells than expected on the native CPU.
    pub(crate) fn finish(self, at_least: usize) {
        println!("grid {}: run {:?}, skipped {:?}, failed {}", self.name, self.run, self.skipped, self.failures.len());
        for failure in self.failures.iter().take(20) {
            println!("  {failure}");
        }
        assert!(self.failures.is_empty(), "{} cells of {} failed", self.failures.len(), self.name);
        let cpu = self.run.get("netcl").copied().unwrap_or(0);
        assert!(cpu >= at_least, "{}: only {cpu} cells ran on the CPU, {at_least} are expected", self.name);
    }
}

/// Whether a device can hold a dtype.
pub(crate) fn supports(device: &DeviceHandle, dtype: DType) -> bool {
    device.queue.check_dtype("grid", dtype).is_ok()
}
