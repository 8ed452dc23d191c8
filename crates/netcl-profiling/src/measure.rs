//! What a device costs: copies, launches, allocations, builds. Best of several repeats, since noise only ever adds.

use std::time::{Duration, Instant};

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::cache::Store;
use netcl_core::backend::opencl::{Buffer, Builder, Deps, Grid, MapMode, MemFlags, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::error::Result;
use netcl_core::tensor::Tensor;

/// A figure: what, how much, of which unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// `"GB/s"`, `"us"` or `"ms"`.
    pub unit: &'static str,
}

/// The size of the copies.
pub const COPY_BYTES: usize = 64 << 20;
const COPIES: usize = 5;
const LAUNCHES: usize = 500;
const ROUNDS: usize = 5;
const ALLOCATION_BYTES: usize = 1 << 20;
const ALLOCATIONS: usize = 20;

/// The names of all figures, in the order in which [`measure`] gives them. The native CPU has only some.
pub const NAMES: [&str; 12] = [
    "to device, pageable",
    "to device, pinned",
    "to device, mapped",
    "from device, pageable",
    "from device, pinned",
    "from device, mapped",
    "launch",
    "launch and finish",
    "allocation, from the pool",
    "allocation, from the driver",
    "program, compiled",
    "program, from the cache",
];

