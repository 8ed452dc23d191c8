//! Facts that only an experiment tells: each builds and runs a small kernel and checks the numbers.
//!
//! A fact is found out when first asked for, kept in the device, and kept on disk per device and driver. Each probe has a
//! context of its own, since a kernel that crashes takes its context with it. A crash of the *compiler* would take the process
//! down, so vendor-specific probes run only where the quirk table says that they are safe.

use std::sync::OnceLock;

use super::buffer::{Buffer, MemFlags};
use super::build::{Builder, Source};
use super::cache::{Header, Key, Lookup, Store};
use super::context::Context;
use super::device::Device;
use super::error::{ClError, ClResult};
use super::event::Deps;
use super::facts::Facts;
use super::kernel::{Arg, Grid};
use super::queue::Queue;
use super::tensor_map::{MapAxis, MapElement, Swizzle, TensorMap, TensorMapError};

/// Raised when the meaning of a probe changes, so that old results on disk are not believed.
const VERSION: &str = "2";

/// Sizes of static local memory to try, in KiB, ascending.
const LOCAL_KIB: [u64; 7] = [48, 64, 96, 128, 160, 192, 224];

/// How subgroups work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subgroups {
    /// Work-items per subgroup in a work-group of 64.
    pub width: u32,
    /// Work-items can read each other's values.
    pub shuffle: bool,
}

/// The probes of one device; see [`Device::probes`].
#[derive(Clone, Copy)]
pub struct DeviceProbes<'a> {
    device: &'a Device,
    probes: &'a Facts,
}

impl Device {
    /// Facts that are found out by building and running small kernels, each when first asked for.
    pub fn probes(&self) -> DeviceProbes<'_> {
        DeviceProbes { device: self, probes: self.facts() }
    }
}

impl DeviceProbes<'_> {
    /// Values can be stored as half precision (`vload_half`, `vstore_half`).
    pub fn fp16_storage(&self) -> bool {
        self.fact("fp16_storage", &self.probes.fp16_storage, |lab| lab.fp16_storage()) != 0
    }

    /// Kernels can compute in half precision.
    pub fn fp16_arithmetic(&self) -> bool {
        self.device.has_extension("cl_khr_fp16")
            && self.fact("fp16_arithmetic", &self.probes.fp16_arithmetic, |lab| lab.fp16_arithmetic()) != 0
    }

    /// Subgroups, when they exist and compute right.
    pub fn subgroups(&self) -> Option<Subgroups> {
        if !self.device.info().extensions.iter().any(|e| e.contains("subgroup")) {
            return None;
        }
        let fact = self.fact("subgroups", &self.probes.subgroups, |lab| lab.subgroups());
        let width = (fact & 0xffff) as u32;
        (width > 0).then_some(Subgroups { width, shuffle: fact >> 16 != 0 })
    }

    /// Bytes of *static* local memory that a work-group can really use; never less than advertised, and never more than
    /// `NETCL_LIMITS` allows.
    pub fn static_local_bytes(&self) -> u64 {
        let advertised = self.device.info().local_mem_size;
        if !self.device.quirks().probe_static_local {
            return advertised;
        }
        let found = self.fact("static_local", &self.probes.static_local, |lab| lab.static_local());
        found.max(advertised).min(self.device.limits().local.unwrap_or(u64::MAX))
    }

    /// NVIDIA's warp-level matrix instruction (`mma.sync`, bf16) computes right, and so do the copies that feed it (`cp.async`,
    /// `ldmatrix`).
    pub fn nvidia_mma(&self) -> bool {
        self.ptx_since((8, 0)) && self.fact("mma", &self.probes.mma, |lab| lab.product("mma")) != 0
    }

    /// NVIDIA's warp-group matrix instruction (`wgmma`, bf16), by way of retargeted PTX, computes right.
    pub fn nvidia_wgmma(&self) -> bool {
        // Hopper only: later families replaced the instruction.
        self.ptx_since((9, 0))
            && self.device.raw_info().compute_capability.is_some_and(|(major, _)| major == 9)
            && self.fact("wgmma", &self.probes.wgmma, |lab| lab.product("wgmma")) != 0
    }

    /// NVIDIA's engine that copies boxes of arrays to local memory, told how by our own [tensor maps](super::tensor_map),
    /// copies right.
    pub fn nvidia_tensor_copies(&self) -> bool {
        // Encodings are known for Hopper alone.
        self.ptx_since((9, 0))
            && self.device.raw_info().compute_capability.is_some_and(|(major, _)| major == 9)
            && self.fact("tensor_copies", &self.probes.tensor_copies, |lab| lab.tensor_copies()) != 0
    }

    fn ptx_since(&self, capability: (u32, u32)) -> bool {
        self.device.quirks().ptx && self.device.raw_info().compute_capability.is_some_and(|c| c >= capability)
    }

    /// Looks a fact up in memory, then on disk, then in the laboratory.
    fn fact(&self, name: &'static str, cell: &OnceLock<u64>, experiment: impl Fn(&Lab) -> ClResult<u64>) -> u64 {
        if let Some(&known) = cell.get() {
            return known;
        }
        let store = Store::probes();
        let key = Key::new(&[VERSION, env!("CARGO_PKG_VERSION"), name, &self.device.identity()]);
        if let Some(known) = store.as_ref().and_then(|store| recall(store, &key)) {
            return *cell.get_or_init(|| known);
        }
        match Lab::new(self.device).and_then(|lab| experiment(&lab)) {
            Ok(fact) => {
                if let Some(store) = &store {
                    let header = Header {
                        device: self.device.name().to_owned(),
                        options: format!("probe {name}"),
                        ..Header::default()
                    };
                    // A result that cannot be kept is found out again next time.
                    let _ = store.put(&key, &header, fact.to_string().as_bytes());
                }
                *cell.get_or_init(|| fact)
            }
            // Something passing, such as lack of memory: no, for now.
            Err(_) => 0,
        }
    }
}

