//! The differentiable tensor, the tape, gradient rules and the JIT compiler.