/// Measures a device. `before` is called with the name of each group of figures before it runs; `false` ends the run there.
///
/// Copies move [`COPY_BYTES`], or a quarter of the largest allocation where that is less.
pub fn measure(queue: &Queue, mut before: impl FnMut(&'static str) -> bool) -> Result<Vec<Figure>> {
    let groups: &[(&'static str, Group)] = match queue {
        Queue::Cpu(_) => &[("copies", native_copies), ("launches", native_launches), ("allocations", allocations)],
        Queue::OpenCl(_) => {
            &[("copies", copies), ("launches", launches), ("allocations", allocations), ("programs", programs)]
        }
    };
    let mut figures = Vec::new();
    for (name, group) in groups {
        if !before(name) {
            break;
        }
        group(queue, &mut figures)?;
    }
    figures.sort_by_key(|figure| NAMES.iter().position(|name| *name == figure.name));
    Ok(figures)
}

type Group = fn(&Queue, &mut Vec<Figure>) -> Result<()>;

fn push(figures: &mut Vec<Figure>, name: &'static str, value: f64, unit: &'static str) {
    figures.push(Figure { name, value, unit });
}

/// The shortest time of several runs.
fn best(repeats: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..repeats {
        let start = Instant::now();
        run()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

fn gbps(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

fn micros(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

fn native_copies(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    let host = vec![1.0_f32; COPY_BYTES / 4];
    let time = best(COPIES, || Tensor::from_host(queue, &host, [host.len()]).map(drop))?;
    push(figures, "to device, pageable", gbps(COPY_BYTES, time), "GB/s");
    let tensor = Tensor::from_host(queue, &host, [host.len()])?;
    let mut out = vec![0_u8; COPY_BYTES];
    let time = best(COPIES, || tensor.read_bytes(&mut out))?;
    push(figures, "from device, pageable", gbps(COPY_BYTES, time), "GB/s");
    Ok(())
}

fn native_launches(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    let tensor = Tensor::from_shape(queue, [1], DType::F32)?;
    let time = best(ROUNDS, || (0..LAUNCHES).try_for_each(|_| tensor.fill(1.0)))?;
    push(figures, "launch", micros(time, LAUNCHES), "us");
    Ok(())
}

fn copies(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    let Queue::OpenCl(stream) = queue else { return Ok(()) };
    let bytes = COPY_BYTES.min(usize::try_from(stream.context().max_alloc() / 4).unwrap_or(COPY_BYTES));
    let (queue, context) = (stream.queue(), stream.context());
    let device = Buffer::new(context, MemFlags::READ_WRITE, bytes)?;
    let staging = Buffer::new(context, MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR, bytes)?;
    let mut host = vec![1_u8; bytes];

    // Once without the clock: first touches map pages, on either side.
    queue.write(&device, 0, &host)?;
    let mut gauge = |name, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let time = best(COPIES, run)?;
        push(figures, name, gbps(bytes, time), "GB/s");
        Ok(())
    };
    gauge("to device, pageable", &mut || Ok(queue.write(&device, 0, &host)?))?;
    gauge("from device, pageable", &mut || Ok(queue.read(&device, 0, &mut host)?))?;

    let mut pinned = queue.map(&staging, 0..bytes, MapMode::ReadWrite, &[])?;
    if let Some(memory) = pinned.bytes_mut() {
        memory.fill(2);
        gauge("to device, pinned", &mut || Ok(queue.write(&device, 0, memory)?))?;
        gauge("from device, pinned", &mut || Ok(queue.read(&device, 0, memory)?))?;
    }
    pinned.unmap(Deps::NONE)?;

    gauge("to device, mapped", &mut || {
        let mut map = queue.map(&device, 0..bytes, MapMode::Overwrite, &[])?;
        map.bytes_mut().unwrap_or_default().copy_from_slice(&host);
        map.unmap(Deps::NONE)?;
        Ok(queue.finish()?)
    })?;
    gauge("from device, mapped", &mut || {
        let map = queue.map(&device, 0..bytes, MapMode::Read, &[])?;
        host.copy_from_slice(map.bytes());
        map.unmap(Deps::NONE)?;
        Ok(queue.finish()?)
    })
}

const NOTHING: &str = "__kernel void netcl_measure_nothing(__global int* x) { if (get_global_id(0) == 7) x[0] = 1; }";

fn launches(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    let Queue::OpenCl(stream) = queue else { return Ok(()) };
    let name = "netcl_measure_nothing";
    let kernel = stream.kernel(name, || (Source::new(NOTHING, ""), name))?;
    let buffer = Buffer::new(stream.context(), MemFlags::READ_WRITE, 4)?;
    let launch = || -> Result<()> {
        stream.queue().launch(&kernel, Grid::new([1]), &[(&buffer).into()], Deps::NONE)?;
        Ok(())
    };
    launch()?;
    stream.finish()?;
    let mut enqueue = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..LAUNCHES).try_for_each(|_| launch())?;
        enqueue = enqueue.min(start.elapsed());
        stream.finish()?;
    }
    push(figures, "launch", micros(enqueue, LAUNCHES), "us");
    let time = best(LAUNCHES, || {
        launch()?;
        Ok(stream.finish()?)
    })?;
    push(figures, "launch and finish", micros(time, 1), "us");
    Ok(())
}

fn allocations(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    queue.allocate_now(ALLOCATION_BYTES, "measure").map(drop)?;
    let time = best(ALLOCATIONS, || queue.allocate_now(ALLOCATION_BYTES, "measure").map(drop))?;
    push(figures, "allocation, from the pool", micros(time, 1), "us");
    if let Queue::OpenCl(stream) = queue {
        let time = best(ALLOCATIONS, || driver_allocation(stream))?;
        push(figures, "allocation, from the driver", micros(time, 1), "us");
    }
    Ok(())
}

/// With a write: drivers put the real work off until the first use.
fn driver_allocation(stream: &Stream) -> Result<()> {
    let buffer = Buffer::new(stream.context(), MemFlags::READ_WRITE, ALLOCATION_BYTES)?;
    stream.queue().fill(&buffer, 0..4, 0_u32, Deps::NONE)?;
    Ok(stream.finish()?)
}

fn programs(queue: &Queue, figures: &mut Vec<Figure>) -> Result<()> {
    let Queue::OpenCl(stream) = queue else { return Ok(()) };
    let folder = std::env::temp_dir().join(format!("netcl-measure-{}", std::process::id()));
    let result = build_and_load(stream, &folder, figures);
    // A folder that stays behind is small, and the system's own to clean.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn build_and_load(stream: &Stream, folder: &std::path::Path, figures: &mut Vec<Figure>) -> Result<()> {
    let build = |source: &Source| -> Result<(Duration, bool)> {
        let builder = Builder::new(Some(Store::new(folder, u64::MAX)));
        let start = Instant::now();
        builder.build(stream.context(), stream.device(), source)?;
        Ok((start.elapsed(), builder.stats().hits > 0))
    };
    // Drivers have caches of their own: a number of this moment makes the source one that they have never seen.
    let moment = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    let text = format!(
        "__kernel void f(__global float* x) {{ size_t i = get_global_id(0); x[i] = exp(x[i]) + {}.0f; }}",
        moment % 16_000_000
    );
    let source = Source::new(text, "");
    push(figures, "program, compiled", build(&source)?.0.as_secs_f64() * 1e3, "ms");
    let mut loaded = Duration::MAX;
    for _ in 0..3 {
        let (time, hit) = build(&source)?;
        if !hit {
            return Ok(()); // a driver without binaries
        }
        loaded = loaded.min(time);
    }
    push(figures, "program, from the cache", loaded.as_secs_f64() * 1e3, "ms");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_gives_plausible_figures() {
        for device in crate::doctor::devices() {
            let mut groups = Vec::new();
            let figures = measure(&device.queue, |name| {
                groups.push(name);
                true
            })
            .unwrap();
            assert!(
                figures.iter().all(|f| NAMES.contains(&f.name) && f.value > 0.0 && f.value.is_finite()),
                "{figures:?}"
            );
            let names: Vec<_> = figures.iter().map(|f| f.name).collect();
            let expected: Vec<_> = NAMES.into_iter().filter(|name| names.contains(name)).collect();
            assert_eq!(names, expected, "in the order of the list");
            assert!(groups.starts_with(&["copies", "launches", "allocations"]));
            assert!(names.contains(&"launch") && names.contains(&"allocation, from the pool"));
        }
    }

    #[test]
    fn units_are_right() {
        assert_eq!(gbps(2_000_000_000, Duration::from_secs(1)), 2.0);
        assert_eq!(micros(Duration::from_millis(1), 10), 100.0);
    }
}
