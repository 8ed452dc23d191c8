//! Automatic mixed precision: products in 16 bits, parameters in float32, and a loss scale against gradients that underflow.
//!
//! ```
//! use netcl_amp::{DType, GradScaler, autocast};
//! use netcl_autograd::{Tensor, manager, ops::loss::{Reduction, mse_loss}};
//! use netcl_optim::{Adam, Optimizer};
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::full(&queue, [8, 4], DType::F32, 0.5)?;
//! let target = Tensor::full(&queue, [8, 2], DType::F32, 1.0)?;
//! let weight = Tensor::full(&queue, [4, 2], DType::F32, 0.25)?.with_grad();
//! let mut optimizer = Adam::new([weight.clone()], 0.01)?;
//! let mut scaler = GradScaler::default();
//! for _ in 0..3 {
//!     let loss = {
//!         let _scope = autocast(DType::F16)?;
//!         mse_loss(&x.matmul(&weight)?, &target, Reduction::Mean)?
//!     };
//!     scaler.scale(&loss)?.backward()?;
//!     scaler.step(&mut optimizer)?;
//!     scaler.update()?;
//!     optimizer.zero_grad();
//! }
//! assert!((weight.to_host::<f32>()?[0] - 0.28).abs() < 1e-3);
//! assert_eq!(scaler.get_scale()?, 65536.0);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

mod scaler;

pub use netcl_autograd::DType;
pub use netcl_autograd::autocast::{Autocast, Policy, autocast, autocast_dtype, autocast_off, policies};
pub use scaler::{GradScaler, GradScalerOptions};
