//! Attention on Hopper's matrix units, of 16-bit numbers and of float32 where tf32 is allowed: launches of `attention_units.cl`.

use std::fmt::Write as _;

use netcl_core::backend::opencl::tensor_map::{MAP_BYTES, MapAxis, MapElement, Swizzle, TensorMap};
use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::has_wgmma;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::precision::{MatmulPrecision, matmul_precision};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::opencl::is_forced;
use super::problem::{Backward, Problem, Saved};
use crate::COPY_ENGINE;
use crate::indexing::opencl::buffer;

type Args = SmallVec<[Arg; 8]>;

/// Rows that a work-group owns: two warp groups of 64.
const OWN: usize = 128;
/// Work-items of a group: two warp groups compute, one copies.
const GROUP: usize = 384;
/// Rows begin at multiples of so many bytes, and are cut into lines.
const UNIT: usize = 16;
const LINE: usize = 128;
/// The width of most heads.
const NARROW: usize = 64;
/// Rows of statistics are padded, so that a tile of any pass reads whole ones: a multiple of every tile's length.
const PADDED: usize = 384;

/// In the order of the constants in `attention_units.cl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    OfQueries,
    OfKeys,
}

/// How a pass walks.
struct Walk {
    /// Rows of a tile.
    tile: usize,
    stages: usize,
    turns: bool,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Pass::Forward => "attention_units_forward",
            Pass::OfQueries => "attention_units_backward_q",
            Pass::OfKeys => "attention_units_backward_kv",
        }
    }

    /// The fastest of those measured on an H200, 8 x 16 heads of 2048 x 64 and 2 x 16 of 4096 x 128, causal. The tiles of keys' gradients
    /// are short because two sets of sums leave few registers for scores.
    fn walk(self, size: usize, width: usize) -> Walk {
        let (tile, stages, turns) = match (self, size, width) {
            (Pass::Forward, ..) => (128, 2, true),
            (Pass::OfQueries, 2, NARROW) => (128, 3, false),
            (Pass::OfQueries, 2, _) => (64, 3, false),
            (Pass::OfQueries, ..) => (64, 2, false),
            (Pass::OfKeys, 2, NARROW) => (48, 3, false),
            (Pass::OfKeys, 2, _) => (48, 2, false),
            (Pass::OfKeys, ..) => (32, 3, false),
        };
        Walk { tile, stages, turns }
    }
}

/// What the copies fill a row up to.
fn padded_width(problem: &Problem) -> usize {
    problem.d.max(problem.dv).next_multiple_of(NARROW)
}

fn walk(problem: &Problem, pass: Pass) -> Walk {
    pass.walk(problem.q.dtype().size(), padded_width(problem))
}

/// Whether the kernels can do this: devices, numbers and widths.
pub(super) fn serves(problem: &Problem, stream: &Stream) -> bool {
    let dtype = problem.q.dtype();
    // Of wider float32 heads the tiles do not fit into local memory.
    let widest = match dtype {
        DType::F16 | DType::BF16 => 2 * NARROW,
        DType::F32 if matmul_precision() != MatmulPrecision::Highest => NARROW,
        _ => return false,
    };
    let fits = |width: usize| width <= widest && (width * dtype.size()).is_multiple_of(UNIT);
    fits(problem.d)
        && fits(problem.dv)
        && problem.drop.is_none()
        // The largest score stays the largest.
        && problem.scale > 0.0
        && problem.s < 1 << 30
        && problem.batch * problem.heads * problem.l.max(problem.s).next_multiple_of(PADDED) < 1 << 30
        && !is_forced()
        && has_wgmma(stream.device())
}

/// Memory for a result `[batch, heads, rows, width]` whose rows lie in the order of another tensor's: heads beside each other where
/// those of queries do, so that nobody has to copy them together again.
pub(super) fn room(shape: [usize; 4], like: &Tensor) -> Result<Tensor> {
    let [batch, heads, rows, width] = shape;
    let strides = like.layout().strides();
    if rows > 1 && heads > 1 && strides[1] < strides[2] {
        return Tensor::uninit(like.queue(), [batch, rows, heads, width], like.dtype())?.permute(&[0, 2, 1, 3]);
    }
    Tensor::uninit(like.queue(), shape, like.dtype())
}

