//! Memory kernels of the CPU backend against plain memset/memcpy split over the same number of threads.
//!
//! `cargo bench -p netcl-core --bench cpu_memory [-- section]`. Ours and the peer run in turns within one loop, so that a noisy machine
//! disturbs both alike; the figure is the ratio of the medians (above 1: ours is slower).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot run should say so and stop")]

use std::hint::black_box;
use std::time::Instant;

use netcl_core::backend::cpu::copy::{cast, copy, copy_strided, fill};
use netcl_core::backend::cpu::{CpuBuffer, buffer, num_threads, parallel_for, simd, threads::SharedPtr};
use netcl_core::dtype::DType;
use netcl_core::shape::{Layout, Shape};

const MB: usize = 1 << 20;

/// Median seconds of two things that are run in turns.
fn race(rounds: usize, mut ours: impl FnMut(), mut peer: impl FnMut()) -> (f64, f64) {
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..rounds + 2 {
        let (x, y) = (time(&mut ours), time(&mut peer));
        if round >= 2 {
            a.push(x);
            b.push(y);
        }
    }
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    (a[rounds / 2], b[rounds / 2])
}

fn report(name: &str, bytes: usize, (ours, peer): (f64, f64)) {
    let rate = bytes as f64 / 1e9;
    println!("{name:42} {:8.2} GB/s  peer {:8.2} GB/s  ratio {:.3}", rate / ours, rate / peer, ours / peer);
}

/// The peer: one plain call per thread, on the same pool.
fn split(nbytes: usize, f: impl Fn(usize, usize) + Sync) {
    let part = nbytes.div_ceil(num_threads());
    parallel_for("peer", num_threads(), 1, |range| {
        for i in range {
            f(i * part, part.min(nbytes - i * part));
        }
    })
    .expect("the peer does not panic");
}

fn main() {
    println!("{} threads, {:?}", num_threads(), simd::level());
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let sections: [(&str, fn()); 5] = [
        ("dispatch", dispatch_latency),
        ("fill-copy", fills_and_copies),
        ("permute", permutations),
        ("cast", casts),
        ("first-touch", first_touch),
    ];
    for (name, section) in sections {
        if wanted.is_empty() || wanted.iter().any(|w| name.contains(w)) {
            section();
        }
    }
}

fn dispatch_latency() {
    let calls = 20_000;
    let run = |n: usize| {
        let start = Instant::now();
        for _ in 0..calls {
            parallel_for("empty", n, 1, |range| {
                black_box(range);
            })
            .expect("nothing panics");
        }
        start.elapsed().as_secs_f64() / calls as f64 * 1e6
    };
    run(2);
    println!("dispatch on all threads {:.2} us, inline {:.3} us", run(num_threads().max(2)), run(1));
}

fn fills_and_copies() {
    for nbytes in [MB, 8 * MB, 64 * MB, 256 * MB] {
        fill_and_copy(nbytes, if nbytes > 100 * MB { 15 } else { 41 });
    }
}

fn fill_and_copy(nbytes: usize, rounds: usize) {
    let (a, b) = (CpuBuffer::zeroed(nbytes).expect("memory"), CpuBuffer::zeroed(nbytes).expect("memory"));
    let (src, dst) = (SharedPtr::new(a.as_ptr()), SharedPtr::new(b.as_ptr()));
    let size = format!("{} MB", nbytes / MB);
    // SAFETY: parts of a buffer of `nbytes` bytes.
    let memset = || split(nbytes, |at, n| unsafe { std::ptr::write_bytes(dst.get().add(at), 0, n) });
    let memcpy = || {
        // SAFETY: parts of two buffers of `nbytes` bytes.
        split(nbytes, |at, n| unsafe { std::ptr::copy_nonoverlapping(src.get().add(at), dst.get().add(at), n) });
    };
    // SAFETY: the buffers have `nbytes` bytes.
    let zeros = || unsafe { fill(dst.get(), nbytes, &[0]).expect("fill") };
    report(&format!("fill zeros {size}"), nbytes, race(rounds, zeros, memset));
    let ones = 1.0f32.to_le_bytes();
    // SAFETY: the buffers have `nbytes` bytes.
    let floats = || unsafe { fill(dst.get(), nbytes, &ones).expect("fill") };
    report(&format!("fill f32 1.0 {size} / memset"), nbytes, race(rounds, floats, memset));
    // SAFETY: the buffers have `nbytes` bytes.
    let copies = || unsafe { copy(src.get(), dst.get(), nbytes).expect("copy") };
    report(&format!("copy {size}"), 2 * nbytes, race(rounds, copies, memcpy));
}

