//! A thousand training steps need no more memory than the first few.

use netcl::core::backend::cpu::buffer;
use netcl::core::random::Generator;
use netcl::nn::{BatchNorm2d, Conv2d, Dropout, Flatten, MaxPool2d};
use netcl::optim::{Adam, StepOptions};
use netcl::prelude::*;
use netcl::raw_ops::random::normal;

/// Bytes of tensors that live, and bytes that the pool holds for them.
fn bytes(queue: &Queue) -> (usize, usize) {
    match queue {
        Queue::Cpu(_) => {
            let stats = buffer::stats();
            (stats.live_bytes, stats.live_bytes + stats.cached_bytes)
        }
        Queue::OpenCl(stream) => {
            let stats = stream.pool().stats();
            (stats.bytes_in_use, stats.bytes_in_use + stats.bytes_cached)
        }
    }
}

#[test]
fn a_thousand_steps_of_a_cnn_need_no_more_memory_than_ten() {
    let mut handles = vec![manager().cpu()];
    handles.extend(manager().discover().unwrap().iter().map(|device| manager().handle(device).unwrap()));
    for handle in handles {
        let queue = &handle.queue;
        let model = sequential![
            Conv2d::new(queue, 1, 4, 3).unwrap(),
            BatchNorm2d::new(queue, 4).unwrap(),
            ReLU,
            MaxPool2d::new(2),
            Flatten::default(),
            Dropout::new(0.25).unwrap(),
            Linear::new(queue, 36, 3).unwrap(),
        ];
        let mut optimizer = Adam::new(model.parameters(), 1e-3).unwrap();
        let clip = StepOptions { max_norm: Some(1.0), ..Default::default() };
        let mut generator = Generator::new(3);
        let labels: Vec<i64> = (0..8).map(|i| i % 3).collect();
        let mut early = None;
        for step in 0..1000 {
            let x = Tensor::from(normal(queue, [8, 1, 8, 8], DType::F32, 0.0, 1.0, Some(&mut generator)).unwrap());
            let scores = model.forward(&x).unwrap();
            let loss = F::cross_entropy(&scores, &labels[..]).unwrap();
            loss.backward().unwrap();
            optimizer.step_with(&clip).unwrap();
            optimizer.zero_grad();
            // Both looks have the same tensors of the step before them.
            if step == 9 || step == 999 {
                queue.finish().unwrap();
                let now = bytes(queue);
                let early = *early.get_or_insert(now);
                assert_eq!(now.0, early.0, "{}: live bytes", handle.device_name);
                assert!(now.1 <= early.1, "{}: the pool went from {} to {} bytes", handle.device_name, early.1, now.1);
            }
        }
        queue.finish().unwrap();
    }
}
