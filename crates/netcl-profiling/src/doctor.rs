//! Does a device compute what it should? Small tests with answers known beforehand, and advice for what is missing.

use std::time::{Duration, Instant};

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::{
    Arg, Buffer, ClError, Deps, DeviceType, Discovery, Grid, MapMode, MemFlags, Source, Stream,
};
use netcl_core::device::DeviceHandle;
use netcl_core::dtype::DType;
use netcl_core::env;
use netcl_core::error::Result;
use netcl_core::random::{Generator, PHILOX_CL, fill_bits};
use netcl_core::shape::Slice;
use netcl_core::tensor::{HostOptions, Tensor};

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device gave the right answer.
    Passed,
    /// It gave a wrong one, or an error; the text says which.
    Failed(String),
    /// The check does not apply to this device; the text says why.
    Skipped(&'static str),
}

/// One check and how it ended.
#[derive(Clone, Debug)]
pub struct Check {
    /// What was checked, in a few words.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, compilation included.
    pub took: Duration,
}

type Test = fn(&Queue) -> Result<Outcome>;

/// The checks, in the order in which they run.
const CHECKS: [(&str, Test); 9] = [
    ("fill", fill),
    ("upload and download", transfers),
    ("mapped memory", mapped),
    ("strided copy", strided),
    ("casts", casts),
    ("arithmetic", arithmetic),
    ("random bits", random_bits),
    ("local memory", local_memory),
    ("half precision", half_precision),
];

/// The names of all checks, in order.
pub fn check_names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

/// Runs every check on a device. `before` is called with the name of each before it runs; `false` ends the run there.
///
/// ```
/// use netcl_core::device::manager;
/// use netcl_profiling::doctor::{Outcome, self_test};
///
/// let checks = self_test(&manager().cpu(), |_| true);
/// assert!(checks.iter().all(|check| !matches!(check.outcome, Outcome::Failed(_))));
/// ```
pub fn self_test(device: &DeviceHandle, mut before: impl FnMut(&'static str) -> bool) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, test) in CHECKS {
        if !before(name) {
            break;
        }
        let start = Instant::now();
        let outcome = test(&device.queue).unwrap_or_else(|error| Outcome::Failed(error.to_string()));
        checks.push(Check { name, outcome, took: start.elapsed() });
    }
    checks
}

/// Values that every float dtype holds exactly: quarters of small whole numbers.
fn exact(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 255) as f32 * 0.25 - 31.75).collect()
}

/// Passed if the two are equal, else the first place where they differ.
fn compare<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], expected: &[T]) -> Outcome {
    if got.len() != expected.len() {
        return Outcome::Failed(format!("{what}: {} values instead of {}", got.len(), expected.len()));
    }
    match got.iter().zip(expected).position(|(a, b)| a != b) {
        None => Outcome::Passed,
        Some(at) => Outcome::Failed(format!("{what}: element {at} is {:?} instead of {:?}", got[at], expected[at])),
    }
}

/// The first that did not pass, else passed.
fn all(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    outcomes.into_iter().find(|outcome| *outcome != Outcome::Passed).unwrap_or(Outcome::Passed)
}

const NATIVE: Outcome = Outcome::Skipped("the native CPU has none");

fn fill(queue: &Queue) -> Result<Outcome> {
    let tensor = Tensor::full(queue, [1001], DType::F32, 1.5)?;
    let part = tensor.slice(0, Slice::new(Some(1), None, 2))?;
    part.fill(-2.0)?;
    let expected: Vec<f32> = (0..1001).map(|i| if i % 2 == 1 { -2.0 } else { 1.5 }).collect();
    Ok(compare("fill", &tensor.to_host::<f32>()?, &expected))
}

