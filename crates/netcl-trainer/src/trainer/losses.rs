//! The losses of the last updates, kept on the device: reading one number at every update would make the host wait for the device.

use std::sync::{Arc, LazyLock};

use netcl_core::Result as CoreResult;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch::{self, Slot, at_once};
use netcl_core::shape::Layout;
use netcl_nn::autograd::{CoreError, DType, RawTensor as Raw, Tensor};

use crate::error::Result;

/// As many losses can be on the device before they must be read.
pub const CAPACITY: usize = 16;

/// Losses that the host has not read yet, and whether one of them was not finite.
pub struct Losses {
    rows: Option<Rows>,
    /// Where the next loss goes; moved on at every replay of a captured step.
    at: Arc<Slot>,
}

/// All of length [`CAPACITY`].
struct Rows {
    values: Raw,
    /// Not 0 from the first loss on that was not finite; the same number everywhere, so that one launch writes both rows.
    bad: Raw,
    /// 0, 1, 2, ...
    numbers: Raw,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses { rows: None, at: Slot::float(0.0) }
    }
}

impl Losses {
    /// Adds the loss of an update, in one launch.
    ///
    /// # Errors
    /// For a loss of more than one element, and what the device says.
    pub fn put(&mut self, loss: &Tensor) -> Result<()> {
        if loss.size() != 1 {
            let what = format!("a loss has one element, this one has shape {}; return its mean", loss.shape());
            return Err(netcl_nn::autograd::Error::argument("fit", what).into());
        }
        let loss = loss.raw();
        let dtype = if loss.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let rows = match &self.rows {
            Some(rows) if rows.values.dtype() == dtype && rows.values.queue().same_device(loss.queue()) => rows,
            _ => self.rows.insert(Rows::on(loss, dtype)?),
        };
        let flat = loss.cast(dtype)?.with_layout(Layout::contiguous(().into()))?.expand([CAPACITY])?;
        let place = [Number::Slot(self.at.clone())];
        put(dtype).run(&[&rows.values, &rows.bad, &rows.numbers, &flat], &place, &[&rows.values, &rows.bad])?;
        let at = self.at.clone();
        launch::each_run(move || {
            at.set_float(at.get_float() + 1.0);
            Ok(())
        })?;
        Ok(())
    }

    /// One number on the device: anything but 0 once a loss was not finite. `None` before the first loss.
    pub fn bad(&self) -> Option<Tensor> {
        let bad = &self.rows.as_ref()?.bad;
        bad.with_layout(Layout::contiguous(().into())).ok().map(Tensor::from)
    }

    /// The losses since this was asked last, which makes room for others. This waits for the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn take(&mut self) -> Result<Vec<f64>> {
        let count = self.at.get_float() as usize;
        self.at.set_float(0.0);
        let Some(rows) = self.rows.as_ref().filter(|_| count > 0) else { return Ok(Vec::new()) };
        let mut losses = Tensor::from(rows.values.clone()).to_f64_vec()?;
        losses.truncate(count);
        Ok(losses)
    }

    /// Forgets that a loss was not finite.
    pub(crate) fn clear(&mut self) {
        self.rows = None;
        self.at.set_float(0.0);
    }
}

impl Rows {
    fn on(loss: &Raw, dtype: DType) -> CoreResult<Rows> {
        let queue = loss.queue();
        let numbers: Vec<f32> = (0..CAPACITY).map(|i| i as f32).collect();
        // Not a part of the step that is being captured: its memory stays.
        at_once(|| {
            Ok::<_, CoreError>(Rows {
                values: Raw::full(queue, [CAPACITY], dtype, 0.0)?,
                bad: Raw::full(queue, [CAPACITY], DType::F32, 0.0)?,
                numbers: Raw::from_host(queue, &numbers, [CAPACITY])?.cast(dtype)?,
            })
        })
    }
}

/// Writes a loss to its place, and the flag.
fn put(dtype: DType) -> &'static Elementwise {
    fn build(largest: f64) -> Arc<Elementwise> {
        let g = Graph::new();
        let (values, bad, numbers, loss) = (g.input(0), g.input(1), g.input(2), g.input(3));
        let value = numbers.eq(g.scalar(0)).select(loss, values);
        // False for NaN as well as for infinity.
        let bad = loss.abs().le(largest).select(bad, 1.0);
        Elementwise::new("keep_loss", g.finish(&[value, bad]))
    }
    static NARROW: LazyLock<Arc<Elementwise>> = LazyLock::new(|| build(f64::from(f32::MAX)));
    static WIDE: LazyLock<Arc<Elementwise>> = LazyLock::new(|| build(f64::MAX));
    if dtype == DType::F64 { &WIDE } else { &NARROW }
}

#[cfg(test)]
mod tests {
    use netcl_nn::autograd::manager;
    use netcl_runtime::capture::capture;

    use super::*;

    #[test]
    fn losses_come_back_in_order_also_from_replays() {
        for device in ["cpu", "auto"] {
            let queue = manager().get(device).unwrap().queue;
            let scalar = |x: f32| Tensor::from_host(&queue, &[x], ()).unwrap();
            let mut losses = Losses::default();
            losses.put(&scalar(0.5)).unwrap();
            let losses = std::rc::Rc::new(std::cell::RefCell::new(losses));
            let inner = losses.clone();
            let mut step = capture(move |loss: &Tensor| {
                inner.borrow_mut().put(loss).unwrap();
                Ok::<_, CoreError>(())
            });
            for x in [1.0, 2.0, 4.0] {
                step.call(&scalar(x)).unwrap();
            }
            assert_eq!(losses.borrow_mut().take().unwrap(), [0.5, 1.0, 2.0, 4.0]);
            assert_eq!(losses.borrow().bad().unwrap().item().unwrap(), 0.0);
            for x in [8.0, f32::NAN, 16.0] {
                step.call(&scalar(x)).unwrap();
            }
            let read = losses.borrow_mut().take().unwrap();
            assert!(read[0] == 8.0 && read[1].is_nan() && read[2] == 16.0 && read.len() == 3, "{read:?}");
            assert_ne!(losses.borrow().bad().unwrap().item().unwrap(), 0.0, "it stays");
        }
    }

    #[test]
    fn a_loss_of_several_elements_is_refused() {
        let queue = manager().cpu().queue;
        let loss = Tensor::from_host(&queue, &[1.0f32, 2.0], [2]).unwrap();
        assert!(Losses::default().put(&loss).unwrap_err().to_string().contains("return its mean"));
    }
}
