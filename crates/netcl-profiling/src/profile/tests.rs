//! Profiles on every device.

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::observe::{self, Kind};
use netcl_core::tensor::Tensor;

use super::{EventTimer, ProfileOptions, Profiler, profile};
use crate::doctor::devices;

#[test]
fn launches_copies_and_memory_of_every_device_are_seen() {
    for device in devices() {
        let queue = device.queue;
        let host = vec![1.0f32; 1 << 16];
        let work = || -> netcl_core::Result<Vec<f32>> {
            let x = Tensor::from_host(&queue, &host, [1 << 16])?;
            let y = Tensor::full(&queue, [1 << 16], DType::F32, 2.0)?;
            y.assign(&x)?;
            y.to_host::<f32>()
        };
        let profiler = Profiler::start(ProfileOptions { ceilings: false });
        assert_eq!(work().unwrap(), host);
        let found = profiler.stop().unwrap();
        let of = |kind| found.commands.iter().filter(|command| command.kind == kind).count();
        assert_eq!(of(Kind::Upload), 1, "{found}");
        assert!(of(Kind::Kernel) >= 1 && found.commands.iter().all(|command| command.seconds() > 0.0), "{found}");
        assert_eq!(found.memory[0].peak_bytes - found.memory[0].before_bytes, 2 << 18, "{found}");
        assert_eq!(found.memory[0].holders.iter().map(|holder| holder.blocks).sum::<usize>(), 2);
        let sources = found.commands.iter().filter(|command| command.kind == Kind::Kernel);
        assert!(sources.map(|c| c.source.is_some()).all(|known| known == matches!(queue, Queue::OpenCl(_))));
        let page = super::html::page(&found);
        assert!(page.contains("<script id=\"profile\"") && !page.contains("/* page.") && !page.contains(">\"data\"<"));
        // The queue is what it was.
        if let Queue::OpenCl(stream) = &queue {
            assert!(!stream.queue().profiling());
        }
    }
}

#[test]
fn scopes_of_observers_nest_and_hide() {
    let queue = netcl_core::device::manager().cpu().queue;
    let fill = || Tensor::full(&queue, [64], DType::F32, 1.0).map(drop);
    let ((inner, result), outer) = profile(|| {
        fill().unwrap();
        let (result, inner) = profile(fill).unwrap();
        observe::hidden(|| fill().unwrap());
        (inner, result)
    })
    .unwrap();
    result.unwrap();
    assert_eq!((inner.commands.len(), outer.commands.len()), (1, 2));
    let _module = observe::enter(|| "nobody asks".into());
    assert!(observe::module().is_none());
}

#[test]
fn a_timer_counts_its_own_device_only() {
    let all = devices();
    for device in &all {
        let mut timer = EventTimer::new(Some(&device.queue));
        let work = || all.iter().try_for_each(|other| Tensor::full(&other.queue, [1 << 12], DType::F32, 1.0).map(drop));
        timer.time(work).unwrap().unwrap();
        assert_eq!(timer.records.len(), 1);
        assert!(timer.elapsed_ms > 0.0 && (timer.busy_ms - timer.elapsed_ms).abs() < 1e-6);
    }
}