fn transfers(queue: &Queue) -> Result<Outcome> {
    let data = exact(100_003);
    let mut outcomes = Vec::new();
    for (asynchronous, pinned) in [(false, false), (false, true), (true, false), (true, true)] {
        let options = HostOptions { dtype: None, async_copy: Some(asynchronous), use_pinned: Some(pinned) };
        let tensor = Tensor::from_host_with(queue, &data, [data.len()], options)?;
        let what = format!("asynchronous {asynchronous}, pinned {pinned}");
        outcomes.push(compare(&what, &tensor.to_host::<f32>()?, &data));
    }
    Ok(all(outcomes))
}

fn mapped(queue: &Queue) -> Result<Outcome> {
    let Queue::OpenCl(stream) = queue else { return Ok(NATIVE) };
    let data: Vec<u8> = (0..10_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut outcomes = Vec::new();
    for flags in [MemFlags::READ_WRITE, MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR] {
        let buffer = Buffer::new(stream.context(), flags, data.len())?;
        let mut map = stream.queue().map(&buffer, 0..data.len(), MapMode::Overwrite, &[])?;
        map.bytes_mut().unwrap_or_default().copy_from_slice(&data);
        map.unmap(Deps::NONE)?;
        let mut back = vec![0_u8; data.len()];
        stream.queue().read(&buffer, 0, &mut back)?;
        outcomes.push(compare("read after map", &back, &data));
        let map = stream.queue().map(&buffer, 0..data.len(), MapMode::Read, &[])?;
        outcomes.push(compare("map after read", map.bytes(), &data));
        map.unmap(Deps::NONE)?;
    }
    Ok(all(outcomes))
}

fn strided(queue: &Queue) -> Result<Outcome> {
    let data = exact(2 * 3 * 4 * 5);
    let tensor = Tensor::from_host(queue, &data, [2, 3, 4, 5])?;
    let view = tensor.permute(&[3, 1, 0, 2])?.slice(0, Slice::new(None, None, -2))?;
    let mut expected = Vec::new();
    for d in [4, 2, 0] {
        for b in 0..3 {
            for a in 0..2 {
                expected.extend((0..4).map(|c| data[((a * 3 + b) * 4 + c) * 5 + d]));
            }
        }
    }
    Ok(compare("permuted and reversed", &view.contiguous()?.to_host::<f32>()?, &expected))
}

fn casts(queue: &Queue) -> Result<Outcome> {
    let data = exact(1003);
    let tensor = Tensor::from_host(queue, &data, [data.len()])?;
    let mut outcomes = Vec::new();
    for dtype in DType::FLOATS {
        if queue.check_dtype("cast", dtype).is_err() {
            continue;
        }
        let back = tensor.cast(dtype)?.cast(DType::F32)?;
        outcomes.push(compare(&format!("float32 to {dtype} and back"), &back.to_host::<f32>()?, &data));
    }
    Ok(all(outcomes))
}

fn arithmetic(queue: &Queue) -> Result<Outcome> {
    let data = exact(5001);
    let tensor = Tensor::from_host(queue, &data, [data.len()])?;
    let result = netcl_ops::relu(&netcl_ops::add(&netcl_ops::mul(&tensor, 3.0)?, 0.5)?)?;
    let expected: Vec<f32> = data.iter().map(|x| (x * 3.0 + 0.5).max(0.0)).collect();
    Ok(compare("relu(3 x + 0.5)", &result.to_host::<f32>()?, &expected))
}

/// A kernel that writes one block of random words per work item.
const RANDOM: &str = "__kernel void netcl_doctor_random(__global uint* out, ulong seed, ulong offset) {
    vstore4(netcl_random_block(seed, 0, offset + get_global_id(0)), get_global_id(0), out);
}";

fn random_bits(queue: &Queue) -> Result<Outcome> {
    let (blocks, here) = (257_usize, Generator { seed: 0x1234_5678_9abc_def0, offset: (1 << 32) - 100 });
    let expected: Vec<u32> = (0..blocks as u64).flat_map(|i| here.philox().block(here.offset + i)).collect();
    let mut words = vec![0_u32; 4 * blocks];
    match queue {
        Queue::Cpu(_) => fill_bits(&mut words, &here)?,
        Queue::OpenCl(stream) => {
            let source = Source::new(format!("{PHILOX_CL}\n{RANDOM}"), "");
            let out = Buffer::new(stream.context(), MemFlags::READ_WRITE, 16 * blocks)?;
            let args = [Arg::Buffer(&out), Arg::scalar(here.seed), Arg::scalar(here.offset)];
            run(stream, source, "netcl_doctor_random", Grid::new([blocks]), &args)?;
            stream.queue().read(&out, 0, &mut words)?;
        }
    }
    Ok(compare("Philox words", &words, &expected))
}

