//! The launch seam as a compiler or a recorder sees it: planned memory, offered operations, memory bound later.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernels::described::{Described, Meaning};
use netcl_core::kernels::elementwise::Elementwise;
use netcl_core::kernels::expr::table;
use netcl_core::kernels::launch::{self, Allocation, Launch, Sink};
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
        let Meaning::Elementwise(op, _) = operation.meaning else { return Ok(false) };
        assert_eq!(operation.outputs.len(), 1);
        self.offers.borrow_mut().push(op.label().to_owned());
        Ok(op.label() == self.taken)
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