/// A tensor that the copy engine can read: rows that begin at multiples of 16 bytes.
fn readable(t: &Tensor) -> Result<Tensor> {
    let (layout, unit) = (t.layout(), UNIT / t.dtype().size());
    let fits =
        |(&length, &stride): (&usize, &isize)| length == 1 || (stride > 0 && (stride as usize).is_multiple_of(unit));
    let outer = t.shape().iter().zip(layout.strides()).take(3);
    if layout.offset().is_multiple_of(unit) && outer.into_iter().all(fits) {
        return Ok(t.clone());
    }
    let own = Tensor::uninit(t.queue(), t.shape().clone(), t.dtype())?;
    own.assign(t)?;
    Ok(own)
}

/// What the sums are made of: a tensor of 16-bit numbers as it is, one of float32 transposed, in the order that `attention_units.cl` wants.
fn for_sums(stream: &Stream, t: &Tensor) -> Result<Tensor> {
    if t.dtype() != DType::F32 {
        return Ok(t.clone());
    }
    let [batch, heads, rows, width] = [t.shape()[0], t.shape()[1], t.shape()[2], t.shape()[3]];
    let pitch = rows.next_multiple_of(8);
    let out = Tensor::uninit(t.queue(), [batch, heads, width, pitch], DType::F32)?;
    let name = "attention_turn";
    let kernel = stream.kernel(name, || (prepare_source(DType::F32, 1), name))?;
    let mut args = Args::new();
    args.extend(buffer(t, Access::Read));
    args.extend(strides(t).take(3));
    args.push(Arg::Buffer(out.storage().clone(), Access::Write));
    args.extend([heads, rows, width, pitch].map(int));
    let grid = Grid::new([pitch.next_multiple_of(32), width.div_ceil(32) * 8, batch * heads]).local([32, 8, 1]);
    let cost = Cost { flops: 0.0, bytes: (8 * t.size()) as f64 };
    launch::submit(Launch {
        name: name.into(),
        queue: t.queue().clone(),
        work: Work::OpenCl(kernel, grid),
        args,
        cost,
    })?;
    Ok(out)
}

/// The kernels that prepare what the passes read.
fn prepare_source(dtype: DType, lanes: usize) -> Source {
    let head = format!("#define PREPARE\n#define LANES {lanes}\n#define MASK 0\n#define PASS 0\n{}", numbers(dtype));
    Source::new(head + include_str!("attention_units.cl"), "")
}

fn numbers(dtype: DType) -> String {
    format!("#define SIZE {}\n#define BF16 {}\n", dtype.size(), u8::from(dtype == DType::BF16))
}

/// How the copy engine finds `rows` rows of a tensor of four axes.
fn map(op: &'static str, t: &Tensor, rows: usize) -> Result<[Arg; 2]> {
    let size = t.dtype().size();
    let element = match t.dtype() {
        DType::F16 => MapElement::F16,
        DType::BF16 => MapElement::BF16,
        _ => MapElement::Tf32,
    };
    let axis = |axis: usize, box_length: usize| {
        let length = t.shape()[axis];
        // Of an axis of length one the stride may be anything, but not nothing.
        let stride = if length == 1 { UNIT } else { size * t.layout().strides()[axis] as usize } as u64;
        MapAxis { length: length as u64, stride, box_length: box_length as u32 }
    };
    let axes = [axis(3, LINE / size), axis(2, rows), axis(1, 1), axis(0, 1)];
    let map =
        TensorMap::new(element, &axes, Swizzle::Bytes128).map_err(|error| Error::argument(op, error.to_string()))?;
    let half = |words: &[u32]| Arg::Scalar(Scalar::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect()));
    let (first, second) = map.words().split_at(16);
    Ok([half(first), half(second)])
}

fn kernel(problem: &Problem, stream: &Stream, pass: Pass) -> Result<Kernel> {
    let width = padded_width(problem);
    let (name, dtype, causal, mask) = (pass.name(), problem.q.dtype(), problem.causal, problem.mask.is_some());
    stream.kernel(&(name, dtype, width, causal, mask), || {
        let Walk { tile, stages, turns } = walk(problem, pass);
        let mut text = numbers(dtype);
        let values = [
            ("PASS", pass as usize),
            ("D", width),
            ("BN", tile),
            ("STAGES", stages),
            ("TURNS", usize::from(turns)),
            ("CAUSAL", usize::from(causal)),
            ("MASK", usize::from(mask)),
        ];
        for (name, value) in values {
            let _ = writeln!(text, "#define {name} {value}");
        }
        let _ = writeln!(text, "#define KERNEL {name}");
        text += &operand_lists(tile, width, dtype);
        (Source::new([&text, COPY_ENGINE, include_str!("attention_units.cl")].concat(), "").retargeted(), name)
    })
}

