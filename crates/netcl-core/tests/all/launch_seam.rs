//! The launch seam as a compiler or a recorder sees it: planned memory, offered operations, memory bound later.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::described::{Described, Meaning};
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::table;
use netcl_core::kernels::launch::{self, Allocation, Launch, Sink};
use netcl_core::kernels::recording::{InPlace, Recording};
use netcl_core::shape::Layout;
use netcl_core::storage::Storage;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

/// Keeps launches over planned memory; takes operations whose name it was told.
#[derive(Default)]
struct Planner {
    taken: &'static str,
    offers: RefCell<Vec<String>>,
    launches: RefCell<Vec<Launch>>,
}

impl Sink for Planner {
    fn launch(&self, launch: Launch) -> Result<()> {
        self.launches.borrow_mut().push(launch);
        Ok(())
    }

    fn allocate(&self, request: &Allocation) -> Result<Arc<Storage>> {
        Ok(Arc::new(Storage::planned(request.nbytes)))
    }

    fn offer(&self, operation: &Described<'_>) -> Result<bool> {
        let Meaning::Elementwise(op) = operation.meaning else { return Ok(false) };
        assert_eq!(operation.outputs.len(), 1);
        self.offers.borrow_mut().push(op.name.to_owned());
        Ok(op.name == self.taken)
    }
}

fn double(x: &Tensor) -> Result<Tensor> {
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    Elementwise::new("add", table::op("add").unwrap().expr()).run(&[x, x], &[], &[&out])?;
    Ok(out)
}

#[test]
fn launches_over_planned_memory_run_once_memory_is_bound() {
    let found = manager().discover().unwrap();
    let handles = found.iter().map(|device| manager().handle(device).unwrap());
    for queue in handles.chain([manager().cpu()]).map(|handle| handle.queue) {
        let planner = Rc::new(Planner::default());
        let (x, y) = launch::with_sink(planner.clone(), || {
            // Host data cannot wait for a replay: it gets memory at once.
            let x = Tensor::from_host(&queue, &[1.0f32, -2.5], [2])?;
            Ok::<_, Error>((x.clone(), double(&x)?))
        })
        .unwrap();
        assert!(!x.storage().is_planned() && y.storage().is_planned());
        assert_eq!(y.storage().nbytes(), 8);
        let unread = y.to_host::<f32>().unwrap_err().to_string();
        assert!(unread.contains("being recorded"), "{unread}");

        let real = Tensor::uninit(&queue, [2], DType::F32).unwrap();
        let mut launches = planner.launches.take();
        assert_eq!(launches.len(), 1);
        launches[0].bind(|storage| Arc::ptr_eq(storage, y.storage()).then(|| real.storage().clone()));
        launches[0].run().unwrap();
        assert_eq!(real.to_host::<f32>().unwrap(), [2.0, -5.0]);
    }
}

#[test]
fn an_operation_that_a_sink_takes_is_not_launched() {
    let queue = manager().cpu().queue;
    let x = Tensor::from_host(&queue, &[1.0f32], [1]).unwrap();
    for (taken, launches) in [("add", 0), ("mul", 1)] {
        let planner = Rc::new(Planner { taken, ..Planner::default() });
        launch::with_sink(planner.clone(), || double(&x)).unwrap();
        assert_eq!(*planner.offers.borrow(), ["add"]);
        assert_eq!(planner.launches.borrow().len(), launches);
    }
}

#[test]
fn a_recording_keeps_launches_actions_and_what_memory_they_need() {
    let queue = manager().cpu().queue;
    let recording = Rc::new(Recording::new());
    let x = Tensor::from_host(&queue, &[1.0f32, -2.5], [2]).unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let y = launch::with_sink(recording.clone(), || {
        let y = double(&double(&x)?)?;
        let ran = ran.clone();
        launch::each_run(move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })?;
        assert!(launch::is_repeating());
        // What is prepared once runs at once, and can be read.
        assert_eq!(launch::at_once(|| double(&x)?.to_host::<f32>())?, [2.0, -5.0]);
        Ok::<_, Error>(y)
    })
    .unwrap();
    let recorded = recording.take();
    assert!(!launch::is_repeating());
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    assert_eq!((recorded.steps.len(), recorded.requested_bytes, recorded.peak_bytes), (3, 16, 16));
    // The result is held, what lies between is not and may give its memory to the result.
    let held: Vec<bool> = recorded.needs.iter().map(|need| need.storage.strong_count() > 0).collect();
    assert_eq!(held, [false, true]);
    // Once for each of the two operands, which are the same.
    assert_eq!(recorded.in_place, [InPlace { launch: 1, input: 0, output: 1 }; 2]);

    let home = Tensor::full(&queue, [2], DType::F32, 3.0).unwrap();
    y.storage().settle(home.storage().clone()).unwrap();
    assert!(y.storage().settle(home.storage().clone()).is_err() && home.storage().settle(x.storage().clone()).is_err());
    assert_eq!(y.storage().identity(), home.storage().identity());
    assert_eq!(y.to_host::<f32>().unwrap(), [3.0, 3.0]);
    let before = y.version();
    home.fill(4.0).unwrap();
    assert_eq!((y.to_host::<f32>().unwrap(), y.version()), (vec![4.0, 4.0], before + 1));
}

#[test]
fn the_same_memory_through_another_layout_is_never_overwritten_in_place() {
    let recording = Rc::new(Recording::new());
    let (storage, _) = recording.input(&manager().cpu().queue, 16);
    let square = Tensor::from_storage(&manager().cpu().queue, storage, Layout::contiguous([2, 2].into()), DType::F32);
    launch::with_sink(recording.clone(), || {
        let x = square?;
        let out = Tensor::uninit(x.queue(), [2, 2], DType::F32)?;
        let add = Elementwise::new("add", table::op("add").unwrap().expr());
        add.run(&[&x, &x.permute(&[1, 0])?], &[], &[&out])
    })
    .unwrap();
    assert_eq!(recording.take().in_place, []);
}
