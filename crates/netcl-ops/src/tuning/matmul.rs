//! Products: the candidates and their contest.

use std::time::Instant;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{Extra, KernelConfig, KernelVariant, MATRIX_UNITS, Problem, get_kernel_selector};
use netcl_core::random::Generator;
use netcl_core::shape::Slice;
use netcl_core::tensor::Tensor;
use netcl_core::tuner::{Contest, Limits, Tuning, tune, with_forced};

use super::{Progress, differs, places, tile};
use crate::matmul::{MatmulOptions, Variant, matmul_with};

/// Tiles in local memory with a block of results in registers: rows, columns, depth; results of a work-item down and across.
const REGISTER_TILES: &[[usize; 5]] = &[
    // What the rules and the shipped table choose, from large products to small ones.
    [128, 256, 8, 16, 8],
    [128, 128, 16, 8, 8],
    [128, 64, 16, 8, 8],
    [64, 64, 16, 4, 4],
    [32, 32, 16, 4, 4],
    // Deeper: fewer barriers. Shallower: more groups at once.
    [128, 128, 8, 8, 8],
    [128, 128, 32, 8, 8],
    [64, 64, 8, 4, 4],
    [64, 64, 32, 4, 4],
    // More results for each value read, fewer work-items.
    [64, 64, 16, 8, 8],
    [128, 64, 8, 8, 4],
    [64, 128, 16, 8, 8],
    [64, 128, 8, 4, 8],
    [256, 128, 8, 16, 8],
    [128, 256, 8, 8, 16],
    [128, 128, 8, 16, 8],
    // Narrow results.
    [32, 64, 16, 4, 4],
    [64, 32, 16, 4, 4],
    [32, 128, 16, 4, 8],
    [16, 128, 16, 4, 8],
];

/// Square tiles in local memory, one result for each work-item.
const SQUARE_TILES: &[usize] = &[16, 8, 32];

/// Blocks of vectors, no local memory: rows, elements of a vector, vectors.
const VECTOR_BLOCKS: &[[usize; 3]] = &[
    [8, 16, 2],
    [8, 8, 2],
    [8, 16, 1],
    [4, 16, 2],
    [6, 16, 2],
    [12, 16, 2],
    [4, 8, 4],
    [8, 8, 4],
    [14, 16, 1],
    [4, 4, 2],
];

/// Multiply-adds up to which a kernel without any tiles may be the fastest.
const TINY: usize = 1 << 20;
/// Multiply-adds up to which the whole result is compared; of larger ones some rows.
const WHOLE: usize = 1 << 30;
/// Rows that are compared of large results: more than any tile has, spread over all.
const ROWS: usize = 160;

/// The configurations that are measured for a product on a device, the likeliest first, all within its limits.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType};
/// let candidates = netcl_ops::tuning::matmul_candidates(&manager().cpu().queue, [512, 512, 512], DType::F32)?;
/// assert_eq!(candidates.len(), 1); // the native CPU has one engine
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn matmul_candidates(queue: &Queue, [m, n, k]: [usize; 3], dtype: DType) -> Result<Vec<KernelConfig>> {
    let selector = get_kernel_selector(Some(queue))?;
    if let Queue::Cpu(_) = queue {
        return Ok(vec![selector.select_matmul_kernel(m, n, k, dtype)]);
    }
    let cpu_device = selector.profile().base.device_type == "cpu";
    let registers = REGISTER_TILES.iter().map(|lengths| tile(*lengths, KernelVariant::MatmulRegisterTiled));
    let squares = SQUARE_TILES.iter().map(|side| square_tile(*side));
    let vectors = VECTOR_BLOCKS.iter().map(|block| vector_block(*block));
    let mut all: Vec<KernelConfig> = match cpu_device {
        // Local memory is ordinary memory there, and barriers cost: one of each shows it.
        true => vectors.chain(registers.skip(1).take(1)).chain(squares.take(1)).collect(),
        false => registers.chain(squares).chain(vectors.take(2)).collect(),
    };
    if m.saturating_mul(n).saturating_mul(k) <= TINY {
        all.push(KernelConfig { use_local_memory: false, ..KernelConfig::new(KernelVariant::MatmulNaive) });
    }
    let mut fitting: Vec<KernelConfig> = all.into_iter().filter(|config| selector.fits(config, dtype)).collect();
    if let Some(like) = fitting.first().filter(|_| units_variant(queue, dtype).is_some()) {
        let mut units = like.clone();
        units.extra.insert(MATRIX_UNITS.to_owned(), Extra::Bool(true));
        fitting.insert(0, units);
    }
    Ok(fitting)
}

fn square_tile(side: usize) -> KernelConfig {
    KernelConfig {
        tile_m: side,
        tile_n: side,
        tile_k: side,
        work_per_thread: 1,
        local_size_2d: (side, side),
        local_size_1d: side * side,
        vector_width: 1,
        use_vectorization: false,
        ..KernelConfig::new(KernelVariant::MatmulTiled)
    }
}

fn vector_block([rows, width, vectors]: [usize; 3]) -> KernelConfig {
    KernelConfig {
        tile_m: rows,
        tile_n: width * vectors,
        tile_k: 1,
        work_per_thread: rows * width * vectors,
        local_size_1d: 1,
        local_size_2d: (1, 1),
        use_local_memory: false,
        vector_width: width,
        ..KernelConfig::new(KernelVariant::MatmulVectorized)
    }
}

