//! Steps on the native CPU: netcl-data's own code, on the tensors' memory and the pool's threads.

use netcl_core::Result;
use netcl_core::backend::cpu::threads::SharedPtr;
use netcl_core::backend::cpu::{CpuKernel, parallel_for};
use netcl_core::dtype::DType;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Work};
use netcl_core::tensor::Tensor;
use netcl_data::transforms::{Image, Step};
use smallvec::smallvec;

use super::OP;

pub(super) fn run(images: &Tensor, steps: &[Vec<Step>], result: &Tensor) -> Result<()> {
    let (is_bytes, offset) = (images.dtype() == DType::U8, images.layout().offset());
    let shape = [1, 2, 3].map(|axis| images.shape()[axis]);
    let (size, new_size) = (images.size() / steps.len(), result.size() / steps.len());
    let (nbytes, new_nbytes) = ((offset + images.size()) * images.dtype().size(), result.size() * size_of::<f32>());
    let cost = Cost { flops: 0.0, bytes: (images.size() * images.dtype().size() + new_nbytes) as f64 };
    let steps = steps.to_vec();
    let body = move |args: &netcl_core::backend::cpu::CpuArgs<'_>| {
        let old = SharedPtr::new(args.checked_memory(0, nbytes)?);
        let new = SharedPtr::new(args.checked_memory(1, new_nbytes)?.cast::<f32>());
        parallel_for(OP, steps.len(), 1, |range| {
            for at in range {
                let first = offset + at * size;
                // SAFETY: the memory reaches that far (checked above), storages are aligned for every element type, and the launch
                // holds the storage's lock: nobody writes it.
                let pixels: Vec<f32> = unsafe {
                    if is_bytes {
                        let bytes = std::slice::from_raw_parts(old.get().add(first), size);
                        bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect()
                    } else {
                        std::slice::from_raw_parts(old.get().cast::<f32>().add(first), size).to_vec()
                    }
                };
                // SAFETY: inside of the result, and every image belongs to one task.
                let to = unsafe { std::slice::from_raw_parts_mut(new.get().add(at * new_size), new_size) };
                // Both fail for no image: the shapes are those that the table was made of.
                if let Ok(image) = Image::new(pixels, shape) {
                    to.copy_from_slice(Step::apply_all(&steps[at], image).pixels());
                }
            }
        })
    };
    launch::submit(Launch {
        name: OP.into(),
        queue: images.queue().clone(),
        work: Work::Cpu(CpuKernel::new(body)),
        args: smallvec![
            Arg::Buffer(images.storage().clone(), Access::Read),
            Arg::Buffer(result.storage().clone(), Access::Write)
        ],
        cost,
    })
}