fn permutations() {
    let cases: [(&str, usize, Vec<usize>, Vec<isize>); 7] = [
        ("transpose 4096 x 4096, 4 bytes", 4, vec![4096, 4096], vec![1, 0]),
        ("transpose 4000 x 4100, 4 bytes", 4, vec![4000, 4100], vec![1, 0]),
        ("transpose 4096 x 4096, 2 bytes", 2, vec![4096, 4096], vec![1, 0]),
        ("transpose 4096 x 4096, 8 bytes", 8, vec![4096, 4096], vec![1, 0]),
        ("NCHW -> NHWC 32 x 64 x 56 x 56, 4 bytes", 4, vec![32, 64, 56, 56], vec![0, 2, 3, 1]),
        ("NHWC -> NCHW 64 x 224 x 224 x 3, 4 bytes", 4, vec![64, 224, 224, 3], vec![0, 3, 1, 2]),
        ("heads 8 x 512 x 16 x 64, 4 bytes", 4, vec![8, 512, 16, 64], vec![0, 2, 1, 3]),
    ];
    for (name, size, shape, axes) in cases {
        let from = Layout::contiguous(Shape::from(shape)).permute("bench", &axes).expect("axes");
        let to = Layout::contiguous(from.shape().clone());
        let nbytes = to.shape().size() * size;
        let (a, b) = (CpuBuffer::zeroed(nbytes).expect("memory"), CpuBuffer::zeroed(nbytes).expect("memory"));
        let (src, dst) = (SharedPtr::new(a.as_ptr()), SharedPtr::new(b.as_ptr()));
        // SAFETY: both buffers hold all elements of their layouts.
        let ours = || unsafe { copy_strided(src.get(), &from, dst.get(), &to, size).expect("copy") };
        let memcpy = || {
            // SAFETY: parts of two buffers of `nbytes` bytes.
            split(nbytes, |at, n| unsafe { std::ptr::copy_nonoverlapping(src.get().add(at), dst.get().add(at), n) });
        };
        report(&format!("{name} / memcpy"), 2 * nbytes, race(21, ours, memcpy));
    }
}

fn casts() {
    let n = 16 * MB;
    for (from, to) in [
        (DType::F32, DType::F16),
        (DType::F16, DType::F32),
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F64, DType::F32),
        (DType::F64, DType::F16),
        (DType::U8, DType::F32),
        (DType::F32, DType::I32),
    ] {
        let a = CpuBuffer::zeroed(n * from.size()).expect("memory");
        let b = CpuBuffer::zeroed(n * to.size()).expect("memory");
        let (src, dst) = (SharedPtr::new(a.as_ptr()), SharedPtr::new(b.as_ptr()));
        // SAFETY: both buffers hold `n` elements.
        let ours = || unsafe { cast(src.get(), from, dst.get(), to, n).expect("cast") };
        let nbytes = n * from.size().min(to.size());
        let memcpy = || {
            // SAFETY: no more bytes than either buffer has.
            split(nbytes, |at, n| unsafe { std::ptr::copy_nonoverlapping(src.get().add(at), dst.get().add(at), n) });
        };
        let (ours, peer) = race(21, ours, memcpy);
        // The peer moves fewer bytes; compare bytes per second.
        let peer = peer * (from.size() + to.size()) as f64 / (2 * from.size().min(to.size())) as f64;
        report(&format!("cast {from} -> {to} / memcpy per byte"), n * (from.size() + to.size()), (ours, peer));
    }
}

/// What the cache saves: a new block's pages are faulted in while it is first written.
fn first_touch() {
    let nbytes = 64 * MB;
    let write = |fresh: bool| {
        if fresh {
            buffer::trim();
        }
        let block = CpuBuffer::uninit(nbytes).expect("memory");
        // SAFETY: the buffer has `nbytes` bytes.
        unsafe { fill(block.as_ptr(), nbytes, &[1]).expect("fill") };
    };
    let (recycled, fresh) = race(11, || write(false), || write(true));
    report("64 MB buffer and fill: recycled / fresh", nbytes, (recycled, fresh));
}
