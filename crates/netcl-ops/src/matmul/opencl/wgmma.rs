//! Products on Hopper's matrix units: when, with which numbers and tiles, and the launches of `matmul_wgmma.cl`.

use std::fmt::Write as _;

use netcl_core::backend::opencl::tensor_map::{MAP_BYTES, MapElement};
use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::capabilities::kernel_strategy;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::KernelSelector;
use netcl_core::kernels::launch::{Access, Arg, Cost, Scalar};
use netcl_core::precision::MatmulPrecision;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::super::problem::Problem;
use super::super::{OP, Variant};
use super::source::{Outcome, result};
use super::stage::Lines;
use super::{Args, Multiplication, Operand};
use crate::prelude::Prelude;

/// Rows of a tile: two warp groups of 64.
pub(super) const ROWS: usize = 128;
/// Work-items of a group: one warp group copies, two multiply.
const GROUP: usize = 384;
/// More places in local memory than this hide no more latency.
const MAX_STAGES: usize = 8;
/// Local memory that tiles may take; barriers and alignment need a little more.
const TILE_BYTES: usize = 200 * 1024;
/// Local memory a group must really have.
const LOCAL_BYTES: u64 = TILE_BYTES as u64 + 4096;

/// Which numbers the matrix units multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::matmul) enum Arithmetic {
    /// float16 operands as they are.
    F16,
    /// bfloat16 operands as they are.
    BF16,
    /// float32 operands, rounded to 11 bits as they are copied.
    Tf32,
    /// float32 operands, rounded to bfloat16.
    Rounded,
    /// float32 operands as three bfloat16 parts, six products of which add up to a float32 product.
    Split,
}

impl Arithmetic {
    /// What a kernel does with operands of a dtype; `None` where it takes no such operands.
    pub(in crate::matmul) fn of(variant: Variant, dtype: DType, precision: MatmulPrecision) -> Option<Arithmetic> {
        match (variant, dtype) {
            (Variant::Wgmma, DType::F16) => Some(Arithmetic::F16),
            (Variant::Wgmma, DType::BF16) => Some(Arithmetic::BF16),
            (Variant::Wgmma, DType::F32) if precision == MatmulPrecision::Medium => Some(Arithmetic::Rounded),
            (Variant::Wgmma, DType::F32) => Some(Arithmetic::Tf32),
            (Variant::WgmmaSplit, DType::F32) => Some(Arithmetic::Split),
            _ => None,
        }
    }

    /// The elements that the copy engine finds in memory.
    pub(super) fn element(self) -> MapElement {
        match self {
            Arithmetic::F16 => MapElement::F16,
            Arithmetic::Tf32 => MapElement::Tf32,
            Arithmetic::BF16 | Arithmetic::Rounded | Arithmetic::Split => MapElement::BF16,
        }
    }

    /// Parts of each operand.
    pub(super) fn parts(self) -> usize {
        if self == Arithmetic::Split { 3 } else { 1 }
    }

    /// Terms of a tile: rows of 128 bytes, or of 64 where three parts must fit.
    pub(super) fn depth(self) -> usize {
        if self == Arithmetic::Split { 32 } else { 128 / self.element().size() }
    }

    /// Whether the product is better computed as the transposed product of the transposed operands.
    pub(super) fn flips(self, p: &Problem<'_>) -> bool {
        match self {
            // 32-bit numbers of the second operand must lie along k.
            Arithmetic::Tf32 => p.b.rs != 1 && p.a.cs == 1,
            // Results are written along rows: let these be dense.
            _ => p.c.rs == 1 && p.c.cs != 1,
        }
    }

    fn name(self) -> &'static str {
        match self.element() {
            MapElement::F16 => "f16",
            MapElement::BF16 => "bf16",
            MapElement::F32 | MapElement::Tf32 => "tf32",
        }
    }

    /// Tile widths, from the widest. Three parts need registers for two sets of sums.
    fn widths(self) -> &'static [usize] {
        if self == Arithmetic::Split { &[128, 64] } else { &[256, 192, 128, 64] }
    }

    fn stage_bytes(self, columns: usize) -> usize {
        self.parts() * (ROWS + columns) * self.depth() * self.element().size()
    }
}