/// Reverses each work-group's values through local memory.
const REVERSE: &str = "__kernel void netcl_doctor_reverse(__global int* x, __local int* tile) {
    const size_t i = get_local_id(0), n = get_local_size(0);
    tile[i] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    x[get_global_id(0)] = tile[n - 1 - i];
}";

fn local_memory(queue: &Queue) -> Result<Outcome> {
    let Queue::OpenCl(stream) = queue else { return Ok(NATIVE) };
    let group = stream.device().info().max_work_group_size.min(64);
    let data: Vec<i32> = (0..4 * group as i32).collect();
    let buffer = Buffer::new(stream.context(), MemFlags::READ_WRITE, 4 * data.len())?;
    stream.queue().write(&buffer, 0, &data)?;
    let grid = Grid::new([data.len()]).local([group]);
    let args = [Arg::Buffer(&buffer), Arg::Local(4 * group)];
    run(stream, Source::new(REVERSE, ""), "netcl_doctor_reverse", grid, &args)?;
    let mut back = vec![0_i32; data.len()];
    stream.queue().read(&buffer, 0, &mut back)?;
    let expected: Vec<i32> = data.chunks(group).flat_map(|part| part.iter().rev().copied()).collect();
    Ok(compare("reversed groups", &back, &expected))
}

fn half_precision(queue: &Queue) -> Result<Outcome> {
    let profile = queue.profile();
    if !profile.fp16_storage() {
        return Ok(Outcome::Failed("vload_half or vstore_half give wrong values, which every device must have".into()));
    }
    // 2049 lies between two half-precision numbers and rounds to the even one, 65520 is the first that overflows.
    let tensor = Tensor::from_host(queue, &[2049.0_f32, 2051.0, 65519.0, 65520.0, 1e-8], [5])?;
    let back = tensor.cast(DType::F16)?.cast(DType::F32)?.to_host::<f32>()?;
    Ok(compare("rounding to half", &back, &[2048.0, 2052.0, 65504.0, f32::INFINITY, 0.0]))
}

fn run(stream: &Stream, source: Source, name: &str, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
    let kernel = stream.kernel(name, || (source, name))?;
    stream.queue().launch(&kernel, grid, args, Deps::NONE)?;
    Ok(())
}

/// What is missing or wrong on this machine and what to do about it.
pub fn advice(found: std::result::Result<&Discovery, &ClError>) -> Vec<String> {
    let mut advice = Vec::new();
    match found {
        Err(ClError::Load(error)) if error.named => advice.push(format!("{error}.")),
        Err(ClError::Load(error)) => {
            advice.push(format!("There is no OpenCL library ({}).", error.tried.join("; ")));
            advice.push(INSTALL_LOADER.to_owned());
            advice.push(INSTALL_DRIVER.to_owned());
        }
        Err(error) => advice.push(format!("OpenCL cannot be used: {error}.")),
        Ok(found) if found.platforms.is_empty() => {
            advice.push(format!(
                "The OpenCL library is there, but it finds no driver (it looks into {}).",
                std::env::var("OCL_ICD_VENDORS").unwrap_or_else(|_| "/etc/OpenCL/vendors".to_owned())
            ));
            advice.push(INSTALL_DRIVER.to_owned());
        }
        Ok(found) => {
            for report in &found.platforms {
                let name = report.platform.as_ref().map_or("a platform without a name", |platform| platform.name());
                match &report.problem {
                    Some(problem) => advice.push(format!("{name} failed: {problem}. Reinstall or update its driver.")),
                    None if report.devices.is_empty() => advice.push(format!(
                        "{name} has no device: the hardware is missing, switched off, or this user may not open it \
                         (Linux: look at /dev/dri and /dev/kfd, and at the groups render and video)."
                    )),
                    None => {}
                }
            }
            let devices = found.devices();
            if !devices.is_empty() && devices.iter().all(|device| device.device_type() == DeviceType::Cpu) {
                advice.push(
                    "Only CPUs were found. For a GPU install its driver: nvidia-opencl-icd (NVIDIA), \
                     mesa-opencl-icd or ROCm (AMD), intel-opencl-icd (Intel)."
                        .to_owned(),
                );
            }
        }
    }
    advice
}