/// The operands of the two matrix instructions: `columns` scores in two rows, and sums as wide as a row.
fn operand_lists(columns: usize, width: usize, dtype: DType) -> String {
    // One instruction takes 32 bytes of a row; 16-bit scores are packed in pairs.
    let (ty, terms, packed) = match dtype {
        DType::F16 => ("f16", 16, columns / 4),
        DType::BF16 => ("bf16", 16, columns / 4),
        _ => ("tf32", 8, columns / 2),
    };
    let list = |n: usize, item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let places = |n: usize| list(n, &|i| format!("%{i}"));
    let bound = |kind: &str, n: usize| list(n, &|i| format!("\"{kind}\"(x[{i}])"));
    let (scores, sums) = (columns / 2, width / 2);
    let mut text = String::new();
    for (name, n) in [("SCORE", columns), ("SUM", width)] {
        let _ = writeln!(
            text,
            "#define {name}_INSTRUCTION \"wgmma.mma_async.sync.aligned.m64n{n}k{terms}.f32.{ty}.{ty}\"\n\
             #define {name}_REGISTERS \"{}\"",
            places(n / 2)
        );
    }
    let four = list(4, &|i| format!("%{}", sums + i));
    let _ = writeln!(
        text,
        "#define SCORE_DESCRIPTORS \"%{scores}, %{}\"\n#define SUM_OPERANDS \"{{{four}}}, %{}\"",
        scores + 1,
        sums + 4
    );
    let lists = [
        ("NEW_SCORES", bound("=f", scores)),
        ("SCORES", bound("+f", scores)),
        ("SUMS", bound("+f", sums)),
        ("PACKED", bound("+r", packed)),
    ];
    for (name, list) in lists {
        let _ = writeln!(text, "#define {name}(x) {list}");
    }
    text
}

fn int(n: usize) -> Arg {
    Arg::Scalar(Scalar::I32(n as i32))
}

fn strides(t: &Tensor) -> impl Iterator<Item = Arg> {
    let strides: SmallVec<[i64; 4]> = t.layout().strides().iter().map(|&s| s as i64).collect();
    strides.into_iter().map(|s| Arg::Scalar(Scalar::I64(s)))
}