/// The matrix units' kernel for a product as accurate as its dtype, where the device has one.
fn units_variant(queue: &Queue, dtype: DType) -> Option<Variant> {
    let variants =
        if dtype == DType::F32 { [Variant::WgmmaSplit, Variant::MmaSplit] } else { [Variant::Wgmma, Variant::Mma] };
    variants.into_iter().find(|variant| variant.runs_on(queue, dtype))
}

fn is_units(config: &KernelConfig) -> bool {
    config.extra.contains_key(MATRIX_UNITS)
}

/// Measures the candidates for a product of `m` x `k` by `k` x `n`.
///
/// Where the matrix units are faster than every configuration, the best one is marked with `matrix_units`: it is what runs where
/// they may not be used.
pub fn tune_matmul(
    queue: &Queue,
    [m, n, k]: [usize; 3],
    dtype: DType,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Tuning> {
    let start = Instant::now();
    if m.min(n).min(k) == 0 || !dtype.is_float() {
        let what = format!("a product of {m} x {k} by {k} x {n} in {dtype} has no kernel to be measured");
        return Err(netcl_core::Error::argument("autotune_matmul", what));
    }
    queue.check_dtype("autotune_matmul", dtype)?;
    let candidates = matmul_candidates(queue, [m, n, k], dtype)?;
    let mut contest = Product::new(queue, [m, n, k], dtype)?;
    let (mut trials, complete) = tune(candidates, &mut contest, limits, progress);
    // What the matrix units' kernel stands for besides itself: the best of the others.
    let portable = trials.iter().filter(|trial| trial.is_sound() && !is_units(&trial.config));
    let best = portable.min_by(|a, b| a.median().unwrap_or(f64::MAX).total_cmp(&b.median().unwrap_or(f64::MAX)));
    if let Some(mut config) = best.map(|trial| trial.config.clone()) {
        config.extra.insert(MATRIX_UNITS.to_owned(), Extra::Bool(true));
        trials.iter_mut().filter(|trial| is_units(&trial.config)).for_each(|trial| trial.config = config.clone());
    }
    Ok(Tuning {
        problem: Problem::matmul(m, n, k, dtype),
        device: queue.device_name(),
        flops: 2.0 * m as f64 * n as f64 * k as f64,
        trials,
        took: start.elapsed(),
        complete,
    })
}

struct Product {
    a: Tensor,
    b: Tensor,
    out: Tensor,
    /// Rows that are compared, and what they should be.
    rows: Vec<usize>,
    expected: Vec<f64>,
    tolerance: f64,
}

impl Product {
    fn new(queue: &Queue, [m, n, k]: [usize; 3], dtype: DType) -> Result<Product> {
        let mut generator = Generator::new(15);
        let mut draw = |shape: [usize; 2]| crate::random::uniform(queue, shape, dtype, -1.0, 1.0, Some(&mut generator));
        let (a, b) = (draw([m, k])?, draw([k, n])?);
        let out = Tensor::full(queue, [m, n], dtype, f64::NAN)?;
        let whole = m.saturating_mul(n).saturating_mul(k) <= WHOLE;
        let rows = if whole { (0..m).collect() } else { places(m, ROWS) };
        // The operands as the device has them, rounded to its dtype, multiplied by the native CPU in the type of the sums.
        let cpu = manager().cpu().queue;
        let sums = dtype.accumulator();
        let left = select_rows(&a, &rows, whole)?.cast(sums)?.to(&cpu)?;
        let expected = crate::matmul(&left, &b.cast(sums)?.to(&cpu)?)?.to_f64_vec()?;
        let tolerance = match dtype {
            DType::F64 => 1e-12,
            DType::F16 => 1e-2,
            DType::BF16 => 5e-2,
            _ => 1e-4,
        };
        Ok(Product { a, b, out, rows, expected, tolerance })
    }
}

/// Rows of a matrix as a matrix of their own.
fn select_rows(matrix: &Tensor, rows: &[usize], whole: bool) -> Result<Tensor> {
    if whole {
        return Ok(matrix.clone());
    }
    let chosen = Tensor::uninit(matrix.queue(), [rows.len(), matrix.shape()[1]], matrix.dtype())?;
    for (to, from) in rows.iter().enumerate() {
        let one = |at: usize| Slice::new(Some(at as isize), Some(at as isize + 1), 1);
        chosen.slice(0, one(to))?.assign(&matrix.slice(0, one(*from))?)?;
    }
    Ok(chosen)
}

impl Contest for Product {
    fn call(&mut self, config: &KernelConfig) -> Result<()> {
        let variant = match is_units(config) {
            true => units_variant(self.a.queue(), self.a.dtype()),
            false => None,
        };
        let precision = Some(netcl_core::precision::MatmulPrecision::Highest);
        let options = MatmulOptions { out: Some(&self.out), variant, precision, ..Default::default() };
        with_forced(config, || matmul_with(&self.a, &self.b, &options)).map(drop)
    }

    fn finish(&mut self) -> Result<()> {
        self.out.queue().finish()
    }

    fn verify(&mut self, _: &KernelConfig) -> Result<Option<String>> {
        let whole = self.rows.len() == self.out.shape()[0];
        let got = select_rows(&self.out, &self.rows, whole)?.to_f64_vec()?;
        // The size of a sum of k products of uniform numbers.
        let size = (self.a.shape()[1] as f64).sqrt() / 3.0;
        let wrong = differs(&got, &self.expected, size, self.tolerance);
        // The next candidate finds nothing that is right by chance.
        self.out.fill(f64::NAN)?;
        Ok(wrong)
    }
}