fn recall(store: &Store, key: &Key) -> Option<u64> {
    match store.get(key) {
        Lookup::Hit(entry) => std::str::from_utf8(&entry.payload).ok()?.parse().ok(),
        Lookup::Miss | Lookup::Corrupt => None,
    }
}

/// A failed experiment is an answer, unless the reason will pass.
fn is_answer(error: &ClError) -> bool {
    match error {
        ClError::Build(build) => build.blames_source(),
        ClError::Usage { .. } => true,
        ClError::Call { .. } => !error.is_out_of_memory(),
        _ => false,
    }
}

/// A context and queue for one experiment.
struct Lab {
    device: Device,
    context: Context,
    queue: Queue,
}

impl Lab {
    fn new(device: &Device) -> ClResult<Lab> {
        let context = Context::new(std::slice::from_ref(device))?;
        let queue = Queue::with_profiling(&context, device, false)?;
        Ok(Lab { device: device.clone(), context, queue })
    }

    /// Builds `source` and runs its kernel `probe(scratch..., out)`; gives the words of `out`.
    fn run(&self, source: &Source, grid: Grid, scratch: &[usize], words: usize) -> ClResult<Vec<u32>> {
        let program = Builder::new(None).build(&self.context, &self.device, source)?;
        let kernel = program.kernel("probe")?;
        let mut buffers = Vec::new();
        for bytes in scratch.iter().copied().chain([words * 4]) {
            let buffer = Buffer::new(&self.context, MemFlags::READ_WRITE, bytes)?;
            self.queue.fill(&buffer, 0..bytes, 0xff_u8, Deps::NONE)?;
            buffers.push(buffer);
        }
        let args: Vec<Arg<'_>> = buffers.iter().map(Arg::Buffer).collect();
        self.queue.launch(&kernel, grid, &args, Deps::NONE)?;
        let mut out = vec![0_u32; words];
        if let Some(last) = buffers.last() {
            self.queue.read(last, 0, &mut out)?;
        }
        Ok(out)
    }