const INSTALL_LOADER: &str = "Install a loader: on Debian and Ubuntu `apt install ocl-icd-libopencl1`.";
const INSTALL_DRIVER: &str = "Install a driver: that of the GPU's maker, or one for the CPU: `apt install pocl-opencl-icd`, or on \
                              x86 `pip install intel-opencl-rt intel-cmplr-lib-rt`. Without any, netcl computes on its \
                              native CPU backend.";

/// An environment variable that changes what netcl does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it is for.
    pub meaning: &'static str,
}

/// Variables of others that change what OpenCL does.
const FOREIGN: [(&str, &str); 2] = [
    ("OCL_ICD_VENDORS", "where the OpenCL loader looks for drivers"),
    ("POCL_CACHE_DIR", "the folder of PoCL's own kernel cache"),
];

/// The variables that are set, with their meaning.
pub fn settings() -> Vec<Setting> {
    let set = |(name, meaning)| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        Some(Setting { name, value, meaning })
    };
    let ours = env::TABLE.iter().map(|variable| (variable.name, variable.meaning));
    ours.chain(FOREIGN).filter_map(set).collect()
}

/// Every device of this machine, the native CPU last.
#[cfg(test)]
pub(crate) fn devices() -> Vec<DeviceHandle> {
    let manager = netcl_core::device::manager();
    let found = manager.discover().unwrap();
    found.iter().map(|device| manager.handle(device).unwrap()).chain([manager.cpu()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_here_passes() {
        for device in devices() {
            let checks = self_test(&device, |_| true);
            assert_eq!(checks.len(), CHECKS.len());
            for check in checks {
                assert!(!matches!(check.outcome, Outcome::Failed(_)), "{device:?}: {check:?}");
            }
        }
    }

    #[test]
    fn a_run_can_be_ended() {
        let mut seen = 0;
        let checks = self_test(&netcl_core::device::manager().cpu(), |_| {
            seen += 1;
            seen <= 2
        });
        assert_eq!(checks.len(), 2);
    }

    #[test]
    fn differences_are_named() {
        assert_eq!(compare("x", &[1, 2, 3], &[1, 2, 3]), Outcome::Passed);
        let Outcome::Failed(text) = compare("x", &[1, 2, 3], &[1, 5, 3]) else { panic!("passed") };
        assert_eq!(text, "x: element 1 is 2 instead of 5");
        assert!(matches!(compare("x", &[1], &[1, 2]), Outcome::Failed(_)));
        assert_eq!(all([Outcome::Passed, Outcome::Skipped("no")]), Outcome::Skipped("no"));
    }

    #[test]
    fn advice_names_packages() {
        let text = advice(Ok(&Discovery::default())).join("\n");
        assert!(text.contains("pocl-opencl-icd") && text.contains("intel-opencl-rt"), "{text}");
        let without = |named| {
            let load = netcl_core::backend::opencl::LoadError { tried: vec!["a: b".into()], named };
            advice(Err(&load.into())).join("\n")
        };
        let text = without(false);
        assert!(text.contains("a: b") && text.contains("ocl-icd-libopencl1"), "{text}");
        let text = without(true);
        assert!(text.contains("a: b") && text.contains("correct or unset it") && !text.contains("nstall"), "{text}");
    }
}