/// Whether the device has what `matmul_wgmma.cl` needs. Nothing is built on devices that are not of its family.
pub(in crate::matmul) fn available(stream: &Stream) -> bool {
    let probes = stream.device().probes();
    stream.device().info().max_work_group_size >= GROUP
        && probes.nvidia_wgmma()
        && probes.nvidia_tensor_copies()
        && probes.static_local_bytes() >= LOCAL_BYTES
}

/// The kernel for a product, if matrix units pay.
pub(super) fn choose(
    stream: &Stream,
    selector: &KernelSelector,
    p: &Problem<'_>,
    precision: MatmulPrecision,
) -> Option<Variant> {
    let dtype = p.a.tensor.dtype();
    let variant = match (dtype, precision) {
        (DType::F16 | DType::BF16, _) | (DType::F32, MatmulPrecision::High | MatmulPrecision::Medium) => Variant::Wgmma,
        (DType::F32, MatmulPrecision::Highest) => Variant::WgmmaSplit,
        _ => return None,
    };
    // Measured on an H200, in multiply-adds: below, a launch or the packing of operands costs more than is gained.
    let smallest: usize = match (variant, dtype) {
        (Variant::WgmmaSplit, _) => 640 * 640 * 640,
        (_, DType::F32) => 384 * 384 * 384,
        _ => 256 * 256 * 256,
    };
    let work = p.m.saturating_mul(p.n).saturating_mul(p.k).saturating_mul(p.matrices());
    let units = stream.device().info().compute_units.max(1) as usize;
    let tiles = p.m.div_ceil(ROWS) * p.n.div_ceil(64) * p.matrices();
    // Few tiles with long sums leave most of the device idle; the portable kernels split the sums.
    let fills = match variant {
        Variant::WgmmaSplit => 3 * tiles >= units,
        _ => 16 * tiles >= units || p.k <= 2048,
    };
    let suits = work >= smallest && p.m.min(p.n) >= 16 && p.k >= 16 && fills;
    (suits && kernel_strategy(&selector.profile().base) == "optimized" && available(stream)).then_some(variant)
}

/// The width of tiles that leaves the least of the device idle in the last round.
fn columns(arithmetic: Arithmetic, p: &Problem<'_>, matrices: usize, units: usize) -> usize {
    let cost = |&columns: &usize| {
        let tiles = p.m.div_ceil(ROWS) * p.n.div_ceil(columns) * matrices;
        // Beginning and ending a tile costs as much as so many columns of 16 terms; narrow tiles read more for each product.
        let width = columns * p.k.div_ceil(16) + 1000 + columns * 8;
        tiles.div_ceil(units) as f64 * width as f64 * if columns == 256 { 1.0 } else { 1.03 }
    };
    let widths = arithmetic.widths();
    widths.iter().copied().min_by(|x, y| cost(x).total_cmp(&cost(y))).unwrap_or(64)
}

