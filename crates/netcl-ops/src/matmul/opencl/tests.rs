//! Every tile of the register-tiled kernel on every device, whichever the rules would choose there.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test should panic")]

use netcl_core::device::manager;
use netcl_core::kernels::copy;
use netcl_core::kernels::expr::Graph;
use netcl_core::shape::Layout;
use netcl_core::tensor::HostOptions;

use super::choice::{RegisterTile, Tile};
use super::strip::StripTile;
use super::tail::{self, TailWave};
use super::*;
use crate::matmul::ShapeRule;
use crate::prologue::CheckedPrologue;

/// Numbers in halves, so that sums are exact whatever their order.
fn numbers(queue: &Queue, [rows, cols]: [usize; 2], across: bool, dtype: DType) -> Tensor {
    let values: Vec<f64> = (0..rows * cols).map(|i| ((i * 7 + i / 11) % 13) as f64 * 0.5 - 3.0).collect();
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    let shape = if across { [cols, rows] } else { [rows, cols] };
    let tensor = Tensor::from_host_with(queue, &values, shape, options).unwrap();
    if across { tensor.permute(&[1, 0]).unwrap() } else { tensor }
}

fn check(stream: &Stream, queue: &Queue, tile: RegisterTile, shape: (usize, usize, usize), across: bool, dtype: DType) {
    let (device, (m, n, k)) = (Device::new(stream), shape);
    let (a, b) = (numbers(queue, [m, k], across, dtype), numbers(queue, [k, n], across, dtype));
    let out = Tensor::uninit(queue, [m, n], dtype).unwrap();
    let rule = ShapeRule::new(&a, &b).unwrap();
    let problem = Problem::new(&rule, &a, &b, &out, &[], None, None).unwrap();
    let this = Multiplication::new(stream, &device, &problem, &[], 0);
    this.launch_tile(Variant::RegisterTiled, Tile::Registers(tile), None).unwrap();
    let (a, b, got) = (a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap(), out.to_f64_vec().unwrap());
    for row in [0, m / 2, m - 1] {
        for col in 0..n {
            let want: f64 = (0..k).map(|i| a[row * k + i] * b[i * n + col]).sum();
            assert_eq!(got[row * n + col], want, "{tile:?} {m} {n} {k} {dtype} at {row}, {col}");
        }
    }
}

#[test]
fn every_tile_multiplies() {
    let tuned = RegisterTile { rows: 128, cols: 256, depth: 8, r: 16, c: 8, slices: 1 };
    // As a table may have them: an odd number of terms; work-items that do not share a line evenly.
    let odd = RegisterTile { rows: 12, cols: 20, depth: 3, r: 2, c: 2, slices: 1 };
    let uneven = RegisterTile { rows: 96, cols: 96, depth: 12, r: 12, c: 12, slices: 1 };
    // As many sums as it takes for lines to be swapped, in a shape that compilers for CPU devices do not take long for.
    let swapped = RegisterTile { rows: 4, cols: 64, depth: 4, r: 2, c: 32, slices: 1 };
    // Edges inside a tile, more terms than a step has, and fewer; lines and terms that vectors can read, and not.
    let cases = [((132, 260, 36), false), ((67, 71, 133), true), ((5, 3, 7), true)];
    for (at, found) in manager().discover().unwrap().iter().enumerate() {
        let queue = manager().handle(found).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let device = Device::new(stream);
        // Large tiles take compilers for CPU devices half a minute; `matmul_grid` has the one they are given there.
        let quick = |tile: &RegisterTile| !device.cpu_device || (tile.slices > 1 && at == 0) || tile.r < 4;
        let tiles = RegisterTile::ALL.into_iter().chain([tuned, odd, uneven, swapped]);
        for tile in tiles.filter(|tile| tile.fits(&device, 4)).filter(quick) {
            for (shape, across) in cases {
                check(stream, &queue, tile, shape, across, DType::F32);
            }
        }
        let shipped = RegisterTile::ALL[5];
        let tile = if shipped.fits(&device, 4) { shipped } else { odd };
        for dtype in [DType::F16, DType::BF16] {
            check(stream, &queue, tile, (20, 12, 8), true, dtype);
        }
    }
}

