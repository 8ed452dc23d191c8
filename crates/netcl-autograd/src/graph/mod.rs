//! The graph behind tensors: nodes owned by their results, gradient rules, and the walk backwards.
//!
//! A node is made when an op consumes a tensor that needs a gradient. It holds the edges to its inputs, the raw values its rule
//! asked for, and the rule. Nothing points forwards, so a graph lives exactly as long as somebody holds one of its results, and
//! an inference loop keeps nothing.

mod engine;
mod hook;
mod mode;
mod node;
mod tape;

pub use engine::{BackwardOptions, backward, grad};
pub use hook::{Hook, HookHandle};
pub use mode::{
    Anomaly, GradMode, anomaly_enabled, detect_anomaly, enable_grad, grad_enabled, no_grad, suspend_anomaly,
};
pub use node::{Edge, Gradients, Node, Rule, RuleContext, Save, unrecorded};
pub use tape::Tape;

pub(crate) use engine::{grad_up_to, joint_grad_up_to};
pub(crate) use hook::{AWAITED, Hooks};
pub(crate) use node::{
    next_number, overwritten, record, record_edges, record_joint, record_several, record_without_gradient,
};
