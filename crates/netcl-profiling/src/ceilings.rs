//! What a device can do at most: bytes moved per second, multiply-adds per second, products on matrix units per second.
//!
//! Measured by kernels that do nothing else, so that a figure can be told as a share of what is possible.

use std::fmt::Write as _;
use std::hint::black_box;

use netcl_core::backend::Queue;
use netcl_core::backend::cpu::{num_threads, parallel_for};
use netcl_core::backend::opencl::{Arg, Buffer, Deps, DeviceType, Grid, MemFlags, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::error::Result;
use netcl_core::random::Generator;
use netcl_core::tensor::Tensor;
use pulp::{Arch, Simd, WithSimd};

use crate::timing::{Effort, time};

/// A device's limits, as far as they could be measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// Bytes read plus bytes written per second by a copy of float32 numbers.
    pub bytes_per_second: f64,
    /// Float32 operations per second in multiply-adds, each of which counts as two.
    pub fma_flops: f64,
    /// The same on matrix units, by the numbers they multiply: `"float16"`, `"bfloat16"`, `"tf32"`. Sums are float32.
    pub matrix_flops: Vec<(&'static str, f64)>,
}

impl Ceilings {
    /// The rate of the matrix units for a kind of numbers.
    pub fn matrix(&self, kind: &str) -> Option<f64> {
        self.matrix_flops.iter().find(|(name, _)| *name == kind).map(|(_, rate)| *rate)
    }
}

/// The parts of [`measure_ceilings`], in order.
pub const PARTS: [&str; 3] = ["copies", "multiply-adds", "matrix units"];

/// Measures a device. Copies move `elements` float32 numbers; `before` is called with the name of each part, and `false` ends
/// the measurement there.
///
/// ```
/// use netcl_core::device::manager;
/// use netcl_profiling::{ceilings::measure_ceilings, timing::Effort};
///
/// let found = measure_ceilings(&manager().cpu().queue, 1 << 20, Effort::QUICK, |_| true)?;
/// assert!(found.bytes_per_second > 1e8 && found.fma_flops > 1e8);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn measure_ceilings(
    queue: &Queue,
    elements: usize,
    effort: Effort,
    mut before: impl FnMut(&'static str) -> bool,
) -> Result<Ceilings> {
    let mut found = Ceilings::default();
    if before(PARTS[0]) {
        found.bytes_per_second = copies(queue, elements, effort)?;
    }
    if before(PARTS[1]) {
        found.fma_flops = match queue {
            Queue::Cpu(_) => native_multiply_adds(queue, effort)?,
            Queue::OpenCl(stream) => multiply_adds(stream, queue, effort)?,
        };
    }
    match queue {
        Queue::OpenCl(stream) if stream.device().probes().nvidia_wgmma() && before(PARTS[2]) => {
            // Everything else can be measured where a driver does not take this kernel: then there is no such ceiling.
            found.matrix_flops = matrix_units(stream, queue, effort).unwrap_or_default();
        }
        _ => {}
    }
    Ok(found)
}

/// The best of the driver's copy, netcl's own, and a kernel of a vector per work-item.
fn copies(queue: &Queue, elements: usize, effort: Effort) -> Result<f64> {
    // A whole number of work-groups of vectors.
    let elements = elements.next_multiple_of(4 * 256);
    let bytes = 2.0 * 4.0 * elements as f64;
    let from = netcl_ops::random::uniform(queue, [elements], DType::F32, -1.0, 1.0, Some(&mut Generator::new(1)))?;
    let to = Tensor::uninit(queue, [elements], DType::F32)?;
    let mut best = time(queue, effort, || to.assign(&from))?.best;
    if let Queue::OpenCl(stream) = queue {
        let name = "netcl_ceiling_copy";
        let kernel = stream.kernel(name, || (Source::new(COPY, ""), name))?;
        let group = stream.device().info().max_work_group_size.min(256);
        let flags = MemFlags::READ_WRITE;
        let buffers =
            (Buffer::new(stream.context(), flags, 4 * elements)?, Buffer::new(stream.context(), flags, 4 * elements)?);
        stream.queue().fill(&buffers.0, 0..4 * elements, 1.25_f32, Deps::NONE)?;
        let args = [Arg::Buffer(&buffers.0), Arg::Buffer(&buffers.1)];
        let grid = Grid::new([elements / 4]).local([group]);
        let by_kernel = time(queue, effort, || {
            stream.queue().launch(&kernel, grid, &args, Deps::NONE)?;
            Ok(())
        })?;
        best = best.min(by_kernel.best);
    }
    Ok(bytes / best)
}

const COPY: &str = "__kernel void netcl_ceiling_copy(__global const float4* from, __global float4* to) {
    to[get_global_id(0)] = from[get_global_id(0)];
}";

/// Chains of multiply-adds in each work-item: enough that none waits for its last result.
const CHAINS: usize = 12;
/// Multiply-adds of each chain in a turn of the kernel's loop.
const UNROLLED: usize = 16;