impl Multiplication<'_> {
    /// Multiplies with the matrix units. The flag, if there is one, is raised when the result must be computed without parts.
    pub(super) fn launch_wgmma(&self, arithmetic: Arithmetic) -> Result<Option<Tensor>> {
        let p = self.problem;
        let units = self.stream.device().info().compute_units.max(1) as usize;
        let columns = columns(arithmetic, p, self.matrices(), units);
        let tiles = p.m.div_ceil(ROWS) * p.n.div_ceil(columns) * self.matrices();
        if [p.m, p.n, p.k, tiles].into_iter().max() > Some(i32::MAX as usize) {
            return Err(Error::argument(
                OP,
                "the matrix units' kernel takes lengths below 2^31; leave the kernel to netcl",
            ));
        }
        let queue = p.c.tensor.queue();
        let flag = match arithmetic {
            Arithmetic::Split => Some(Tensor::uninit(queue, [1], DType::I32)?),
            _ => None,
        };
        let (a, b) = (self.operand(&p.a, Access::Read), self.operand(&p.b, Access::Read));
        let rows = Lines { count: p.m, tile: ROWS, step: a.rs, term_step: a.cs, first: true };
        let cols = Lines { count: p.n, tile: columns, step: b.cs, term_step: b.rs, first: false };
        let a = self.stage(arithmetic, &a, rows, flag.as_ref())?;
        let b = self.stage(arithmetic, &b, cols, flag.as_ref())?;
        let c = self.operand(&p.c, Access::Write);
        let (name, kernel) = self.wgmma_kernel(arithmetic, columns, a.along_k, b.along_k)?;
        let groups = tiles.min(units);
        let maps = Tensor::uninit(queue, [groups * 2 * MAP_BYTES / 4], DType::I32)?;
        let mut args: Args = SmallVec::new();
        for (arg, at) in [(&a.arg, a.at), (&b.arg, b.at), (&c.arg, c.at)] {
            args.extend([arg.clone(), Arg::Scalar(Scalar::U64(at as u64))]);
        }
        args.push(Arg::Buffer(maps.storage().clone(), Access::Write));
        for map in [&a.map, &b.map] {
            args.extend(map.words().chunks_exact(16).map(|half| {
                let bytes = half.iter().flat_map(|word| word.to_ne_bytes()).collect();
                Arg::Scalar(Scalar::Bytes(bytes))
            }));
        }
        args.extend([p.m, p.n, p.k].map(|length| self.count(length)));
        args.extend([self.batch[0] as i32, self.batch[1] as i32].map(int));
        args.extend([&a, &b].into_iter().flat_map(|staged| staged.steps.map(int)));
        args.extend(self.place(&c));
        args.push(int(i32::from(dense(&c, p.n))));
        if let Some(flag) = &flag {
            args.push(Arg::Buffer(flag.storage().clone(), Access::Write));
        }
        self.epilogue_args(&mut args);
        let slices: usize = self.outer.iter().product();
        let cost = Cost { flops: p.cost.flops / slices as f64, bytes: p.cost.bytes / slices as f64 };
        self.send(name, kernel, Grid::new([groups * GROUP]).local([GROUP]), args, cost)?;
        Ok(flag)
    }

    fn wgmma_kernel(
        &self,
        arithmetic: Arithmetic,
        columns: usize,
        a_along_k: bool,
        b_along_k: bool,
    ) -> Result<(&'static str, Kernel)> {
        let p = self.problem;
        let name = match arithmetic {
            Arithmetic::Split => Variant::WgmmaSplit.kernel_name(),
            _ => Variant::Wgmma.kernel_name(),
        };
        let mut prelude = Prelude::with_sums(p.sum, self.index);
        result(&mut prelude, p, Outcome::Final);
        let size = arithmetic.element().size();
        let values = [
            ("BN", columns),
            ("BK", arithmetic.depth()),
            ("STAGES", (TILE_BYTES / arithmetic.stage_bytes(columns)).min(MAX_STAGES)),
            ("SIZE", size),
            ("PARTS", arithmetic.parts()),
            ("A_ALONG_K", usize::from(a_along_k)),
            ("B_ALONG_K", usize::from(b_along_k)),
            ("DENSE", dense_kind(p)),
        ];
        for (name, value) in values {
            prelude.define(name, value);
        }
        prelude.define("KERNEL", name);
        prelude.define("VALUE", p.compute.cl_type());
        let ty = arithmetic.name();
        let instruction =
            format_args!("\"wgmma.mma_async.sync.aligned.m64n{columns}k{}.f32.{ty}.{ty}\"", 32 / size).to_string();
        prelude.define("INSTRUCTION", instruction);
        // 32-bit operands have no such flags: they lie along k or go through registers.
        let majors = format!(", {}, {}", u8::from(!a_along_k), u8::from(!b_along_k));
        prelude.define("MAJORS", format_args!("\"{}\"", if size == 2 { majors.as_str() } else { "" }));
        let key = format!("{name}{}", prelude.key);
        let source = || {
            // The lists follow from BN, so the key need not hold them.
            let text = prelude.text + &operand_lists(columns) + include_str!("../matmul_wgmma.cl");
            (Source::new(text, "").retargeted(), name)
        };
        Ok((name, self.stream.kernel(&key, source)?))
    }
}