/// One pass: what is owned and what is walked over, what is written, and the statistics of queries.
struct Operands<'t> {
    owned: [&'t Tensor; 2],
    walked: [&'t Tensor; 2],
    /// The walked tensors as sums need them.
    sums: [&'t Tensor; 2],
    out: [&'t Tensor; 2],
    stats: (&'t Tensor, Access),
    pitch: usize,
}

fn launch(problem: &Problem, stream: &Stream, pass: Pass, operands: &Operands<'_>) -> Result<(Work, Args)> {
    let kernel = kernel(problem, stream, pass)?;
    let tile = walk(problem, pass).tile;
    let Operands { owned, walked, sums, out, stats, pitch } = *operands;
    let (own_rows, walk_rows) = (owned[0].shape()[2], walked[0].shape()[2]);
    let matrices = owned[0].shape()[0] * owned[0].shape()[1];
    let units = stream.device().info().compute_units.max(1) as usize;
    let groups = units.min(matrices * own_rows.div_ceil(OWN));
    let maps = Tensor::uninit(problem.q.queue(), [groups * 6 * MAP_BYTES / 4], DType::I32)?;
    let mask = problem.mask.as_ref().unwrap_or(&problem.q);
    let mut args = Args::new();
    for t in owned.into_iter().chain(walked).chain(sums) {
        args.extend(buffer(t, Access::Read));
    }
    args.extend(buffer(mask, Access::Read));
    args.extend(strides(mask));
    for t in out {
        args.extend(buffer(t, Access::Write));
        args.extend(strides(t).take(3));
    }
    args.extend(buffer(stats.0, stats.1));
    args.extend([stream.counters()?, maps.storage().clone()].map(|memory| Arg::Buffer(memory, Access::Write)));
    // A transposed tensor is copied by whole columns.
    let columns = if problem.q.dtype() == DType::F32 { padded_width(problem) } else { tile };
    let boxes = owned.map(|t| (t, OWN)).into_iter().chain(walked.map(|t| (t, tile))).chain(sums.map(|t| (t, columns)));
    for (t, rows) in boxes {
        args.extend(map(problem.op, t, rows)?);
    }
    let group = problem.q.shape()[1] / problem.k.shape()[1];
    let widths = out.map(|t| t.shape()[3]);
    let counts = [matrices, owned[0].shape()[1], group, own_rows, walk_rows, widths[0], widths[1], pitch];
    args.extend(counts.map(int));
    args.push(Arg::Scalar(Scalar::F32(problem.scale as f32)));
    Ok((Work::OpenCl(kernel, Grid::new([groups * GROUP]).local([GROUP])), args))
}

pub(super) fn forward(problem: &Problem, stream: &Stream, saved: Saved<'_>) -> Result<(Work, Args)> {
    let [q, k, v] = [readable(&problem.q)?, readable(&problem.k)?, readable(&problem.v)?];
    let values = for_sums(stream, &v)?;
    let operands = Operands {
        owned: [&q, &q],
        walked: [&k, &v],
        sums: [&values, &values],
        out: [saved.out, saved.out],
        stats: (saved.logsumexp, Access::Write),
        pitch: problem.l,
    };
    launch(problem, stream, Pass::Forward, &operands)
}

/// Statistics of the queries, the gradient of q, then those of k and v.
pub(super) fn backward(problem: &Problem, stream: &Stream, backward: &Backward<'_>) -> Result<Vec<(Work, Args)>> {
    let [q, k, v] = [readable(&problem.q)?, readable(&problem.k)?, readable(&problem.v)?];
    let (grad, out) = (readable(backward.grad)?, readable(backward.out)?);
    let pitch = problem.l.next_multiple_of(PADDED);
    let matrices = problem.batch * problem.heads;
    let stats = Tensor::uninit(q.queue(), [matrices, 2, pitch], DType::F32)?;
    let name = "attention_prepare";
    let lanes = padded_width(problem) * q.dtype().size() / UNIT;
    let kernel = stream.kernel(&(name, q.dtype(), lanes), || (prepare_source(q.dtype(), lanes), name))?;
    let mut args = Args::new();
    for t in [&out, &grad] {
        args.extend(buffer(t, Access::Read));
        args.extend(strides(t).take(3));
    }
    args.extend(buffer(backward.logsumexp, Access::Read));
    args.push(Arg::Buffer(stats.storage().clone(), Access::Write));
    args.extend([matrices, problem.heads, problem.l, problem.dv, pitch].map(int));
    let grid = Grid::new([(matrices * pitch * lanes).next_multiple_of(256)]).local([256]);
    let prepare = (Work::OpenCl(kernel, grid), args);
    let [dq, dk, dv] = backward.gradients;
    let stats = (&stats, Access::Read);
    let [keys, queries, grads] = [for_sums(stream, &k)?, for_sums(stream, &q)?, for_sums(stream, &grad)?];
    let sums = [&keys, &keys];
    let of_queries = Operands { owned: [&q, &grad], walked: [&k, &v], sums, out: [dq, dq], stats, pitch };
    let sums = [&queries, &grads];
    let of_keys = Operands { owned: [&k, &v], walked: [&q, &grad], sums, out: [dk, dv], stats, pitch };
    Ok(vec![
        prepare,
        launch(problem, stream, Pass::OfQueries, &of_queries)?,
        launch(problem, stream, Pass::OfKeys, &of_keys)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_every_operand_once() {
        let text = operand_lists(48, 64, DType::BF16);
        assert!(
            text.contains("m64n48k16.f32.bf16.bf16\"\n#define SCORE_REGISTERS \"%0, ") && text.contains(", %23\"\n")
        );
        assert!(text.contains("#define SCORE_DESCRIPTORS \"%24, %25\"\n"));
        assert!(text.contains("#define SUM_OPERANDS \"{%32, %33, %34, %35}, %36\"\n"));
        assert!(text.contains("\"+f\"(x[31])\n") && text.contains("\"+r\"(x[11])\n"));
    }

    #[test]
    fn tiles_divide_padded_rows_and_fit_into_local_memory() {
        for (size, width) in [(2, NARROW), (2, 2 * NARROW), (4, NARROW)] {
            assert_eq!(Pass::Forward.walk(size, width).tile, OWN, "what forward hides lies in one tile");
            for (pass, owned, slots) in [(Pass::Forward, 1, 2), (Pass::OfQueries, 2, 3), (Pass::OfKeys, 2, 4)] {
                let Walk { tile, stages, .. } = pass.walk(size, width);
                let slots = if size == 2 { 2 } else { slots };
                assert!(PADDED.is_multiple_of(tile) && tile.is_multiple_of(16), "{pass:?} {width}");
                // A place is freed when the next tile has begun.
                assert!(stages > 1, "{pass:?} {width}");
                let bytes = (owned * OWN + stages * slots * tile) * width * size;
                assert!(bytes <= 200 * 1024, "{pass:?} {width}: {bytes} bytes");
            }
        }
    }
}