/// A kernel of nothing but multiply-adds on vectors of a width.
fn multiply_add_source(width: usize) -> String {
    let vector = if width == 1 { "float".to_owned() } else { format!("float{width}") };
    let mut text = format!(
        "__kernel void netcl_ceiling_fma_{width}(__global float* out, int rounds, float factor, float term) {{\n    \
         const {vector} f = ({vector})(factor), t = ({vector})(term);\n"
    );
    // No two numbers start alike, and all are used in the end: a compiler leaves out what it knows already or nobody needs.
    for i in 0..CHAINS {
        let starts = (0..width).map(|lane| format!("{:?}f", (i * width + lane) as f32 * 0.001)).collect::<Vec<_>>();
        let _ = writeln!(text, "    {vector} x{i} = ({vector})({}) + (float)get_local_id(0);", starts.join(", "));
    }
    text.push_str("    for (int i = 0; i < rounds; ++i) {\n");
    for _ in 0..UNROLLED {
        for i in 0..CHAINS {
            let _ = write!(text, " x{i} = mad(x{i}, f, t);");
        }
        text.push('\n');
    }
    let sum = (0..CHAINS).map(|i| format!("x{i}")).collect::<Vec<_>>().join(" + ");
    let last = match width {
        1 => "sum".to_owned(),
        _ => (0..width).map(|lane| format!("sum.s{lane:x}")).collect::<Vec<_>>().join(" + "),
    };
    let _ = write!(text, "    }}\n    const {vector} sum = {sum};\n    out[get_global_id(0)] = {last};\n}}\n");
    text
}

fn multiply_adds(stream: &Stream, queue: &Queue, effort: Effort) -> Result<f64> {
    let info = stream.device().info();
    let processor = stream.device().device_type() == DeviceType::Cpu;
    let group = info.max_work_group_size.min(if processor { 16 } else { 256 });
    let items = group * info.compute_units.max(1) as usize * if processor { 4 } else { 64 };
    let out = Buffer::new(stream.context(), MemFlags::READ_WRITE, 4 * items)?;
    let mut best = 0.0_f64;
    // Devices differ in what they make of vectors; compilers for processors want them.
    for width in if processor { [8, 16] } else { [1, 4] } {
        let name = format!("netcl_ceiling_fma_{width}");
        let kernel = stream.kernel(&name, || (Source::new(multiply_add_source(width), ""), name.as_str()))?;
        let rounds = if processor { 256_i32 } else { 128 };
        // Values stay near 1: neither infinite nor subnormal, which may cost more.
        let args = [Arg::Buffer(&out), Arg::scalar(rounds), Arg::scalar(0.999_f32), Arg::scalar(0.001_f32)];
        let grid = Grid::new([items]).local([group]);
        let timing = time(queue, effort, || {
            stream.queue().launch(&kernel, grid, &args, Deps::NONE)?;
            Ok(())
        })?;
        let flops = 2.0 * items as f64 * rounds as f64 * (CHAINS * UNROLLED * width) as f64;
        best = best.max(flops / timing.best);
    }
    Ok(best)
}

/// The same on the native CPU: registers as wide as the machine has them, on every thread.
fn native_multiply_adds(queue: &Queue, effort: Effort) -> Result<f64> {
    struct Spin;
    const ROUNDS: usize = 20_000;
    const REGISTERS: usize = 12;
    impl WithSimd for Spin {
        type Output = (f32, usize);

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> (f32, usize) {
            let (factor, term) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(0.001)));
            let mut sums = [simd.splat_f32s(black_box(0.5)); REGISTERS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = simd.mul_add_e_f32s(*sum, factor, term);
                }
            }
            let total = sums.into_iter().fold(simd.splat_f32s(0.0), |a, b| simd.add_f32s(a, b));
            (simd.reduce_sum_f32s(total), S::F32_LANES)
        }
    }
    let arch = Arch::new();
    let lanes = arch.dispatch(Spin).1;
    let threads = num_threads();
    let timing = time(queue, effort, || {
        parallel_for("ceilings", threads, 1, |range| {
            for _ in range {
                black_box(arch.dispatch(Spin).0);
            }
        })
    })?;
    Ok(2.0 * (threads * ROUNDS * REGISTERS * lanes) as f64 / timing.best)
}

/// Instructions between two waits.
const IN_FLIGHT: usize = 16;
/// Columns of an instruction's result: the most there are.
const COLUMNS: usize = 256;

/// Warp-group products of tiles that stay in local memory, by the kinds of numbers.
fn matrix_units(stream: &Stream, queue: &Queue, effort: Effort) -> Result<Vec<(&'static str, f64)>> {
    const WARP_GROUPS: usize = 2;
    let groups = stream.device().info().compute_units.max(1) as usize;
    let items = WARP_GROUPS * 128;
    let out = Buffer::new(stream.context(), MemFlags::READ_WRITE, 4 * groups * items)?;
    let mut found = Vec::new();
    for (kind, ty, depth) in [("float16", "f16", 16), ("bfloat16", "bf16", 16), ("tf32", "tf32", 8)] {
        let name = format!("netcl_ceiling_wgmma_{ty}");
        let source = || (Source::new(wgmma_source(&name, ty, depth), "").retargeted(), name.as_str());
        let kernel = stream.kernel(&name, source)?;
        let rounds = 256_i32;
        let args = [Arg::Buffer(&out), Arg::scalar(rounds)];
        let grid = Grid::new([groups * items]).local([items]);
        let timing = time(queue, effort, || {
            stream.queue().launch(&kernel, grid, &args, Deps::NONE)?;
            Ok(())
        })?;
        let flops = 2.0 * (64 * COLUMNS * depth * IN_FLIGHT * WARP_GROUPS * groups) as f64 * f64::from(rounds);
        found.push((kind, flops / timing.best));
    }
    Ok(found)
}