/// The operands of a matrix instruction whose sums are `d[0]`, `d[1]`, ...: as its text, as the compiler's constraints, and as
/// macros that do something for each.
fn operand_lists(columns: usize) -> String {
    let sums = columns / 2;
    let list = |n: usize, step: usize, separator: &str, item: &dyn Fn(usize) -> String| {
        (0..n).step_by(step).map(item).collect::<Vec<_>>().join(separator)
    };
    let mut text = String::new();
    let _ = writeln!(text, "#define REGISTERS \"{}\"", list(sums, 1, ", ", &|i| format!("%{i}")));
    let _ = writeln!(text, "#define DESCRIPTORS \"%{sums}, %{}\"", sums + 1);
    let four = (sums..sums + 4).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "#define OPERANDS \"{{{four}}}, %{}\"", sums + 4);
    let _ = writeln!(text, "#define SUMS {}", list(sums, 1, ", ", &|i| format!("\"+f\"(d[{i}])")));
    let _ = writeln!(text, "#define EACH_SUM(X) {}", list(sums, 1, " ", &|i| format!("X({i})")));
    let _ = writeln!(text, "#define EACH_PAIR(X) {}", list(columns / 8, 2, " ", &|i| format!("X({i})")));
    text
}

/// How the kernel writes four results at once.
fn dense_kind(p: &Problem<'_>) -> usize {
    match (p.c.tensor.dtype(), p.compute) {
        (DType::F32, DType::F32) => 1,
        (DType::F16, DType::F32) => 2,
        (DType::BF16, DType::F32) => 3,
        _ => 0,
    }
}

/// Whether four neighbouring results always lie together, on a boundary of four.
fn dense(c: &Operand, n: usize) -> bool {
    c.cs == 1 && [n as isize, c.rs, c.b0, c.b1, c.at as isize].iter().all(|value| value % 4 == 0)
}

fn int(value: i32) -> Arg {
    Arg::Scalar(Scalar::I32(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_every_sum_once() {
        let text = operand_lists(64);
        assert!(text.contains("#define REGISTERS \"%0, %1, ") && text.contains(", %31\"\n"));
        assert!(text.contains("#define DESCRIPTORS \"%32, %33\"\n"));
        assert!(text.contains("#define OPERANDS \"{%32, %33, %34, %35}, %36\"\n"));
        assert!(text.contains("\"+f\"(d[31])\n") && text.contains(" X(31)\n") && text.contains(" X(6)\n"));
    }

    #[test]
    fn each_dtype_has_its_numbers() {
        let of = Arithmetic::of;
        let [highest, high, medium] = MatmulPrecision::ALL;
        assert_eq!(of(Variant::Wgmma, DType::F32, high), Some(Arithmetic::Tf32));
        assert_eq!(of(Variant::Wgmma, DType::F32, medium), Some(Arithmetic::Rounded));
        assert_eq!(of(Variant::WgmmaSplit, DType::F32, highest), Some(Arithmetic::Split));
        assert_eq!(of(Variant::Wgmma, DType::BF16, medium), Some(Arithmetic::BF16));
        assert_eq!(of(Variant::Wgmma, DType::F64, high), None);
        assert_eq!(of(Variant::WgmmaSplit, DType::F16, highest), None);
        for arithmetic in [Arithmetic::F16, Arithmetic::Tf32, Arithmetic::Split] {
            for &columns in arithmetic.widths() {
                assert!(TILE_BYTES / arithmetic.stage_bytes(columns) >= 4, "{arithmetic:?} {columns}");
            }
        }
    }
}