/// Strips along columns and along terms, in vectors and not, whole and in parts, which leave the stream's counters as they were.
#[test]
fn strips_add_up_their_parts_in_one_launch() {
    for found in manager().discover().unwrap() {
        let queue = manager().handle(&found).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let device = Device::new(stream);
        let cases = [((1, 64, 4096), DType::F32), ((3, 22, 2501), DType::F16), ((5, 40, 1100), DType::BF16)];
        for (((m, n, k), dtype), across) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
            let (a, b) = (numbers(&queue, [m, k], across, dtype), numbers(&queue, [k, n], across, dtype));
            let out = Tensor::uninit(&queue, [m, n], DType::F32).unwrap();
            let rule = ShapeRule::new(&a, &b).unwrap();
            let problem = Problem::new(&rule, &a, &b, &out, &[], None, None).unwrap();
            let this = Multiplication::new(stream, &device, &problem, &[], 0);
            let tile = StripTile::of(&device, &problem, 1);
            for parts in [1, 3, 20] {
                copy::fill(&out, f64::NAN).unwrap();
                this.launch_strip(tile, Split::of(k, parts), None).unwrap();
                let (a, b, got) = (a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap(), out.to_f64_vec().unwrap());
                for (at, &got) in got.iter().enumerate() {
                    let want: f64 = (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum();
                    assert_eq!(got, want, "{tile:?} {m} {n} {k} {dtype} in {parts} at {}, {}", at / n, at % n);
                }
            }
        }
    }
}

/// Parts by one work-item for each result, and by several, as GPUs add up many of them.
#[test]
fn parts_are_added_up_by_any_number_of_work_items() {
    let (m, n, parts) = (3, 21, 13);
    for found in manager().discover().unwrap() {
        let queue = manager().handle(&found).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let device = Device::new(stream);
        let (a, b) = (numbers(&queue, [m, 4], false, DType::F32), numbers(&queue, [4, n], false, DType::F32));
        let out = Tensor::uninit(&queue, [m, n], DType::F32).unwrap();
        let rule = ShapeRule::new(&a, &b).unwrap();
        let problem = Problem::new(&rule, &a, &b, &out, &[], None, None).unwrap();
        let this = Multiplication::new(stream, &device, &problem, &[], 0);
        let partial = numbers(&queue, [parts, m * n], false, DType::F32);
        let values = partial.to_f64_vec().unwrap();
        for slices in [1, 4, 16] {
            copy::fill(&out, f64::NAN).unwrap();
            this.reduce_by(slices, &partial, Split { parts, depth: 4 }).unwrap();
            for (at, &got) in out.to_f64_vec().unwrap().iter().enumerate() {
                let want: f64 = (0..parts).map(|part| values[part * m * n + at]).sum();
                assert_eq!(got, want, "{slices} work-items at {at} on {}", found.name());
            }
        }
    }
}