    /// What the experiment gives, where that is right; `None` when it is wrong or fails for good, twice.
    fn attempt(
        &self,
        source: &Source,
        grid: Grid,
        scratch: &[usize],
        words: usize,
        right: impl Fn(&[u32]) -> bool,
    ) -> ClResult<Option<Vec<u32>>> {
        let mut again = None;
        loop {
            match again.as_ref().unwrap_or(self).run(source, grid, scratch, words) {
                Ok(out) if right(&out) => return Ok(Some(out)),
                Err(error) if !is_answer(&error) => return Err(error),
                _ if again.is_some() => return Ok(None),
                // In a context of its own: the first may have crashed.
                _ => again = Some(Lab::new(&self.device)?),
            }
        }
    }

    /// 1 when the experiment gives the expected words, 0 when it gives others or fails for good.
    fn expect(&self, source: &Source, grid: Grid, scratch: &[usize], expected: &[u32]) -> ClResult<u64> {
        let out = self.attempt(source, grid, scratch, expected.len(), |out| out == expected)?;
        Ok(u64::from(out.is_some()))
    }

    fn fp16_storage(&self) -> ClResult<u64> {
        // Quarters up to 13 are exact in half precision.
        let expected: Vec<u32> = (0..64).map(|i| (i as f32 * 0.25 - 3.0).to_bits()).collect();
        let source = Source::new(include_str!("probes/half_storage.cl"), "");
        self.expect(&source, Grid::new([64]), &[128], &expected)
    }

    fn fp16_arithmetic(&self) -> ClResult<u64> {
        let value = |i| half::f16::from_f32(i as f32 * 0.5 + 1.0);
        let expected: Vec<u32> = (0..64).map(|i| u32::from(value(i).to_bits())).collect();
        let source = Source::new(include_str!("probes/half_arithmetic.cl"), "");
        self.expect(&source, Grid::new([64]), &[], &expected)
    }

    /// Width in the low 16 bits, shuffle above.
    fn subgroups(&self) -> ClResult<u64> {
        let shuffles = [
            ("cl_khr_subgroup_shuffle", "-DSHUFFLE(x,lane)=sub_group_shuffle(x,lane)"),
            ("cl_intel_subgroups", "-DSHUFFLE(x,lane)=intel_sub_group_shuffle(x,lane)"),
        ];
        let options =
            shuffles.iter().filter(|(e, _)| self.device.has_extension(e)).map(|&(_, option)| (option, 1 << 16));
        // Without a shuffle last: subgroups alone are worth having.
        for (option, flag) in options.chain([("", 0)]) {
            let source = Source::new(include_str!("probes/subgroups.cl"), option);
            let size = self.device.info().max_work_group_size.min(64);
            let right = |w: &[u32]| {
                w[0] > 0 && w[1] < w[0] && w[2] == w[0] * (w[0] - 1) / 2 && w[3] == (w[1] ^ 1).min(w[0] - 1)
            };
            let all = |out: &[u32]| out.chunks_exact(4).all(right);
            if let Some(out) = self.attempt(&source, Grid::new([size]).local([size]), &[], 4 * size, all)? {
                return Ok(u64::from(out[0] & 0xffff) | flag);
            }
        }
        Ok(0)
    }

    fn static_local(&self) -> ClResult<u64> {
        let groups = (self.device.info().compute_units as usize * 2).max(1);
        // So many of the sizes work at least, and at most: each that is tried is a program to compile.
        let (mut least, mut most) = (0, LOCAL_KIB.len());
        while least < most {
            let middle = (least + most).div_ceil(2);
            let words = (LOCAL_KIB[middle - 1] * 256) as u32;
            let source = Source::new(include_str!("probes/local.cl"), format!("-DWORDS={words}"));
            let expected = local_sums(words, groups as u32);
            match self.expect(&source, Grid::new([groups * 128]).local([128]), &[], &expected)? {
                0 => most = middle - 1,
                _ => least = middle,
            }
        }
        Ok(if least == 0 { 0 } else { LOCAL_KIB[least - 1] * 1024 })
    }