/// Two warp groups with a tile of 64 rows each and one of [`COLUMNS`] columns for both. Laid out as `probes/wgmma.cl` of
/// netcl-core explains; values are neither zero nor equal, since what the units draw depends on them.
fn wgmma_source(name: &str, ty: &str, depth: usize) -> String {
    let sums = COLUMNS / 2;
    let bytes = 32 / depth;
    let element = if bytes == 2 { "ushort" } else { "uint" };
    // Bits of numbers around 1: sign and exponent from a pattern, the mantissa from a hash.
    let bits = match ty {
        "f16" => "(ushort)(0x3800 | (h & 0x83ff))",
        "bf16" => "(ushort)(0x3f00 | (h & 0x807f))",
        _ => "(0x3f000000 | (h & 0x807fe000))",
    };
    let majors = if bytes == 2 { ", 0, 0" } else { "" };
    let registers = (0..sums).map(|i| format!("%{i}")).collect::<Vec<_>>().join(",");
    let outputs = (0..sums).map(|i| format!("\"+f\"(d{i})")).collect::<Vec<_>>().join(", ");
    let zeros = (0..sums).map(|i| format!("d{i} = 0.0f")).collect::<Vec<_>>().join(", ");
    let total = (0..sums).map(|i| format!("d{i}")).collect::<Vec<_>>().join(" + ");
    let multiply = format!(
        "asm volatile(\"//@@wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{depth}.f32.{ty}.{ty} {{{registers}}}, %{sums}, %{}, 1, 1, \
         1{majors};\" : {outputs} : \"l\"(da), \"l\"(db) : \"memory\");\n",
        sums + 1
    );
    format!(
        "ulong descriptor(uint address) {{
    return (ulong)((address & 0x3ffff) >> 4) | (ulong)(128 >> 4) << 16 | (ulong)(256 >> 4) << 32;
}}
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void {name}(__global float* out, int rounds) {{
    __local {element} a[2 * 64 * {depth}] __attribute__((aligned(1024)));
    __local {element} b[{COLUMNS} * {depth}] __attribute__((aligned(1024)));
    const uint item = (uint)get_local_id(0);
    for (uint n = item; n < 2 * 64 * {depth}; n += 256) {{
        uint h = (n + 1) * 2654435761u; h ^= h >> 15; h *= 2246822519u; h ^= h >> 13;
        a[n] = {bits};
    }}
    for (uint n = item; n < {COLUMNS} * {depth}; n += 256) {{
        uint h = (n + 77777) * 2654435761u; h ^= h >> 15; h *= 2246822519u; h ^= h >> 13;
        b[n] = {bits};
    }}
    asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong da = descriptor((uint)(ulong)(a + (item >> 7) * 64 * {depth})), db = descriptor((uint)(ulong)b);
    float {zeros};
    for (int round = 0; round < rounds; ++round) {{
        asm volatile(\"//@@wgmma.fence.sync.aligned;\" : {outputs} : : \"memory\");
{products}        asm volatile(\"//@@wgmma.commit_group.sync.aligned;\" ::: \"memory\");
        asm volatile(\"//@@wgmma.wait_group.sync.aligned 0;\" : {outputs} : : \"memory\");
    }}
    out[get_global_id(0)] = {total};
}}
",
        products = multiply.repeat(IN_FLIGHT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_ceilings() {
        for device in crate::doctor::devices() {
            let mut parts = Vec::new();
            let found = measure_ceilings(&device.queue, 1 << 18, Effort::QUICK, |part| {
                parts.push(part);
                true
            })
            .unwrap();
            // Between what any processor does and what no device of this decade does.
            assert!((1e8..1e14).contains(&found.bytes_per_second), "{found:?} on {}", device.device_name);
            assert!((1e8..1e16).contains(&found.fma_flops), "{found:?} on {}", device.device_name);
            assert_eq!(found.matrix_flops.is_empty(), parts.len() == 2);
            let none = measure_ceilings(&device.queue, 1 << 10, Effort::QUICK, |_| false).unwrap();
            assert_eq!(none, Ceilings::default());
        }
    }

    #[test]
    fn the_kernel_of_the_matrix_units_names_every_register_once() {
        let source = wgmma_source("k", "tf32", 8);
        assert_eq!(source.matches("m64n256k8.f32.tf32.tf32").count(), IN_FLIGHT);
        assert!(source.contains("%127}, %128, %129, 1, 1, 1;") && !source.contains("%130"));
        assert!(wgmma_source("k", "f16", 16).contains("%128, %129, 1, 1, 1, 0, 0;"));
    }
}