/// Three parts of an operand that is computed on the way add up to what it is; rows end with zeros.
#[test]
fn operands_in_parts_are_computed_on_the_way() {
    let g = Graph::new();
    let expr = g.finish(&[(g.input(0) * g.input(1)).max(g.scalar(0))]);
    let scalars = [0.3.into()];
    for found in manager().discover().unwrap() {
        let queue = manager().handle(&found).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let device = Device::new(stream);
        for (first, across) in [(true, false), (true, true), (false, false), (false, true)] {
            let (a, b) = (numbers(&queue, [6, 11], across, DType::F32), numbers(&queue, [11, 9], across, DType::F32));
            let out = Tensor::uninit(&queue, [6, 9], DType::F32).unwrap();
            let (operand, scale) = if first { (&a, [6, 1]) } else { (&b, [1, 9]) };
            let scale = numbers(&queue, scale, false, DType::F32);
            let prologue =
                CheckedPrologue::new("matmul", operand, &expr, std::slice::from_ref(&scale), &scalars).unwrap();
            let rule = ShapeRule::new(&a, &b).unwrap();
            let problem = Problem::new(&rule, &a, &b, &out, &[], None, Some((first, &prologue))).unwrap();
            let this = Multiplication::new(stream, &device, &problem, &[], 0);
            let ready = this.ready(Arithmetic::Split, [16, 16], [true, true]).unwrap();
            let (staged, lines, along_k) =
                if first { (&ready.a, 6, ready.a.along_k) } else { (&ready.b, 9, ready.b.along_k) };
            let (length, rows) = if along_k { (11, lines) } else { (lines, 11) };
            let Arg::Buffer(storage, _) = &staged.arg else { panic!("no buffer") };
            let layout = Layout::contiguous([3, rows, staged.pitch as usize].into());
            let parts = Tensor::from_storage(&queue, storage.clone(), layout, DType::BF16).unwrap();
            let parts = parts.to_f64_vec().unwrap();
            let (values, factors) = (operand.to_f64_vec().unwrap(), scale.to_f64_vec().unwrap());
            let pitch = staged.pitch as usize;
            for (row, at) in (0..rows).flat_map(|row| (0..length).map(move |at| (row, at))) {
                let (line, term) = if along_k { (row, at) } else { (at, row) };
                let value = if first { values[line * 11 + term] } else { values[term * 9 + line] };
                let want = f64::from((value as f32 * factors[line] as f32).max(0.3));
                let got: f64 = (0..3).map(|part| parts[(part * rows + row) * pitch + at]).sum();
                assert_eq!(got, want, "operand {} across {across} at {line}, {term}", usize::from(!first));
            }
        }
    }
}

#[test]
fn tiles_of_a_tail_wave_are_added_up_once() {
    let tile = RegisterTile { rows: 16, cols: 16, depth: 8, r: 4, c: 4, slices: 1 };
    let (batch, m, n, k) = (2, 40, 36, 50);
    for found in manager().discover().unwrap() {
        let queue = manager().handle(&found).unwrap().queue;
        let Queue::OpenCl(stream) = &queue else { continue };
        let device = Device::new(stream);
        let fence = tail::fence(stream).unwrap_or("mem_fence(CLK_GLOBAL_MEM_FENCE)");
        let a =
            netcl_core::tensor::reshape(&numbers(&queue, [batch * m, k], false, DType::F32), [batch, m, k]).unwrap();
        let b =
            netcl_core::tensor::reshape(&numbers(&queue, [batch * k, n], false, DType::F32), [batch, k, n]).unwrap();
        let out = Tensor::uninit(&queue, [batch, m, n], DType::F32).unwrap();
        let rule = ShapeRule::new(&a, &b).unwrap();
        let problem = Problem::new(&rule, &a, &b, &out, &[], None, None).unwrap();
        let this = Multiplication::new(stream, &device, &problem, &[], 0);
        // 18 tiles: some, one, all and none of them in the tail wave, shared by two and by more groups.
        for (shared, depth) in [(7, 40), (1, 8), (18, 24), (0, k)] {
            copy::fill(&out, f64::NAN).unwrap();
            let split = Split { parts: k.div_ceil(depth), depth };
            let tail = TailWave { whole: 18 - shared, shared, split };
            this.launch_tail_wave(Variant::RegisterTiled, tile, tail, fence).unwrap();
            let (a, b, got) = (a.to_f64_vec().unwrap(), b.to_f64_vec().unwrap(), out.to_f64_vec().unwrap());
            for (at, &got) in got.iter().enumerate() {
                let (matrix, row, col) = (at / (m * n), at / n % m, at % n);
                let want: f64 = (0..k).map(|i| a[(matrix * m + row) * k + i] * b[(matrix * k + i) * n + col]).sum();
                assert_eq!(got, want, "{tail:?} matrix {matrix} at {row}, {col}");
            }
        }
    }
}