    fn product(&self, name: &str) -> ClResult<u64> {
        let (source, rows, items, scratch) = match name {
            "wgmma" => (Source::new(include_str!("probes/wgmma.cl"), "").retargeted(), 64, 128, &[][..]),
            _ => (Source::new(include_str!("probes/mma.cl"), ""), 16, 32, &[(256 + 128) * 2][..]),
        };
        self.expect(&source, Grid::new([items]).local([items]), scratch, &product(rows))
    }

    fn tensor_copies(&self) -> ClResult<u64> {
        let Ok(map) = box_map() else { return Ok(0) };
        let words: Vec<String> = map.words().iter().map(|word| format!("{word}u")).collect();
        let text = format!("#define MAP {}\n{}", words.join(", "), include_str!("probes/tensor_map.cl"));
        let scratch = [104 * 20 * 6 * 2, 4 * words.len()];
        self.expect(&Source::new(text, ""), Grid::new([128]).local([128]), &scratch, &copied_box())
    }
}

/// The map of the array in `probes/tensor_map.cl`.
fn box_map() -> Result<TensorMap, TensorMapError> {
    let axis = |length, stride, box_length| MapAxis { length, stride, box_length };
    // Rows have four numbers more in memory than in the map.
    let axes = [axis(100, 0, 64), axis(20, 208, 16), axis(3, 4160, 1), axis(2, 12480, 1)];
    TensorMap::new(MapElement::BF16, &axes, Swizzle::Bytes128)
}

/// What `probes/tensor_map.cl` finds in local memory: 16 rows of 64 numbers, from (48, 8, 2, 1) on.
fn copied_box() -> Vec<u32> {
    let number = |x: u32, y: u32| if x < 100 && y < 20 { (1 + x + 128 * (y + 20 * 5)) & 0xffff } else { 0 };
    let mut words = vec![0; 512];
    for y in 0..16 {
        for x in (0..64).step_by(2) {
            let piece = (x / 8) ^ (y % 8);
            words[(y * 32 + piece * 4 + x % 8 / 2) as usize] = number(48 + x, 8 + y) | number(49 + x, 8 + y) << 16;
        }
    }
    words
}

/// What `probes/local.cl` computes.
fn local_sums(words: u32, groups: u32) -> Vec<u32> {
    let mut sums = Vec::with_capacity(groups as usize * 128);
    for group in 0..groups {
        for item in 0..128 {
            let terms = (item..words).step_by(128).map(|i| {
                let word = (words - 1 - i).wrapping_mul(2_654_435_761) ^ group;
                word.wrapping_mul(i + 1)
            });
            sums.push(terms.fold(0_u32, u32::wrapping_add));
        }
    }
    sums
}

/// What `probes/mma.cl` and `probes/wgmma.cl` compute: bits of `rows` x 8 floats.
fn product(rows: i32) -> Vec<u32> {
    let a = |i: i32, k: i32| (3 * i + 5 * k) % 7 - 3;
    let b = |k: i32, j: i32| (2 * k + 3 * j) % 5 - 2;
    let cell = |i: i32, j: i32| (0..16).map(|k| a(i, k) * b(k, j)).sum::<i32>() as f32;
    (0..rows).flat_map(|i| (0..8).map(move |j| cell(i, j).to_bits())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_failures_are_no_answers() {
        assert!(is_answer(&ClError::call("clEnqueueNDRangeKernel", -5)));
        assert!(!is_answer(&ClError::call("clCreateBuffer", -4)));
        assert!(!is_answer(&ClError::Forked { call: "x" }));
    }

    #[test]
    fn references_have_the_right_shape() {
        assert_eq!(product(16).len(), 128);
        assert_eq!(local_sums(256, 2).len(), 256);
        assert_ne!(local_sums(256, 2)[..128], local_sums(256, 2)[128..]);
        assert_eq!(box_map().unwrap().box_bytes(), 4 * copied_box().len());
        // 52 columns and 12 rows of the box lie in the array; its numbers are never 0.
        assert_eq!(copied_box().iter().filter(|&&word| word != 0).count(), 26 * 12);
    }
}
